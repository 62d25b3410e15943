// Epochs: which pushes a WaitAll waits for.
//
// Each op carries the parity of the epoch that it was pushed in, and is counted by its pusher's slot and by its
// completer's. WaitAll needs all epochs up to the present one to be over. It waits for the one before, if that still
// runs, then flips: later pushes fall into the next epoch and cannot hold it up. At most two epochs are alive, so a
// parity is enough. A push that read the epoch just before a flip may be counted under its parity after that parity was
// seen drained. It overlaps that WaitAll, so either is right there; a later one waits for both parities before it flips.
// Concurrent calls share flips.
//
// Lost wakes: a waiter announces the parity that it awaits, HeavyFence(), sums. A completer counts, LightFence(), looks
// at Awaited(). It tells the waiter when the op that it runs next is not of that epoch, a worker also when its queue is
// empty, and before it sleeps; an op of the epoch that is still to run on some worker will tell later itself. So a
// waiter is woken for a run of ops, and not for each of them.
//
// Threads: any. Fork: the child goes on with the epoch of the parent, in which nothing is pending there.
#pragma once

#include "base/fork.h"
#include "base/sync.h"

namespace engine::detail {

class Slots;

class Epochs {
 public:
  explicit Epochs(Slots& slots, uint64_t present = 0)
      : parity_(present & 1), slots_(slots), present_(present), over_(present) {}

  // relaxed: which of two epochs an overlapping push belongs to is free.
  uint8_t parity() const { return parity_.load(std::memory_order_relaxed); }
  // relaxed: behind the LightFence of a completer, or of a push.
  bool Awaited(uint8_t parity) const { return awaited_.load(std::memory_order_relaxed) == 1u + parity; }
  bool AnyAwaited() const { return awaited_.load(std::memory_order_relaxed) != 0; }
  void Note();  // a completer met the epoch that is awaited

  uint64_t present() const EXCLUDES(mu_);
  // Whether all epochs up to `last` are over; flips where that is needed. If not, `awaited`: the parity to wait for.
  bool Over(uint64_t last, uint8_t* awaited) EXCLUDES(mu_);
  // For a sleep until the next Note: read the word first, look whether all is over, sleep(word).
  uint32_t word() const { return changes_.load(std::memory_order_acquire); }
  template <class F>
  bool Sleep(F&& sleep) {
    // seq_cst, before the sleep looks at the word. Partner: Note, which changes the word before it looks at the count.
    sleepers_.fetch_add(1);
    const bool in_time = sleep(changes_);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return in_time;
  }

  void AfterForkInChild() NO_THREAD_SAFETY_ANALYSIS { Renew(*this, slots_, present_); }

 private:
  // Looked at by every op.
  std::atomic<uint8_t> parity_;
  std::atomic<uint32_t> awaited_{0};  // 1 + parity; 0: none

  alignas(64) Slots& slots_;
  mutable Mutex mu_;
  uint64_t present_ GUARDED_BY(mu_);
  uint64_t over_ GUARDED_BY(mu_);     // epochs below are over
  std::atomic<uint32_t> changes_{0};  // futex word
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace engine::detail
