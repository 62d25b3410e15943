// Measures how long the work of a body takes on the device, by timed events around it. They are read when the host
// knows that the work has ended, so nothing waits for them. Events come from a pool, which grows to the largest number
// ever used.
//
// Errors: if the device refuses a call, the work is not timed. The error is taken back from the device's last error of
//         this thread; otherwise the op would fail for it.
#include "core/core.h"
#include "device/devices.h"

namespace engine::detail {

void Devices::BeginTimer(DeviceState& device, Stream stream, DeviceTimer* timer) {
  {
    MutexLock lock(device.timers_mu);
    if (!device.spare_timers.empty()) {
      *timer = device.spare_timers.back();
      device.spare_timers.pop_back();
    }
  }
  const auto make = [&](Event& event) {
    if (event) return true;
    if (!device.device->CreateTimedEvent(&event).ok()) return false;
    events_made_.fetch_add(1, std::memory_order_relaxed);
    return true;
  };
  timer->device = &device;
  if (!make(timer->begin) || !make(timer->end) || !device.device->Record(timer->begin, stream).ok())
    return Untimed(timer);
  records_.fetch_add(1, std::memory_order_relaxed);
}

void Devices::EndTimer(Stream stream, DeviceTimer* timer) {
  if (!timer->device) return;
  if (!timer->device->device->Record(timer->end, stream).ok()) return Untimed(timer);
  records_.fetch_add(1, std::memory_order_relaxed);
}

int64_t Devices::ReadTimer(DeviceTimer* timer) {
  if (!timer->device) return -1;
  std::chrono::nanoseconds took{-1};
  // A lost device is not called any more.
  if (timer->device->lost.load(std::memory_order_acquire) ||
      !timer->device->device->Elapsed(timer->begin, timer->end, &took).ok()) {
    Untimed(timer);
    return -1;
  }
  KeepTimer(timer);
  return took.count();
}

void Devices::Untimed(DeviceTimer* timer) {
  if (!timer->device->lost.load(std::memory_order_acquire)) (void)timer->device->device->TakeLastError();
  KeepTimer(timer);
}

void Devices::KeepTimer(DeviceTimer* timer) {
  MutexLock lock(timer->device->timers_mu);
  timer->device->spare_timers.push_back(*timer);
  *timer = {};
}

}  // namespace engine::detail
