// ByteBound: how many bytes pending calls of ops hold, and the wait of a push that would make them too many.
//
// Threads:   the GIL is held, except in Release.
// Ownership: an engine's state and its pending calls share it, because calls may outlive the state.
// Order:     a soft bound, as max_pending is: a call waits as long as counted calls run, and gives up when none has run for a
//            tenth of a second, because they may wait for this very thread. A call that is larger than the bound goes when it
//            is the only one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace engine_python {

class ByteBound {
 public:
  // The bytes of one call, until it has ended or its op has been dropped.
  class Held {
   public:
    Held() = default;
    Held(std::shared_ptr<ByteBound> bound, uint64_t bytes) : bound_(std::move(bound)), bytes_(bytes) {
      // relaxed: a count; the GIL orders those who wait for it.
      if (bound_) bound_->pending_.fetch_add(bytes_, std::memory_order_relaxed);
    }
    Held(Held&& other) noexcept : bound_(std::move(other.bound_)), bytes_(other.bytes_), running_(other.running_) {}
    Held& operator=(Held&& other) noexcept {
      std::swap(bound_, other.bound_);
      std::swap(bytes_, other.bytes_);
      std::swap(running_, other.running_);
      return *this;
    }
    ~Held() { Release(); }
    bool counts() const { return bound_ != nullptr; }
    void Begin() noexcept {  // its body runs
      if (bound_ && !std::exchange(running_, true)) bound_->running_.fetch_add(1, std::memory_order_relaxed);
    }
    void Release() noexcept {
      if (!bound_) return;
      if (running_) bound_->running_.fetch_sub(1, std::memory_order_relaxed);
      bound_->pending_.fetch_sub(bytes_, std::memory_order_relaxed);
      bound_->ended_.fetch_add(1, std::memory_order_relaxed);
      bound_.reset();
    }

   private:
    std::shared_ptr<ByteBound> bound_;
    uint64_t bytes_ = 0;
    bool running_ = false;
  };

  uint64_t most() const { return most_; }  // 0: there is no bound
  void SetMost(uint64_t most) { most_ = most; }
  uint64_t pending() const { return pending_.load(std::memory_order_relaxed); }
  // Waits until `bytes` more fit. Gives the GIL up; Ctrl-C interrupts it on the main thread.
  void Await(uint64_t bytes) const;

 private:
  uint64_t most_ = 0;
  std::atomic<uint64_t> pending_{0};
  std::atomic<uint64_t> ended_{0};
  std::atomic<uint64_t> running_{0};
};

}  // namespace engine_python
