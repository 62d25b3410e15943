// BodyScope: the op whose body runs on this thread, for the debug checks of devices.
//
// The body of an op on a device must not synchronize: whoever needs the result waits for it, and in a bulk each member
// would synchronize. A device that is asked to synchronize refuses (RefuseSync). A call that blocks and cannot be
// refused is reported by NoteSync (on CUDA by cupti.cc). Either way the op fails (Verdict).
//
// An op is over on the device when its stream is. So work that its body puts on another stream has to be joined: an
// event is recorded behind it, and the op's stream waits for the event. A device that sees where work goes reports both
// (NoteStray, NoteJoin); CUDA does not see launches.
//
// Threads: each thread has its own. Errors: kSyncInBody, which names the op, the call and the bulk; kWrongStream.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/device/device.h"
#include "engine/op.h"

namespace engine::detail {

class BodyScope {
 public:
  // `bulk`: the first op of the op's bulk; null: the op is in none. `stream`: the op's stream; null for an asynchronous
  // op, whose work may go anywhere, because it says itself when it is over.
  BodyScope(const char* op, Site site, const char* bulk, Stream stream) noexcept
      : op_(op), bulk_(bulk), site_(site), stream_(stream), outer_(std::exchange(current_, this)) {}
  // No body: the engine or the device itself blocks, which is allowed (memory ran out, a pageable copy).
  BodyScope() noexcept : BodyScope(nullptr, {}, nullptr, {}) {}
  ~BodyScope() { current_ = outer_; }
  BodyScope(const BodyScope&) = delete;

  // The host blocks in `call`, a static text. The first call in a body counts.
  static void NoteSync(const char* call) noexcept {
    if (current_ && current_->op_ && !current_->call_) current_->call_ = call;
  }
  static DeviceStatus RefuseSync(const char* call) {
    if (!current_ || !current_->op_) return {};
    NoteSync(call);
    return current_->Describe(call);
  }
  // The stream on which the work of this thread's body belongs; null: any.
  static Stream OwnStream() noexcept { return current_ ? current_->stream_ : Stream{}; }
  // Everything on a lane of the device up to number `end`.
  struct Place {
    const void* lane;
    uint64_t end;
  };
  // Work called `name`, which ends at `at`, went to another lane than that of the op's stream.
  static void NoteStray(const std::string& name, Place at);
  // What comes after `to` waits for `from`. A `to` without a lane is the op's stream.
  static void NoteJoin(Place from, Place to);

  // Called when the body has run: what it did wrong, or ok.
  DeviceStatus Verdict() const {
    if (call_) return Describe(call_);
    return strays_.empty() ? DeviceStatus() : DescribeStray();
  }

 private:
  std::string Where() const;
  DeviceStatus Describe(const char* call) const;
  DeviceStatus DescribeStray() const;
  static thread_local constinit BodyScope* current_;
  const char* const op_;
  const char* const bulk_;
  const Site site_;
  const Stream stream_;
  struct Stray {
    std::string name;  // of the first call
    Place at;
  };
  std::vector<Stray> strays_;  // not joined; one a lane
  const char* call_ = nullptr;
  BodyScope* const outer_;
};

}  // namespace engine::detail
