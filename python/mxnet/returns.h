// Returns: functions that have run, on their way back to a thread that pushes.
//
// A function of MXNet owns a dozen blocks of memory, which the thread that pushes takes from the allocator. If the worker that ran it gave
// them back, both threads would meet in the allocator's lock at each block, and sleep there. So the worker hands the function
// over, and whoever pushes next destroys it, as MXNet's naive engine does.
//
// Nothing is kept for long: behind a wait of the thread that pushes, the functions of all ops that it waited for are gone; and
// once all that was pushed has run, so is everything. In between there are at most kMost, and none more while the thread waits.
//
// Threads:   all functions on any thread, without locks.
// Ownership: owns what was handed over.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "function.h"

namespace engine_mxnet {

class Returns {
 public:
  static constexpr uint32_t kMost = 32;  // a power of two: numbers wrap around

  // A function will be pushed.
  static void Expect() noexcept { expected_.fetch_add(1, std::memory_order_relaxed); }
  // One that was expected is not called any more. It is destroyed here if nobody pushes, or there is no room.
  static void Give(abi::Remains function) noexcept;
  // A thread is about to push: destroys what is there.
  static void Push() noexcept {
    if (!pushing_.load(std::memory_order_relaxed)) [[unlikely]]
      pushing_.store(true, std::memory_order_relaxed);
    DestroyAll();
  }
  // While it lives, the thread that pushes waits.
  class Pause {
   public:
    Pause() noexcept {
      pushing_.store(false, std::memory_order_relaxed);
      DestroyAll();
    }
    ~Pause() { DestroyAll(); }
    Pause(const Pause&) = delete;
  };

 private:
  // A queue of many producers and many consumers, as D. Vyukov's: a place is free for number n if its turn is n, and taken if that is n + 1.
  struct Place {
    std::atomic<uint32_t> turn;
    abi::Remains function;
  };
  struct Queue {
    Queue() noexcept {
      for (uint32_t i = 0; i < kMost; ++i) places[i].turn.store(i, std::memory_order_relaxed);
    }
    Place places[kMost];
    alignas(64) std::atomic<uint32_t> given = 0;
    alignas(64) std::atomic<uint32_t> taken = 0;
  };
  static Queue& queue() noexcept;
  static bool TryGive(abi::Remains& function) noexcept;
  static bool TryTake(abi::Remains& function) noexcept;
  static void DestroyAll() noexcept;

  // Functions that were pushed and not yet given.
  alignas(64) static inline constinit std::atomic<uint64_t> expected_ = 0;
  // Whether a thread will come by. relaxed: if it goes on to wait, it looks once more behind the wait.
  alignas(64) static inline constinit std::atomic<bool> pushing_ = false;
};

// A function of MXNet that returns to a thread that pushes when it is destroyed.
template <class Fn>
class Returning {
 public:
  explicit Returning(Fn&& fn) noexcept : fn_(std::move(fn)) {
    if (fn_) Returns::Expect();
  }
  Returning(Returning&&) noexcept = default;
  ~Returning() {
    if (fn_) Returns::Give(fn_.Leave());
  }
  const Fn& operator*() const noexcept { return fn_; }

 private:
  Fn fn_;
};

}  // namespace engine_mxnet
