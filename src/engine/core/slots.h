// Slots: the ThreadSlots of one engine: which thread has which, and sums over all of them.
//
// Threads:   any. A thread gives its slot back when it ends; per_thread.h says what a later use does.
// Ownership: owns the slots. A thread that ends finds out through Liveness whether they still exist.
// Errors:    Mine and Take throw std::bad_alloc. Code that must not fail uses an EndSlot.
// Fork:      its lock is taken before the fork, so that no thread is taking a slot at that moment. The child has new
//            slots and a new id, so that the slots which thread-locals remember are those of no engine.
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

  ThreadSlot& Mine() {  // the calling thread's slot; made on its first call
    if (t_engine_id == id_.load(std::memory_order_relaxed)) [[likely]]
      return *t_slot;
    return Find();
  }
  ThreadSlot* MineOrNull() noexcept {  // null: there is no memory for one
    if (t_engine_id == id_.load(std::memory_order_relaxed)) [[likely]]
      return t_slot;
    return FindOrNull();
  }
  ThreadSlot* Take() EXCLUDES(mu_);
  void Return(ThreadSlot* slot) EXCLUDES(mu_);

  // For the engine's own threads, whose slot is that of the worker's role which they play.
  uint64_t id() const { return id_.load(std::memory_order_relaxed); }
  void Remember(ThreadSlot* slot) noexcept;
  static void Forget(uint64_t id);

  // Counts only grow, and those of ends are read first, so a difference is never too small. It is exact while nobody
  // pushes or completes.
  bool Drained(uint8_t parity) EXCLUDES(mu_);  // whether every op of that epoch parity (epochs.h) has ended
  uint64_t Pending() EXCLUDES(mu_);
  uint64_t Completed() EXCLUDES(mu_);
  bool PushInProgress() EXCLUDES(mu_);
  // Of ThreadSlot::own_runs. `count` changes when one begins or ends.
  struct Runs {
    uint64_t count = 0;
    bool under_way = false;
  };
  Runs OwnRuns() EXCLUDES(mu_);
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
  ThreadSlot* FindOrNull() noexcept;

  std::atomic<uint64_t> id_;  // names this engine in the thread-locals
  EngineCore& core_;
  Arena& ops_;
  Arena& vars_;
  Arena& completions_;
  Mutex mu_;
  std::deque<std::unique_ptr<ThreadSlot>> slots_ GUARDED_BY(mu_);
  Mutex spare_mu_;  // taken while a thread has the spare slot
  ThreadSlot* const spare_;
  // Shared with the threads, because those that end after the engine look there.
  std::shared_ptr<Liveness> liveness_;
};

// Lets a thread that ends give its slot back only to an engine that is still there.
struct Liveness {
  Mutex mu;
  Slots* slots GUARDED_BY(mu);
};

// EndSlot: the calling thread's slot, for what must not fail: the end of an op, a release, a deletion. A thread that
// has no slot, and can get none because there is no memory, gets the engine's spare slot, which one thread has at a
// time.
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
