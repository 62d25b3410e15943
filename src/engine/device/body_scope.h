// BodyScope: whose body runs on this thread, for the debug checks of devices: an op on a device must not synchronize,
// because whoever needs its result waits for it, and in a bulk that would be once a member.
//
// Two ways to learn of it: a device is asked to synchronize, and refuses (RefuseSync); or somebody tells that the host is
// about to block in a call that cannot be refused (NoteSync; on CUDA cupti.cc). Either way the op fails (Verdict).
//
// Threads: the thread's own. Errors: kSyncInBody, which names the op, the call and the bulk.
#pragma once

#include <string>
#include <utility>

#include "engine/device.h"
#include "engine/op.h"

namespace engine::detail {

class BodyScope {
 public:
  // `bulk`: the op that its run on the lane began with; null: it is alone.
  BodyScope(const char* op, Site site, const char* bulk) noexcept
      : op_(op), bulk_(bulk), site_(site), outer_(std::exchange(current_, this)) {}
  // What follows is the engine's or the device's own, and allowed (memory that ran out, a pageable copy).
  BodyScope() noexcept : BodyScope(nullptr, {}, nullptr) {}
  ~BodyScope() { current_ = outer_; }
  BodyScope(const BodyScope&) = delete;

  // The host blocks in `call`, whose name lives for ever. The first one in a body counts.
  static void NoteSync(const char* call) noexcept {
    if (current_ && current_->op_ && !current_->call_) current_->call_ = call;
  }
  static DeviceStatus RefuseSync(const char* call) {
    if (!current_ || !current_->op_) return {};
    NoteSync(call);
    return current_->Describe(call);
  }
  // Of this body, when it has run.
  DeviceStatus Verdict() const { return call_ ? Describe(call_) : DeviceStatus(); }

 private:
  DeviceStatus Describe(const char* call) const;
  static thread_local constinit BodyScope* current_;
  const char* const op_;
  const char* const bulk_;
  const Site site_;
  const char* call_ = nullptr;
  BodyScope* const outer_;
};

}  // namespace engine::detail
