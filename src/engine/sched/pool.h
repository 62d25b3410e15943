// Pool: the ready ops of one placement, and the workers that run them; how workers sleep and are woken.
//
// Sleeping: a worker that finds no op announces that it sleeps, calls HeavyFence(), looks once more, and sleeps.
// Whoever posts an op publishes it, calls LightFence(), and looks for sleepers. One of the two sees the other, so no
// wake is lost. A post wakes a sleeper only if no worker is searching. A searcher finds the op; if it misses it, it
// finds the op in its last look after the announcement. A searcher that finds an op and leaves more behind wakes the
// next worker.
// Tiny ops: if ops take less time than waking a worker for them saves, one awake worker is faster than two. Workers
// measure the mean time of some ops now and then. While it is tiny, posts wake nobody as long as somebody is awake, and
// all workers but one go to sleep. One of the sleepers, the sentinel, looks again after a moment: if the awake workers
// have completed nothing since, an op was long after all, and the tiny regime ends. If nobody is awake, a post always
// wakes a worker.
// tests/checker/sleep_wake_test.cc runs a model of this protocol through every interleaving.
//
// Threads: any thread may post, with its own slot; Next is called by the worker's thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/asymmetric_fence.h"
#include "base/intra_op.h"
#include "base/sleeper.h"
#include "sched/thread_slot.h"

namespace engine::detail {

class Pool;

// Worker: a role, which has a queue, a slot and an index. A thread plays it, and may lend it to a stand-in thread.
struct alignas(64) Worker {
  Pool* pool = nullptr;
  int index = 0;
  ThreadSlot* slot = nullptr;
  Name name;                               // "cpu/0"; interned, because a Trace may outlive the engine
  bool played = false;                     // some thread plays it; under the lock of Pools
  uint32_t turn = 0;                       // where its next look for ops starts
  bool oldest_first = false;               // whether its last fair look began with its own queue
  bool doubts = false;                     // the last mean was not tiny, so the next one decides whether ops still are
  std::chrono::nanoseconds searched{0};    // time spent searching since the last mean; it counts for no op
  struct DeviceLane* last_lane = nullptr;  // for a worker that issues to a device: the lane to which it issued last
  uint32_t lanes = 0;                      // and the lanes that it issued to since it slept, a bit each
  bool turn_over = false;  // the next op goes to the queue instead of running at once, so that others have a turn
  // Futex word: 0 awake, 1 asleep. Its thread sets it to 1 under Pool::mu_; whoever wakes the worker sets it to 0.
  std::atomic<uint32_t> asleep{0};
  Sleeper sleeper;  // under Pool::mu_, but for ComeBack after the wake
  OwnedCounter sleeps;
};

// PoolHost: what a pool's workers report to the engine.
class PoolHost {
 public:
  // Notifies WaitAll of the ends of the thread's last ops, unless its next op is of the same epoch.
  virtual void DeliverDrainNote(ThreadSlot& slot, const OpRecord* next) = 0;
  virtual void NoteIdle() = 0;                      // a worker is about to sleep
  virtual void NoteIssuerIdle(Worker& worker) = 0;  // the same, of a worker that has issued to lanes
  SpinPlaces& spin_places() { return spin_places_; }

 protected:
  ~PoolHost() = default;
  SpinPlaces spin_places_;
};

// Whether a woken worker is to run on another processor than its waker, because the waker has work to do meanwhile. kIfOften:
// the waker may itself be about to wait, as a thread that pushes often is. Then the worker starts soonest on the waker's
// processor, because another one may be in a deep sleep. But if such wakes follow each other closely, another one is better.
enum class Beside : uint8_t { kNo, kIfOften, kYes };

class Pool {
 public:
  Pool(PoolHost& host, uint8_t index, PoolOptions options, int intra_op_threads, std::chrono::nanoseconds spin);
  ~Pool();

  // Puts a ready op into the slot's queue, and wakes nobody. Never fails: if there is no memory for the queue, the op
  // goes into a list of the pool.
  void Put(ThreadSlot& slot, OpRecord* op) {
    CheckState(op, Bit(OpState::kReady), "an op is queued that is not ready");
    const uint32_t bit = 1u << op->extra.level;
    if (!(levels_used_.load(std::memory_order_relaxed) & bit)) [[unlikely]]
      levels_used_.fetch_or(bit, std::memory_order_relaxed);
    ReadyQueue* const queue = slot.queues[index_].get();
    if (!queue || !queue->level[op->extra.level].TryPush(op)) [[unlikely]]
      PutSlow(slot, op);
  }
  // Makes sure that a worker will look at what was Put. One call serves several Puts.
  void Notify(Beside beside = Beside::kNo) {
    LightFence();
    const uint32_t asleep = sleepers_.load(std::memory_order_relaxed);
    if (asleep == 0) return;
    if (tiny_.load(std::memory_order_relaxed) && asleep < workers_.size()) return;
    // A searcher counts only if it must see what was put. Partner: the seq_cst subtraction in Next.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (searchers_.load(std::memory_order_relaxed) == 0) WakeOne(beside);
  }

