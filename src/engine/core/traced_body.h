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
  // While no trace is on this is a null pointer, and each call below a branch on it.
  explicit TracedBody(EngineCore& core) noexcept {
    if (core.tracing()) [[unlikely]]
      Open(core);
  }
  ~TracedBody() {
    if (state_) [[unlikely]]
      Close();
  }
  TracedBody(const TracedBody&) = delete;

  bool on() const { return state_ != nullptr; }
  // These need a trace that is on.
  void About(OpRecord* op) noexcept;                                                   // a plain op, or one on a device
  void About(const void* key, const void* run, const char* name, Site site) noexcept;  // a node of that run
  void Touch(const char* name, uint64_t key, AccessMode mode) noexcept;
  // `thread`: the name that the record gets, on a device that of the lane; null: the calling thread's.
  void Begin(const char* thread) noexcept {
    if (state_) [[unlikely]]
      Start(thread);
  }
  void End() noexcept {
    if (state_) [[unlikely]]
      Finish();
  }
  void Skip(const char* thread) noexcept;  // instead of both
  // The op is about to be settled on this thread. If its body is still running here, that ends for the trace: once the op has
  // ended a wait may return, and the trace be over.
  static void EndBefore(const OpRecord* op) noexcept;

 private:
  struct State;
  void Open(EngineCore& core) noexcept;
  void Close() noexcept;
  void Start(const char* thread) noexcept;
  void Finish() noexcept;
  static void Add(State& state) noexcept;

  static thread_local constinit State* running_;  // the innermost body of this thread that is traced
  State* state_ = nullptr;
};

// A record with the calling thread's name.
TraceRecord NewTraceRecord(TraceKind kind) noexcept;

}  // namespace engine::detail
