// TracedBody: on the stack of a thread that runs a body, or skips it. Adds that to the trace, if one is on.
//
// Threads: one; the body's.
// Order:   About is called while the op is there; it may be gone after its body.
// Errors:  none. A record for which there is no memory is left out.
#pragma once

#include "core/core.h"

namespace engine::detail {

class TracedBody {
 public:
  explicit TracedBody(EngineCore& core) : core_(core.tracing() ? &core : nullptr) {}
  ~TracedBody() { End(); }
  TracedBody(const TracedBody&) = delete;

  bool on() const { return core_ != nullptr; }
  void About(OpRecord* op) noexcept;                                                   // a plain op, or one on a device
  void About(const void* key, const void* run, const char* name, Site site) noexcept;  // a node of that run
  void Touch(const char* name, uint64_t key, AccessMode mode) noexcept;
  void Begin(const char* lane) noexcept;  // null: the calling thread's
  void End() noexcept;
  void Skip(const char* lane) noexcept;  // instead of both

 private:
  EngineCore* core_;
  bool begun_ = false;
  TraceRecord record_;
  std::vector<TraceTouch> touches_;
  const char* outer_lane_ = nullptr;
  Clock::time_point begin_{};
};

// A record with the calling thread's lane.
TraceRecord NewTraceRecord(TraceKind kind) noexcept;

}  // namespace engine::detail
