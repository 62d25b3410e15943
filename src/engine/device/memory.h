// MemoryPool: blocks of one kind (device, or pinned) of one device, by size class, each with the points it is free behind.
//
// Size classes: four to a power of two from 512 bytes, so at most a quarter is wasted. Free blocks of a class are kept in
// the order in which they were given back; taken is the newest that asks for no wait, else, of device memory, the oldest.
//
// Threads:   any. Lock order: mu_ is taken alone; waits are issued and the driver is called without it.
// Ownership: shared by its blocks' handles, so that these may outlive the engine; Close gives the rest back.
// Errors:    giving back and Close need no memory. What a device that has none for a call refuses to take back, stays with it.
#pragma once

#include <map>
#include <memory>

#include "base/fork.h"
#include "device/devices.h"
#include "engine/device/device_memory.h"

namespace engine::detail {

struct MemoryBlock {
  void* data = nullptr;
  size_t bytes = 0;
  // While it is free:
  WaitPoints behind;
  MemoryBlock *older = nullptr, *newer = nullptr;  // its neighbours in FreeBlocks
};

// The free blocks of a class, linked through themselves. The pool's lock guards it.
struct FreeBlocks {
  void Append(MemoryBlock* block) noexcept;
  void Remove(MemoryBlock* block) noexcept;
  MemoryBlock *oldest = nullptr, *newest = nullptr;
};

class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  MemoryPool(Devices& devices, DeviceState& device, bool pinned)
      : devices_(&devices), state_(&device), device_(device.device), pinned_(pinned) {}

  // For the op whose work goes to `on`. Throws DeviceError.
  DeviceMemory Take(size_t bytes, DeviceLane& on) EXCLUDES(mu_);
  void Give(MemoryBlock* block) noexcept EXCLUDES(mu_);
  void Close(Stream stream) EXCLUDES(mu_);
  // Bytes that it got from the driver and has not given back.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  static size_t ClassOf(size_t bytes);

 private:
  MemoryBlock* Find(size_t size, DeviceLane& on) EXCLUDES(mu_);
  DeviceStatus Create(size_t size, Stream stream, MemoryBlock* block);
  void Free(MemoryBlock& block, Stream stream);  // what a device throws, goes on
  void Destroy(MemoryBlock* block, Stream stream) noexcept;
  void DropFree(Stream stream) EXCLUDES(mu_);

  Mutex mu_;
  // By size. A class is here from the first time that somebody asks for its size, and so before any block is given back.
  std::map<size_t, FreeBlocks> free_ GUARDED_BY(mu_);
  Devices* devices_ GUARDED_BY(mu_);  // null once closed
  bool lost_ = false;                 // the device was gone when it was closed
  DeviceState* const state_;          // looked at while open only
  const std::shared_ptr<Device> device_;
  const bool pinned_;
  const uint32_t forks_ = Forks();  // in a fork's child the device is the parent's
  std::atomic<size_t> bytes_{0};    // relaxed: a statistic
};

}  // namespace engine::detail
