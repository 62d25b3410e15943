// ByteBound: how many bytes pending calls of ops keep, and the wait of a call that would make them too many.
//
// Threads:   the GIL is held, except in Release and while Await sleeps.
// Ownership: an engine's state and its pending calls share it, because calls may outlive the state.
// Order:     a soft bound, as max_pending is: a call that finds no room waits as long as counted calls run, until a good part of
//            the bound is free again or few calls are left. When none has run for a tenth of a second it goes on, because they
//            may wait for this very thread. A call that is larger than the bound goes on when no other is pending.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace engine_python {

class ByteBound {
 public:
  // The bytes of one call, until it has ended or its op has been dropped.
  class Counted {
   public:
    Counted() = default;
    Counted(std::shared_ptr<ByteBound> bound, uint64_t bytes) : bound_(std::move(bound)), bytes_(bytes) {
      // relaxed: calls are made with the GIL, which orders the additions and the calls that look at the sum.
      if (!bound_) return;
      bound_->pending_.fetch_add(bytes_, std::memory_order_relaxed);
      bound_->calls_.fetch_add(1, std::memory_order_relaxed);
    }
    Counted(Counted&& other) noexcept
        : bound_(std::move(other.bound_)), bytes_(other.bytes_), running_(other.running_) {}
    Counted& operator=(Counted&& other) noexcept {
      std::swap(bound_, other.bound_);
      std::swap(bytes_, other.bytes_);
      std::swap(running_, other.running_);
      return *this;
    }
    ~Counted() { Release(); }
    bool counts() const { return bound_ != nullptr; }
    void Begin() noexcept {  // its body runs. relaxed: as in Release
      if (bound_ && !std::exchange(running_, true)) bound_->running_.fetch_add(1, std::memory_order_relaxed);
    }
    void Release() noexcept;

   private:
    std::shared_ptr<ByteBound> bound_;
    uint64_t bytes_ = 0;
    bool running_ = false;
  };

  explicit ByteBound(uint64_t most) : most_(most) { sem_init(&room_, 0, 0); }
  ~ByteBound() { sem_destroy(&room_); }
  ByteBound(const ByteBound&) = delete;

  uint64_t most() const { return most_; }  // 0: there is no bound
  void SetMost(uint64_t most) { most_ = most; }
  uint64_t pending() const { return pending_.load(std::memory_order_relaxed); }
  // Waits until `bytes` more fit. Gives the GIL up; Ctrl-C interrupts it on the main thread. `workers`: of the engine.
  void Await(uint64_t bytes, size_t workers);

 private:
  // Whether a call that sleeps, for `bytes`, shall go on.
  bool Refill(uint64_t bytes, size_t workers) const;

  uint64_t most_;
  std::atomic<uint64_t> pending_{0};  // bytes
  std::atomic<uint64_t> calls_{0};    // that are pending
  std::atomic<uint64_t> ended_{0};    // calls
  std::atomic<uint64_t> running_{0};  // calls
  std::atomic<uint32_t> waiters_{0};  // threads in Await
  std::atomic<uint64_t> needed_{0};   // what the waiter needs that needs least
  std::atomic<size_t> workers_{0};    // of the engine; the waiters have set it
  // Posted when waiters should look again. A semaphore, because it has no lock that a fork could find taken.
  sem_t room_;
};

}  // namespace engine_python
