#include "core/caller_pool.h"

#include <utility>

#include "core/core.h"

namespace engine::detail {

bool CallerPool::HasReady() const { return core_.pool(kCallerPool).HasReady(); }

void CallerPool::PassOn() {
  if (!used()) return;
  if (ThreadSlot* const slot = core_.slots().MineOrNull()) core_.EndOwnRun(*slot);
  if (HasReady()) Wake();  // mutant: driver_leaves_in_silence
}

bool CallerPool::Sleep(ParkedWaiter me, uint32_t expected, Clock::time_point deadline, bool drives) {
  if (deadline != kNever && Clock::now() >= deadline) return false;
  if (!drives) {
    FutexWait(*me.word, expected, deadline);
    return true;
  }
  {
    MutexLock lock(mu_);
    me.before = std::exchange(last_, &me);
    if (me.before) me.before->after = &me;
    me.listed = true;
    // The count comes first, then the look at the pool. Partner: Wake, whose caller queues first and then looks at the
    // count.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
  }
  HeavyFence();
  if (!HasReady()) FutexWait(*me.word, expected, deadline);
  MutexLock lock(mu_);
  if (me.listed) Unlist(me);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void CallerPool::Unlist(ParkedWaiter& waiter) {
  (waiter.after ? waiter.after->before : last_) = waiter.before;
  if (waiter.before) waiter.before->after = waiter.after;
  waiter.listed = false;
}

// Changes the word that a driver sleeps on and then wakes the driver, so that a sleep that has not begun ends at once.
void CallerPool::Wake() {
  used_.store(true, std::memory_order_relaxed);
  LightFence();
  if (sleepers_.load(std::memory_order_relaxed) == 0) return;
  MutexLock lock(mu_);
  while (last_) {
    ParkedWaiter& waiter = *last_;  // lives until we drop the lock
    Unlist(waiter);
    if (waiter.sequence) {
      waiter.word->fetch_add(1, std::memory_order_release);
    } else {
      uint32_t parked = WaitNode::kParked;
      if (!waiter.word->compare_exchange_strong(parked, WaitNode::kDrive, std::memory_order_acq_rel)) continue;
    }
    FutexWake(*waiter.word, kEveryone);  // mutant: dropped_driver_wake
    return;
  }
}

}  // namespace engine::detail
