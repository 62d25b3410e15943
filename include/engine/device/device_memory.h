// DeviceMemory: a block of device memory, or of pinned host memory, from the engine's pool of that device.
//
// Ordered like work, not by the host: a block that is given back is taken again by whoever asks next, behind the work that
// may still use it. Taking and giving back call the driver only until the pool has what the program needs.
//   device memory   reuse on the lane of its last use costs nothing; on another lane that lane waits, on the device
//   pinned memory   the host writes to it, so it is taken again only when the work that used it has ended
//
// Give a block back (destroy or Reset it) where its use ends:
//   in the body of a device op      behind what the op has issued so far
//   with the closure of an op       when the op has retired, and at once
//   anywhere else on the host       behind all that has been issued on the device by then
// What is pushed but not issued yet does not count: let the op own the block, or give it back in an op behind it.
//
// Threads:   a handle is used by one thread at a time; handles are independent.
// Ownership: unique. A block may outlive its engine.
// Errors:    DeviceError (kOutOfMemory) when the device has no memory after the pool gave back what it could, and then
//            had the device finish what was issued (collectives excepted: they may wait for whoever asks).
// Blocking:  pinned memory that goes back to the driver waits for all work on the device. The pool gives it back only where
//            memory ran out, and never beside a communicator; and when the engine goes. A pinned block that outlives its
//            engine goes back with its handle.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace engine {

namespace detail {
class MemoryPool;
struct MemoryBlock;
}  // namespace detail

class DeviceMemory {
 public:
  DeviceMemory() noexcept = default;
  DeviceMemory(DeviceMemory&& other) noexcept
      : pool_(std::move(other.pool_)), block_(std::exchange(other.block_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    Reset();
    pool_ = std::move(other.pool_);
    block_ = std::exchange(other.block_, nullptr);
    return *this;
  }
  ~DeviceMemory() { Reset(); }
  void Reset() noexcept;

  void* data() const noexcept;    // null when empty
  size_t bytes() const noexcept;  // at least what was asked for
  explicit operator bool() const noexcept { return block_ != nullptr; }

 private:
  friend class detail::MemoryPool;
  std::shared_ptr<detail::MemoryPool> pool_;
  detail::MemoryBlock* block_ = nullptr;
};

}  // namespace engine
