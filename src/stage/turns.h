// Turns: lets one thread in at a time. A host may cut the wait for a turn into attempts, and Cancel ends it, because the
// thread that is in may be in a source that does not return.
#pragma once

#include <atomic>

#include "base/sync.h"
#include "engine/spi/stage_host.h"

namespace engine::detail {

class CAPABILITY("turn") Turns {
 public:
  // False: Cancel came before the turn.
  bool Enter(StageHost* host) ENGINE_TSA(try_acquire_capability(true)) NO_THREAD_SAFETY_ANALYSIS {
    bool entered = false;
    const auto attempt = [&](StageHost::Time until) { return Attempt(until, &entered); };
    if (!Attempt(StageHost::Time::min(), &entered)) StageHost::AwaitOn(host, attempt);
    return entered;
  }
  void Leave() RELEASE() NO_THREAD_SAFETY_ANALYSIS {
    // release: the next thread sees what this one did. Partner: the acquire in Attempt.
    if (word_.fetch_and(kOver, std::memory_order_release) & kAwaited) FutexWake(word_, 1);
  }
  // Those who wait give up, and nobody waits any more.
  void Cancel() {
    // relaxed: it orders nothing; the bit alone says that it is over.
    word_.fetch_or(kOver, std::memory_order_relaxed);
    FutexWake(word_, kEveryone);
  }

 private:
  static constexpr uint32_t kTaken = 1, kAwaited = 2, kOver = 4;

  // False: `until` came first.
  bool Attempt(StageHost::Time until, bool* entered) {
    uint32_t was = word_.load(std::memory_order_relaxed);  // relaxed: the exchange decides
    for (uint32_t others = 0;;) {
      if (!(was & kTaken)) {
        *entered = word_.compare_exchange_weak(was, was | kTaken | others, std::memory_order_acquire,
                                               std::memory_order_relaxed);  // acquire: partner of Leave
        if (*entered) return true;
        continue;
      }
      if (was & kOver) return true;
      if (!(was & kAwaited) && !word_.compare_exchange_weak(was, was | kAwaited, std::memory_order_relaxed)) continue;
      if (Clock::now() >= until) return false;
      others = kAwaited;  // more threads may wait than the one that is woken
      FutexWait(word_, was | kAwaited, until);
      was = word_.load(std::memory_order_relaxed);
    }
  }

  std::atomic<uint32_t> word_{
      0};  // kTaken: a thread is in; kAwaited: whoever leaves wakes one that waits; kOver: Cancel came
};

}  // namespace engine::detail
