// Copies and memory of a software device.
#include <cstring>

#include "device/software/software_impl.h"

namespace engine::detail {

DeviceStatus SoftwareDeviceImpl::CheckCopy(const char* name, const void* device, const void* host, size_t bytes,
                                           MemoryKind* kind) {
  const bool pinned = memory_.IsPinned(host, bytes);
  if (options_.check_pointers && bytes != 0) {
    const auto wrong = [&](const char* what) REQUIRES(mu_) {
      return Fail(DeviceCode::kWrongMemory, std::string(name) + " of " + std::to_string(bytes) + " bytes: " + what);
    };
    if (!memory_.IsDevice(device, bytes)) {
      return wrong("the device side is not device memory in use, or ends beyond its block");
    }
    if (memory_.IsDevice(host, 1)) return wrong("the host side is device memory");
    if (*kind == MemoryKind::kPinned && !pinned) return wrong("the host side was said to be pinned, and is not");
  }
  if (*kind == MemoryKind::kUnknown) *kind = pinned ? MemoryKind::kPinned : MemoryKind::kPageable;
  return {};
}

DeviceStatus SoftwareDeviceImpl::Copy(const char* name, void* to, const void* from, size_t bytes, engine::Stream stream,
                                      Direction direction, MemoryKind kind) {
  Marker until;
  uint64_t event = 0;
  {
    DeviceLock lock(mu_);
    if (DeviceStatus bad = Enter(DeviceCall::kCopy); !bad.ok()) return bad;
    StreamState* on = streams_.Find(stream.raw);
    if (!on) return BadStream(name, stream);
    double bytes_per_ns = options_.costs.copy_bytes_per_ns;
    DeviceStatus bad;
    if (direction == Direction::kWithin) {
      kind = MemoryKind::kDevice;
      bytes_per_ns = options_.costs.within_bytes_per_ns;
      if (options_.check_pointers && bytes != 0 && !(memory_.IsDevice(to, bytes) && memory_.IsDevice(from, bytes))) {
        return Fail(DeviceCode::kWrongMemory, std::string(name) + ": a side is not device memory in use, or too short");
      }
    } else if (direction == Direction::kIn) {
      bad = CheckCopy(name, to, from, bytes, &kind);
    } else {
      bad = CheckCopy(name, from, to, bytes, &kind);
    }
    if (!bad.ok()) return bad;
    const bool pageable = kind == MemoryKind::kPageable && bytes != 0;
    if (pageable) {
      if (CaptureOf(*on)) return Fail(DeviceCode::kCaptureMode, std::string(name) + ": pageable memory in a capture");
      if (bad = Enter(DeviceCall::kPageableCopy); !bad.ok()) return bad;
    }
    const auto time = options_.costs.copy_latency + Nanoseconds{static_cast<int64_t>(double(bytes) / bytes_per_ns)};
    std::function<void()> body;
    if (bytes != 0) body = [to, from, bytes] { std::memcpy(to, from, bytes); };
    bad = Enqueue(*on,
                  std::make_shared<const SoftwareKernel>(
                      SoftwareKernel{name, time, std::move(body), {{from, bytes, false}, {to, bytes, true}}}),
                  true);
    if (!bad.ok() || !pageable) return bad;
    event = next_event_++;
    until = Mark(on->lane, event);
  }
  return Block(until, event);
}

DeviceStatus SoftwareDeviceImpl::CopyIn(void* to, const void* from, size_t bytes, engine::Stream stream,
                                        MemoryKind memory) {
  return Copy("CopyIn", to, from, bytes, stream, Direction::kIn, memory);
}
DeviceStatus SoftwareDeviceImpl::CopyOut(void* to, const void* from, size_t bytes, engine::Stream stream,
                                         MemoryKind memory) {
  return Copy("CopyOut", to, from, bytes, stream, Direction::kOut, memory);
}
DeviceStatus SoftwareDeviceImpl::CopyWithin(void* to, const void* from, size_t bytes, engine::Stream stream) {
  return Copy("CopyWithin", to, from, bytes, stream, Direction::kWithin, MemoryKind::kDevice);
}

DeviceStatus SoftwareDeviceImpl::Allocate(size_t bytes, engine::Stream stream, void** memory) {
  DeviceLock lock(mu_);
  *memory = nullptr;
  if (DeviceStatus bad = Enter(DeviceCall::kAllocate); !bad.ok()) return bad;
  StreamState* on = streams_.Find(stream.raw);
  if (!on) return BadStream("Allocate", stream);
  if (CaptureOf(*on)) return Fail(DeviceCode::kCaptureMode, "Allocate: the stream captures");
  if (bytes == 0) return {};
  bool from_driver = false;
  void* block = memory_.Allocate(bytes, on->lane, &from_driver);
  if (from_driver) {
    if (DeviceStatus bad = Enter(DeviceCall::kDriverAllocate); !bad.ok()) {
      if (block) memory_.Free(block, {});
      return bad;
    }
  }
  if (!block) {
    return Fail(DeviceCode::kOutOfMemory, "Allocate: " + std::to_string(bytes) + " bytes of a device that has " +
                                              std::to_string(options_.memory_bytes) + " in all");
  }
  if (observer()) observer()->OnAllocate(on->lane->id, block, bytes);
  *memory = block;
  return {};
}

DeviceStatus SoftwareDeviceImpl::Free(void* memory, engine::Stream stream) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kFree); !bad.ok()) return bad;
  StreamState* on = streams_.Find(stream.raw);
  if (!on) return BadStream("Free", stream);
  if (CaptureOf(*on)) return Fail(DeviceCode::kCaptureMode, "Free: the stream captures");
  if (!memory) return {};
  const size_t bytes = memory_.BlockBytes(memory);
  if (bytes == 0) return Fail(DeviceCode::kInvalidValue, "Free: not a block in use; freed twice, or never allocated");
  if (observer()) observer()->OnFree(on->lane->id, memory, bytes);
  if (options_.check_pointers) {  // whoever looks later sees that it is gone
    static constexpr int kGone = 0xdd;
    try {
      auto overwrite = std::make_shared<const SoftwareKernel>(
          SoftwareKernel{"Free", {}, [memory, bytes] { std::memset(memory, kGone, bytes); }, {}});
      Push(on->lane, {.work = std::move(overwrite), .observed = false});
    } catch (const std::bad_alloc&) {  // then a later reader finds the old bytes
    }
  }
  memory_.Free(memory, {on->lane, on->lane->issued});
  return {};
}

