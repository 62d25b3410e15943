// BodyScope: whose body runs on this thread, for the debug checks of devices: an op on a device must not synchronize,
// because whoever needs its result waits for it, and in a bulk that would be once a member.
//
// Two ways to learn of it: a device is asked to synchronize, and refuses (RefuseSync); or somebody tells that the host is
// about to block in a call that cannot be refused (NoteSync; on CUDA cupti.cc). Either way the op fails (Verdict).
//
// The op is over on the device when its stream is, so work that its body puts elsewhere has to be joined to that stream: by an
// event behind it, for which the stream waits. A device that sees where work goes tells of both (NoteStray, NoteJoin);
// CUDA does not see launches.
//
// Threads: the thread's own. Errors: kSyncInBody, which names the op, the call and the bulk; kWrongStream.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/device/device.h"
#include "engine/op.h"

namespace engine::detail {

class BodyScope {
 public:
  // `bulk`: the op that its run on the lane began with; null: it is alone. `stream`: the op's; null: work may go anywhere,
  // since the op says by itself when it is over.
  BodyScope(const char* op, Site site, const char* bulk, Stream stream) noexcept
      : op_(op), bulk_(bulk), site_(site), stream_(stream), outer_(std::exchange(current_, this)) {}
  // What follows is the engine's or the device's own, and allowed (memory that ran out, a pageable copy).
  BodyScope() noexcept : BodyScope(nullptr, {}, nullptr, {}) {}
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
  // The stream on which work of this thread belongs; null: any.
  static Stream OwnStream() noexcept { return current_ ? current_->stream_ : Stream{}; }
  // A place on a lane of the device's: all up to `end`.
  struct Place {
    const void* lane;
    uint64_t end;
  };
  // Work called `name`, the last up to `at`, went to a lane that is not the own stream's.
  static void NoteStray(const std::string& name, Place at);
  // What is behind `to`, on the own stream if that has no lane, comes behind `from`.
  static void NoteJoin(Place from, Place to);

  // Of this body, when it has run.
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
