// CallerPool: wakes the threads that run the ops of the caller pool, which has no workers: its ops are those of the policies
// naive and inline, and all ops of an engine with zero workers. They are run by threads that wait outside any op; such a thread
// *drives* the pool. Drivers are listed while they sleep, so that whoever queues an op there can wake one.
//
// Threads:   any.
// Ownership: a ParkedWaiter lies on its thread's stack.
// Fork:      made anew in the child, where no other thread sleeps.
#pragma once

#include "base/fork.h"
#include "base/sync.h"

namespace engine::detail {

class EngineCore;
struct ErrorRecord;

// What a waiting thread sleeps on. Lives in the closure of the wait op, whose block the waiter pins.
struct WaitNode {
  // kPending -> kParked by the waiter -> kDone by the completer, or kAbandoned by a waiter that gives up.
  // kParked -> kDrive: the waiter shall look at the caller pool.
  enum : uint32_t { kPending, kParked, kDrive, kDone, kAbandoned };
  std::atomic<uint32_t> word{kPending};
  ErrorRecord* error = nullptr;  // counted; published by the release of kDone
  // Sets a word that nobody abandons to kDone, and wakes its waiter. release: publishes what comes before. Partner: the
  // acquire loads of whoever waits (EngineCore::Park).
  static void End(std::atomic<uint32_t>& word) {
    if (word.exchange(kDone, std::memory_order_acq_rel) == kParked) FutexWake(word, 1);
  }
};

// A thread that sleeps outside any op, and so may drive the caller pool.
struct ParkedWaiter {
  std::atomic<uint32_t>* word;
  bool sequence;  // `word` is a counter, which a wake increments; otherwise it is the word of a WaitNode
  bool listed = false;
  ParkedWaiter* before = nullptr;  // in the list, which ends with the thread that went to sleep last
  ParkedWaiter* after = nullptr;
};

class CallerPool {
 public:
  CallerPool(EngineCore& core, bool used) : core_(core), used_(used) {}

  // Whether the pool may ever have had an op. relaxed: a thread that misses the first op looks again behind the fence
  // of its sleep.
  bool used() const { return used_.load(std::memory_order_relaxed); }
  void Wake() EXCLUDES(mu_);  // called when an op was queued: wakes a driver
  // Called by a driver that leaves, after its last sleep: wakes another one if ops are left, because a wake may have
  // been meant for this one.
  void PassOn() EXCLUDES(mu_);
  // Sleeps once while the word is `expected`, listed as a driver if `drives`. False at the deadline.
  bool Sleep(ParkedWaiter me, uint32_t expected, Clock::time_point deadline, bool drives) EXCLUDES(mu_);

  void AfterForkInChild(bool used) { Renew(*this, core_, used); }

 private:
  bool HasReady() const;
  void Unlist(ParkedWaiter& waiter) REQUIRES(mu_);

  EngineCore& core_;
  std::atomic<bool> used_;
  std::atomic<uint32_t> sleepers_{0};
  Mutex mu_;
  ParkedWaiter* last_ GUARDED_BY(mu_) = nullptr;
};

}  // namespace engine::detail