DeviceStatus SoftwareDeviceImpl::TrimPool(size_t keep) {
  DeviceLock lock(mu_);
  if (DeviceStatus lost = Lost(); !lost.ok()) return lost;
  memory_.Trim(keep);
  return {};
}

DeviceStatus SoftwareDeviceImpl::AllocatePinned(size_t bytes, void** memory) {
  DeviceLock lock(mu_);
  *memory = nullptr;
  if (DeviceStatus bad = Enter(DeviceCall::kAllocatePinned); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseInCapture("AllocatePinned"); !bad.ok()) return bad;
  if (bytes != 0) *memory = memory_.AllocatePinned(bytes);
  return {};
}

DeviceStatus SoftwareDeviceImpl::FreePinned(void* memory) {
  executor_->RunUntilIdle();  // copies may still be using it
  DeviceLock lock(mu_);
  DeviceStatus status = Enter(DeviceCall::kFreePinned);
  if (!status.ok() && !status.sticky()) return status;
  if (status.ok()) status = RefuseInCapture("FreePinned");
  if (status.ok() || status.sticky()) {
    if (memory && !memory_.FreePinned(memory) && status.ok()) {
      return Fail(DeviceCode::kInvalidValue, "FreePinned: not a block in use; freed twice, or never allocated");
    }
  }
  return status;
}

DeviceStatus SoftwareDeviceImpl::KindOf(const void* memory, MemoryKind* kind) {
  DeviceLock lock(mu_);
  if (DeviceStatus lost = Lost(); !lost.ok()) return lost;
  *kind = memory_.KindOf(memory);
  return {};
}

}  // namespace engine::detail
