// Epochs: decides which pushes a WaitAll waits for, and when they have all ended.
//
// Each op has the parity of the epoch in which it was pushed. Its pusher's slot counts it as pushed, its completer's
// slot as completed. WaitAll waits until all epochs up to the present one are over. It first waits for the epoch
// before, if that still runs; then it flips, so that later pushes belong to the next epoch and cannot delay it. At most
// two epochs are alive, so a parity names them. A push that read the parity just before a flip may count itself after
// that parity was seen drained. It overlaps that WaitAll, which need not wait for it; a later WaitAll waits for both
// parities before it flips. Concurrent calls share flips.
//
// No lost wake: a waiter announces the parity that it awaits, calls HeavyFence(), and sums the counts. A completer
// counts, calls LightFence(), and looks at Awaited(). One of the two sees the other. The completer sums, too, when the
// op that it runs next is of another epoch, and notifies the waiter if the epoch is over. A worker, and a WaitAll that
// drives the caller pool, do so only when their queue is empty, or before they sleep or leave, because an op of that
// epoch that is still queued leads to a look later. Sums are made under a lock, so the last completer that comes there
// sees the counts of all. So a waiter is woken once for an epoch, even if ops of the epoch push later ones, which
// run in between.
//
// Threads: any.
// Fork:    the child goes on with the epoch of the parent; nothing is pending in it there.
#pragma once

#include "base/fork.h"
#include "base/sync.h"

namespace engine::detail {

class Slots;

class Epochs {
 public:
  explicit Epochs(Slots& slots, uint64_t present = 0)
      : parity_(present & 1), slots_(slots), present_(present), over_(present) {}

  // relaxed: a push that overlaps a flip may belong to either epoch.
  uint8_t parity() const { return parity_.load(std::memory_order_relaxed); }
  // relaxed: read behind the LightFence of a completer or a push. Partner: the HeavyFence in Over.
  bool Awaited(uint8_t parity) const { return awaited_.load(std::memory_order_relaxed) == 1u + parity; }
  bool AnyAwaited() const { return awaited_.load(std::memory_order_relaxed) != 0; }
  // For a completer of the awaited epoch: wakes the waiters if no op of it is pending.
  void NoteIfOver(uint8_t parity);
  // The same, for whoever does not know which epoch is awaited.
  void NoteIfAwaitedIsOver() {
    // relaxed, as in Awaited
    if (const uint32_t awaited = awaited_.load(std::memory_order_relaxed))
      NoteIfOver(static_cast<uint8_t>(awaited - 1));
  }

  uint64_t present() const EXCLUDES(mu_);
  // Whether all epochs up to `last` are over; flips if needed. If they are not, `awaited` gets the parity to wait for.
  bool Over(uint64_t last, uint8_t* awaited) EXCLUDES(mu_);
  // To sleep until the next Note: read word(), call Over, and then Sleep with that value.
  uint32_t word() const { return changes_.load(std::memory_order_acquire); }
  template <class F>
  bool Sleep(F&& sleep) {
    // seq_cst: counted before the sleep looks at the word. Partner: Note, which changes the word first and then looks
    // at the count.
    sleepers_.fetch_add(1);
    const bool in_time = sleep(changes_);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return in_time;
  }

  void AfterForkInChild() NO_THREAD_SAFETY_ANALYSIS { Renew(*this, slots_, present_); }

 private:
  void Note();  // has the waiters look again

  // Read by every op.
  std::atomic<uint8_t> parity_;
  std::atomic<uint32_t> awaited_{0};  // 1 + parity; 0: none

  alignas(64) Slots& slots_;
  mutable Mutex mu_;
  uint64_t present_ GUARDED_BY(mu_);
  uint64_t over_ GUARDED_BY(mu_);     // all epochs below this one are over
  std::atomic<uint32_t> changes_{0};  // futex word
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace engine::detail
