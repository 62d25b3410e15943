// Names, counts and prices of a software device's calls.
#include "engine/testing/software_device.h"

namespace engine {

const char* DeviceCallName(DeviceCall call) noexcept {
  static constexpr const char* kNames[] = {
      "kLaunch",       "kRecord",         "kWait",           "kQuery",       "kSynchronize",  "kCopy",
      "kPageableCopy", "kCreateStream",   "kDestroyStream",  "kCreateEvent", "kDestroyEvent", "kAllocate",
      "kFree",         "kDriverAllocate", "kAllocatePinned", "kFreePinned",  "kBeginCapture", "kEndCapture",
      "kInstantiate",  "kUpdate",         "kUpdateNode",     "kLaunchGraph", "kElapsed",      "kRecordPending"};
  static_assert(std::size(kNames) == static_cast<size_t>(DeviceCall::kCount));
  return call < DeviceCall::kCount ? kNames[static_cast<size_t>(call)] : "no DeviceCall";
}

DeviceCounts DeviceCounts::operator-(const DeviceCounts& before) const {
  DeviceCounts difference;
  for (size_t i = 0; i < calls.size(); ++i) difference.calls[i] = calls[i] - before.calls[i];
  return difference;
}

SoftwareCosts::SoftwareCosts() {
  using std::chrono::nanoseconds;
  host.fill(nanoseconds{1000});
  const auto price = [this](DeviceCall call, int64_t ns) { host[static_cast<size_t>(call)] = nanoseconds{ns}; };
  price(DeviceCall::kLaunch, 2000);
  price(DeviceCall::kRecord, 400);
  price(DeviceCall::kWait, 400);
  price(DeviceCall::kQuery, 400);
  price(DeviceCall::kCopy, 2500);
  price(DeviceCall::kPageableCopy, 0);  // the wait is what it costs
  price(DeviceCall::kCreateStream, 20'000);
  price(DeviceCall::kCreateEvent, 1000);
  price(DeviceCall::kAllocate, 500);
  price(DeviceCall::kFree, 500);
  price(DeviceCall::kDriverAllocate, 50'000);
  price(DeviceCall::kAllocatePinned, 100'000);
  price(DeviceCall::kFreePinned, 100'000);
  price(DeviceCall::kInstantiate, 50'000);
  price(DeviceCall::kUpdate, 5000);
  price(DeviceCall::kLaunchGraph, 4000);
}

SoftwareCosts SoftwareCosts::Free() {
  using std::chrono::nanoseconds;
  SoftwareCosts costs;
  costs.host.fill(nanoseconds{1});
  costs.kernel_gap = costs.graph_node_gap = costs.copy_latency = nanoseconds{1};
  costs.copy_bytes_per_ns = costs.within_bytes_per_ns = 1e18;
  return costs;
}

}  // namespace engine
