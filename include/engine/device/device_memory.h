// DeviceMemory: a block of device memory, or of pinned host memory, from the engine's pool of that device.
//
// The device orders the reuse of blocks, not the host: a block that was given back goes to whoever asks next, behind
// the work that may still use it. The pool calls the driver only until it has as much as the program needs.
//   device memory   reuse on the lane of its last use costs nothing; another lane waits, on the device
//   pinned memory   the host writes to it, so it is reused only when the work that used it has ended
//
// Give a block back (destroy or Reset it) where its use ends:
//   in the body of a device op      it goes back behind what the op has issued so far
//   with the closure of an op       it goes back when the op has retired, without a wait
//   anywhere else on the host       it goes back behind all that has been issued on the device by then
// Ops that are pushed and not yet issued are not waited for: let such an op own the block, or give it back in an op
// behind it.
//
// Threads:   one handle is used by one thread at a time; handles are independent of each other.
// Ownership: unique. A block may outlive its engine.
// Errors:    DeviceError (kOutOfMemory) if the device has no memory even after the pool gave back what it could, and
//            then waited until the device had finished what was issued (except collectives, which may wait for this
//            very thread).
// Blocking:  giving pinned memory back to the driver waits for all work on the device. The pool does that only if
//            memory ran out, and never beside a communicator; and at the end of the engine. A pinned block that
//            outlives its engine goes back to the driver with its handle.
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
