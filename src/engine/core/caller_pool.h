// CallerPool: who runs the ops of the pool that has no workers (naive ops, and everything with zero workers): threads that
// wait outside any op. They are listed while they sleep, so that whoever posts an op there can wake one.
//
// Threads: any. Ownership: a ParkedWaiter is on its thread's stack.
// Fork:    made anew in the child; whoever slept is not there.
#pragma once

#include "base/fork.h"
#include "base/sync.h"

namespace engine::detail {

class EngineCore;
struct ErrorRecord;

// What a waiting thread sleeps on. Lives in the closure of the wait op, whose block the waiter pins.
struct WaitNode {
  // 0 pending -> (waiter) kParked -> (completer) kDone; (waiter gives up) kAbandoned. kDrive: look at the caller pool.
  enum : uint32_t { kPending, kParked, kDrive, kDone, kAbandoned };
  std::atomic<uint32_t> word{kPending};
  ErrorRecord* error = nullptr;  // counted; published by the release of kDone
};

// A thread that sleeps outside any op and can therefore drive the caller pool. On its stack.
struct ParkedWaiter {
  std::atomic<uint32_t>* word;
  bool sequence;  // a sequence word, to be moved; else a WaitNode's
  bool listed = false;
  ParkedWaiter* before = nullptr;  // in the list, whose end is the last that went to sleep
  ParkedWaiter* after = nullptr;
};

class CallerPool {
 public:
  CallerPool(EngineCore& core, bool used) : core_(core), used_(used) {}

  // Whether an op may ever have been there. relaxed: who misses the first one looks again behind the fence of its sleep.
  bool used() const { return used_.load(std::memory_order_relaxed); }
  void Wake() EXCLUDES(mu_);  // an op was posted
  // A thread that could drive goes away: a wake that was meant for it goes to another. Asked behind its last sleep, in which
  // the pool may have been used for the first time.
  void PassOn() EXCLUDES(mu_);
  // One sleep while the word is `expected`, listed as a driver meanwhile if `drives`. False at the deadline.
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
