// Small synchronization parts: an annotated mutex, futex waits, pauses, spins, prefetches, and counters of one writer.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/jitter.h"
#include "base/tuning.h"
#include "engine/timeout.h"

#if defined(__clang__)
#define ENGINE_TSA(x) __attribute__((x))
#else
#define ENGINE_TSA(x)
#endif
#define CAPABILITY(x) ENGINE_TSA(capability(x))
#define SCOPED_CAPABILITY ENGINE_TSA(scoped_lockable)
#define GUARDED_BY(x) ENGINE_TSA(guarded_by(x))
#define REQUIRES(...) ENGINE_TSA(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) ENGINE_TSA(acquire_capability(__VA_ARGS__))
#define RELEASE(...) ENGINE_TSA(release_capability(__VA_ARGS__))
#define EXCLUDES(...) ENGINE_TSA(locks_excluded(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS ENGINE_TSA(no_thread_safety_analysis)

namespace engine::detail {

inline void Pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class CAPABILITY("mutex") Mutex {
 public:
  void Lock() ACQUIRE() {
    Jitter();
    mu_.lock();
  }
  void Unlock() RELEASE() {
    mu_.unlock();
    Jitter();
  }
  // For sections of some nanoseconds: whoever has the lock drops it before this thread could have fallen asleep.
  void LockSoon() ACQUIRE() {
    for (uint32_t i = 0; i < tuning::kLockPauses; ++i) {
      if (mu_.try_lock()) return;
      Pause();
    }
    mu_.lock();
  }
  bool TryLock() ENGINE_TSA(try_acquire_capability(true)) { return mu_.try_lock(); }
  // Calls wait(std::unique_lock<std::mutex>&), for standard condition variables. The mutex is held before and after.
  template <class F>
  void WithNative(F&& wait) REQUIRES(this) {
    std::unique_lock<std::mutex> held(mu_, std::adopt_lock);
    wait(held);
    held.release();
  }

 private:
  std::mutex mu_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mu) ACQUIRE(mu) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() RELEASE() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

class SCOPED_CAPABILITY ShortLock {
 public:
  explicit ShortLock(Mutex& mu) ACQUIRE(mu) : mu_(mu) { mu_.LockSoon(); }
  ~ShortLock() RELEASE() { mu_.Unlock(); }
  ShortLock(const ShortLock&) = delete;

 private:
  Mutex& mu_;
};

// CondVar: for code that is not on the push path. It may wake early, so callers loop.
class CondVar {
 public:
  void Wait(Mutex& mu) REQUIRES(mu) {
    mu.WithNative([&](auto& held) { changed_.wait(held); });
  }
  void WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point until) REQUIRES(mu) {
    mu.WithNative([&](auto& held) { changed_.wait_until(held, until); });
  }
  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

using Clock = std::chrono::steady_clock;
inline constexpr Clock::time_point kNever = Clock::time_point::max();
inline int64_t NanosOf(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}
inline Clock::time_point After(Timeout timeout) {
  const auto now = Clock::now();
  return timeout.nanoseconds() > kNever - now ? kNever : now + timeout.nanoseconds();
}

// Sleeps while *word == expected, until a wake or the deadline. May return early, so callers loop.
inline void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, Clock::time_point deadline = kNever) {
  timespec ts;
  timespec* timeout = nullptr;
  if (deadline != kNever) {
    const int64_t ns = NanosOf(deadline);
    ts.tv_sec = ns / 1'000'000'000;
    ts.tv_nsec = ns % 1'000'000'000;
    timeout = &ts;
  }
  Jitter();
  // WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is steady_clock on Linux.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET_PRIVATE, expected, timeout, nullptr,
          FUTEX_BITSET_MATCH_ANY);
  Jitter();
}
inline void FutexWake(std::atomic<uint32_t>& word, int count) {
  Jitter();
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}
inline constexpr int kEveryone = 0x7fffffff;

// The cores on which a worker that looks for ops, and a thread that waits for one, spin. If both are on one core, they
// spin by turns.
struct SpinPlaces {
  // relaxed: hints, which only decide how to spend the time. Written only if the core changed, because both sides read
  // them.
  std::atomic<int> searcher{-1};
  std::atomic<int> waiter{-1};
  static void Note(std::atomic<int>& place) {
    if (const int here = sched_getcpu(); place.load(std::memory_order_relaxed) != here)
      place.store(here, std::memory_order_relaxed);
  }
};

// One round of a spin: a few pauses with a look after each; then other threads may run on this core. If the thread for
// which we wait is known to be on this core, they may at once. Returns true if a look was successful.
template <class Look>
bool SpinRound(uint32_t round, const std::atomic<int>& other, Look&& look) {
  const bool together = other.load(std::memory_order_relaxed) == sched_getcpu();
  for (uint32_t i = 0; i < tuning::kIdlePauses && !together; ++i) {
    Pause();
    if (look()) return true;
  }
  if (together || round >= tuning::kRoundsAlone) sched_yield();
  return look();
}

// The spin of a waiter. False: `most` has passed.
template <class Condition>
bool SpinUntil(Condition condition, std::chrono::nanoseconds most, SpinPlaces& places,
               Clock::time_point deadline = kNever) {
  if (condition()) return true;
  if (most.count() == 0) return false;
  SpinPlaces::Note(places.waiter);
  const auto until = std::min(Clock::now() + most, deadline);
  uint32_t round = 0;
  while (!SpinRound(round++, places.searcher, condition))
    if (Clock::now() >= until) return false;
  return true;
}

// Fetches a line that will be written: as owned, not as shared, so that the store does not wait once more.
inline void PrefetchToWrite(const void* at) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}
// Fetches the first `lines` lines of a block, at most three: an op's header, and its first accesses or its closure.
inline void PrefetchBlock(const void* block, uint32_t lines = 2) noexcept {
  // Computes with a number, because the block may be null. A prefetch of a wrong address does nothing.
  const auto at = reinterpret_cast<uintptr_t>(block);
  PrefetchToWrite(block);
  if (lines > 1) PrefetchToWrite(reinterpret_cast<const void*>(at + 64));
  if (lines > 2) PrefetchToWrite(reinterpret_cast<const void*>(at + 128));
}

// OwnedCounter: one thread writes it, any thread reads it, so no read-modify-write is needed. relaxed: readers add up
// snapshots; a reader that needs more says what orders it.
class OwnedCounter {
 public:
  void Add(uint64_t n = 1) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  // release: publishes what the count stands for. Partner: an acquire Read.
  void AddRelease(uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_release);
  }
  uint64_t Read() const { return value_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace engine::detail