  // Waits for the next op for `worker` and returns it; null when the pool stops. `fair`: looks at other threads' queues
  // first.
  OpRecord* Next(Worker& worker, bool fair);
  // Reports how long `ops` ops of a worker took, overhead included, searches excluded. Returns true if the worker
  // should sleep (Retire).
  bool NoteMean(Worker& worker, std::chrono::nanoseconds took, uint32_t ops);
  // Sends the worker to sleep, even if there is work, if somebody else is awake to do it.
  void Retire(Worker& worker);
  // Takes back an op that this slot's thread has Put, if no worker has taken it yet and nothing older lies before it.
  bool TakeBack(ThreadSlot& slot, const OpRecord* op, uint8_t level) {
    ReadyQueue* const queue = slot.queues[index_].get();
    return queue && queue->level[level].TakeBack(op);
  }
  // An op for a thread that is no worker, if one can be taken without blocking; else null. Only of a pool that has no
  // workers, so that the owner of no queue pops.
  OpRecord* TryTake();
  // The first test answers for a pool into which nothing was ever put: Put sets the level's bit before all else.
  bool HasReady() const { return levels_used_.load(std::memory_order_acquire) != 0 && FindReady(); }
  // Whether a worker sleeps or searches. relaxed: a stale answer costs a moment.
  bool WantsWork() const {
    return (sleepers_.load(std::memory_order_relaxed) | searchers_.load(std::memory_order_relaxed)) != 0 && !stopping();
  }
  // Whether there is no ready op and every worker sleeps: nothing here will make progress by itself.
  bool Quiet() const;

  void StopWorkers();  // every Next returns null until RestartWorkers
  void RestartWorkers() { stopping_.store(false, std::memory_order_relaxed); }
  // In a fork's child, of a pool of the parent: the thread that forked inside a body leaves the loop behind it.
  void LeaveInChild() { stopping_.store(true, std::memory_order_relaxed); }
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  // Ops of several priorities were put, so successors must queue instead of running at once.
  bool mixed_levels() const { return levels_used_.load(std::memory_order_relaxed) & ~(1u << kNormalLevel); }

  // Uses at most `most` threads; 0: as many as the options say.
  void ParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body, int most) EXCLUDES(mu_);

  uint8_t index() const { return index_; }
  const PoolOptions& options() const { return options_; }
  std::vector<std::unique_ptr<Worker>>& workers() { return workers_; }
  uint64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  struct QueueList {  // immutable; a new list replaces it
    std::vector<ReadyQueue*> queues;
  };
  void ListQueue(ThreadSlot& slot) EXCLUDES(mu_);
  void PutSlow(ThreadSlot& slot, OpRecord* op) noexcept EXCLUDES(mu_);
  OpRecord* TakeAside() EXCLUDES(mu_);
  uint32_t FairShare(const ReadyDeque& ops) const;
  bool FindReady() const;
  OpRecord* Find(Worker& worker, bool fair);
  OpRecord* FindAtLevel(Worker& worker, int level, bool fair);
  OpRecord* TakeShared(Worker& worker, int level);
  OpRecord* TakeFromWorkers(Worker& worker, int level);
  OpRecord* Search(Worker& worker);
  void Sleep(Worker& worker) EXCLUDES(mu_);
  bool LeftToOthers() const;
  bool SleepOnce(Worker& worker);
  uint64_t ProgressMark() const;
  void WakeOne(Beside beside) EXCLUDES(mu_);

  PoolHost& host_;
  const uint8_t index_;
  const PoolOptions options_;
  const int intra_op_threads_;
  const std::chrono::nanoseconds spin_;
  std::vector<std::unique_ptr<Worker>> workers_;

  alignas(64) std::atomic<QueueList*> queues_{nullptr};
  // Bits are only ever set; relaxed: publishes nothing, and a bit is set before its op is published.
  std::atomic<uint32_t> levels_used_{0};
  std::atomic<bool> aside_{false};  // the pool's own list (see Put) has ops
  std::atomic<bool> stopping_{false};
  // Partners: Notify's relaxed loads behind LightFence. sleepers_ changes under mu_, searchers_ anywhere; if a change
  // promises another look, HeavyFence follows it.
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> searchers_{0};
  // relaxed: both only decide who sleeps and for how long; a stale value costs a moment.
  std::atomic<bool> tiny_{false};
  std::atomic<Worker*> sentinel_{nullptr};
  alignas(64) Mutex mu_;
  std::vector<Worker*> sleeping_ GUARDED_BY(mu_);  // has room for all workers
  Clock::time_point woke_ GUARDED_BY(mu_){};       // when a push woke a worker last
  OpRecord* first_aside_ GUARDED_BY(mu_) = nullptr;
  OpRecord* last_aside_ GUARDED_BY(mu_) = nullptr;
  std::vector<std::unique_ptr<QueueList>> lists_ GUARDED_BY(mu_);
  std::map<int, std::unique_ptr<IntraOp>> intra_op_ GUARDED_BY(mu_);  // one for each number of threads
  std::atomic<uint64_t> wakeups_{0};
};

}  // namespace engine::detail
