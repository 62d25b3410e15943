// Slots: which ThreadSlot each thread has in one engine, and what is summed over all of them.
//
// Threads:   any. A thread's slot is given back when the thread ends; see per_thread.h for what comes after that.
// Ownership: owns the slots. A thread that ends asks through Liveness whether they are still there.
// Errors:    Mine and Take throw std::bad_alloc. What must not fail takes an EndSlot.
// Fork:      its lock is taken before, so that no thread is in the middle of taking a slot. The child has new slots and a
//            new id, so that every thread-local that leads to the parent's leads nowhere.
#pragma once

#include <deque>
#include <memory>

#include "base/fork.h"
#include "base/sync.h"
#include "sched/thread_slot.h"

namespace engine::detail {

struct Liveness;

class Slots {
 public:
  Slots(EngineCore& core, Arena& ops, Arena& vars, Arena& completions);
  ~Slots();

  ThreadSlot& Mine() {  // of the calling thread; made on its first call
    if (t_engine_id == id_.load(std::memory_order_relaxed)) [[likely]]
      return *t_slot;
    return Find();
  }
  bool HasMine() noexcept;  // or gets one now
  ThreadSlot* Take() EXCLUDES(mu_);
  void Return(ThreadSlot* slot) EXCLUDES(mu_);

  // Of a thread of the engine: its slot is a worker's role's, or its own once it has lent the role.
  uint64_t id() const { return id_.load(std::memory_order_relaxed); }
  void Remember(ThreadSlot* slot) noexcept;
  static void Forget(uint64_t id);

  // Counts only grow, and those of ends are read first, so a difference is never too small. Exact when nobody pushes or
  // completes.
  bool Drained(uint8_t parity) EXCLUDES(mu_);  // every op of that epoch (epochs.h) has ended
  uint64_t Pending() EXCLUDES(mu_);
  uint64_t Completed() EXCLUDES(mu_);
  bool PushInProgress() EXCLUDES(mu_);
  template <class F>
  void ForEach(F&& f) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (const auto& slot : slots_) f(*slot);
  }

  void BeforeFork() ACQUIRE(mu_) { mu_.Lock(); }
  void AfterForkInParent() RELEASE(mu_) { mu_.Unlock(); }
  void AfterForkInChild() NO_THREAD_SAFETY_ANALYSIS;

 private:
  friend class EndSlot;
  ThreadSlot& Find();

  std::atomic<uint64_t> id_;  // names this engine in threads' tables
  EngineCore& core_;
  Arena& ops_;
  Arena& vars_;
  Arena& completions_;
  Mutex mu_;
  std::deque<std::unique_ptr<ThreadSlot>> slots_ GUARDED_BY(mu_);
  Mutex spare_mu_;  // held while a thread has the spare slot
  ThreadSlot* const spare_;
  // Never destroyed before the slots: threads that end after the engine look there.
  std::shared_ptr<Liveness> liveness_;
};

// Lets a thread that ends give its slot back only to an engine that is still there.
struct Liveness {
  Mutex mu;
  Slots* slots GUARDED_BY(mu);
};

// This thread's slot for what must not fail: the end of an op, a release, a deletion. On a thread that has none yet, and gets
// none for want of memory or threads, the engine's spare one, which one thread has at a time.
class EndSlot {
 public:
  explicit EndSlot(Slots& slots) noexcept;
  ~EndSlot();
  EndSlot(const EndSlot&) = delete;
  ThreadSlot& operator*() const { return *slot_; }

 private:
  Slots& slots_;
  ThreadSlot* slot_;
  bool spare_ = false;
};

}  // namespace engine::detail
