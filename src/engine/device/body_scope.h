// BodyScope: whose body runs on this thread, for the debug checks of devices: an op on a device must not synchronize,
// because whoever needs its result waits for it, and in a bulk that would be once a member.
//
// Threads: the thread's own. Errors: none.
#pragma once

#include <string>
#include <utility>

#include "engine/device.h"

namespace engine::detail {

class BodyScope {
 public:
  // Null: what follows is the engine's own (memory that ran out).
  explicit BodyScope(const char* op) noexcept : outer_(std::exchange(op_, op)) {}
  ~BodyScope() { op_ = outer_; }
  BodyScope(const BodyScope&) = delete;

  static DeviceStatus RefuseSync(const char* call) {
    if (!op_) return {};
    return DeviceStatus::Fail(DeviceCode::kSyncInBody, false, 0,
                              std::string(call) + " in the body of op '" + op_ +
                                  "', which is on a device: issue the work and return; whoever needs the result waits");
  }

 private:
  static thread_local constinit const char* op_;
  const char* outer_;
};

}  // namespace engine::detail
