// Pool: the ready ops of one placement, and the workers that run them. Parking and waking.
//
// Sleeping: a worker that finds nothing announces itself asleep, HeavyFence(), looks once more, and sleeps. Whoever
// posts an op publishes it, LightFence(), and looks for sleepers. One of the two sees the other, so no wake is lost.
// A post wakes a sleeper only if nobody is searching: a searcher will find the op, or, having missed it, find it when
// it looks once more after announcing. A searcher that finds an op and leaves more behind wakes the next one.
// Tiny ops: where ops take less than waking a worker for them gains, one awake worker is faster than two. Workers
// measure a mean over some ops now and then; while it is tiny, posts wake nobody as long as somebody is awake, and
// all but one go to sleep. One of the sleepers, the sentinel, looks again after a moment: if the awake ones have not
// moved since, an op was long after all, and the regime ends. With nobody awake a post always wakes.
// The checker runs this protocol as a model (tests/checker/sleep_wake_test.cc).
//
// Threads: Post by any thread with its slot; Next by the worker's thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/asymmetric_fence.h"
#include "base/intra_op.h"
#include "sched/thread_slot.h"

namespace engine::detail {

class Pool;

// A worker is a role: a queue, a slot and an index. A thread plays it, and may lend it to a stand-in.
struct alignas(64) Worker {
  Pool* pool = nullptr;
  int index = 0;
  ThreadSlot* slot = nullptr;
  std::string lane;                       // "cpu/0"
  bool played = false;                    // by a thread; set and looked at under the lock of Pools
  uint32_t turn = 0;                      // where the next look starts
  uint32_t found = 0;                     // ops since it last found nothing
  bool doubts = false;                    // that ops are still tiny: the last mean was not
  std::chrono::nanoseconds searched{0};   // since the last mean: nobody's op
  struct DeviceLane* run_lane = nullptr;  // of a device's issuer: that it issued on last
  bool lingers = false;    // its last op was of a ranked run, which many workers share: another may follow
  bool turn_over = false;  // what runs next goes to the queue instead, so that others have a turn
  uint8_t untold = 0;      // 1 + the parity of a last op whose end a WaitAll may wait for (drain.cc)
  // Futex word: 0 awake, 1 asleep. Set to 1 under Pool::mu_ by its thread, to 0 by whoever wakes it.
  std::atomic<uint32_t> asleep{0};
  OwnedCounter sleeps;
};

// What a pool's workers tell the engine.
class PoolHost {
 public:
  virtual void TellDrain(Worker& worker,
                         const OpRecord* next) = 0;  // what the worker has not told yet, unless `next` will
  virtual void NoteIdle() = 0;                       // a worker is about to sleep
  SpinPlaces& spin_places() { return spin_places_; }

 protected:
  ~PoolHost() = default;
  SpinPlaces spin_places_;
};

class Pool {
 public:
  Pool(PoolHost& host, uint8_t index, PoolOptions options, int intra_op_threads, std::chrono::nanoseconds spin);
  ~Pool();

  // Puts a ready op in the slot's queue, without waking. Never fails: where there is no memory for the queue, the op is put
  // aside, in a list of the pool's.
  void Put(ThreadSlot& slot, OpRecord* op) {
    CheckState(op, Bit(OpState::kReady), "an op is queued that is not ready");
    const uint32_t bit = 1u << op->extra.level;
    if (!(levels_used_.load(std::memory_order_relaxed) & bit)) [[unlikely]]
      levels_used_.fetch_or(bit, std::memory_order_relaxed);
    ReadyQueue* const queue = slot.queues[index_].get();
    if (!queue || !queue->level[op->extra.level].TryPush(op)) [[unlikely]]
      PutSlow(slot, op);
  }
  // Sees to it that somebody will look at what was Put. One call serves many puts.
  void Notify() {
    LightFence();
    const uint32_t asleep = sleepers_.load(std::memory_order_relaxed);
    if (asleep == 0) return;
    if (tiny_.load(std::memory_order_relaxed) && asleep < workers_.size()) return;
    // A searcher is relied on only once it must see what was put. Partner: the seq_cst subtraction in Next.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (searchers_.load(std::memory_order_relaxed) == 0) WakeOne();
  }

  // The next op for `worker`, or null when the pool stops. Blocks. `fair`: looks at other threads' queues first.
  OpRecord* Next(Worker& worker, bool fair);
  // What `ops` ops of a worker took, overhead included, its searches left out. True if the worker should make room for the others.
  bool NoteMean(Worker& worker, std::chrono::nanoseconds took, uint32_t ops);
  // Goes to sleep although there may be work, if somebody else is awake to do it.
  void Retire(Worker& worker);
  // Whatever can be taken without blocking by a thread that is no worker; null if nothing.
  OpRecord* TryTake();
  bool HasReady() const;
  // A worker sleeps or searches. relaxed: a look that misses one costs a moment.
  bool WantsWork() const {
    return (sleepers_.load(std::memory_order_relaxed) | searchers_.load(std::memory_order_relaxed)) != 0 && !stopping();
  }
  // No ready op, and every worker asleep: nothing here will make progress by itself.
  bool Quiet() const;

  void StopWorkers();  // every Next returns null until RestartWorkers
  void RestartWorkers() { stopping_.store(false, std::memory_order_relaxed); }
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  // Ops of several priorities were put: successors must queue up instead of running at once.
  bool mixed_levels() const { return levels_used_.load(std::memory_order_relaxed) & ~(1u << kNormalLevel); }

  // `most` threads; 0: as many as the options say.
  void ParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body, int most) EXCLUDES(mu_);

  uint8_t index() const { return index_; }
  const PoolOptions& options() const { return options_; }
  std::vector<std::unique_ptr<Worker>>& workers() { return workers_; }
  uint64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  struct QueueList {  // immutable; replaced as a whole
    std::vector<ReadyQueue*> queues;
  };
  void ListQueue(ThreadSlot& slot) EXCLUDES(mu_);
  void PutSlow(ThreadSlot& slot, OpRecord* op) noexcept EXCLUDES(mu_);
  OpRecord* TakeAside() EXCLUDES(mu_);
  OpRecord* Find(Worker& worker, bool fair);
  OpRecord* FindAtLevel(Worker& worker, int level, bool fair);
  OpRecord* TakeShared(Worker& worker, int level);
  OpRecord* TakeFromWorkers(Worker& worker, int level);
  OpRecord* Search(Worker& worker);
  void Sleep(Worker& worker) EXCLUDES(mu_);
  bool LeftToOthers() const;
  bool SleepOnce(Worker& worker);
  uint64_t ProgressMark() const;
  void WakeOne() EXCLUDES(mu_);

  PoolHost& host_;
  const uint8_t index_;
  const PoolOptions options_;
  const int intra_op_threads_;
  const std::chrono::nanoseconds spin_;
  std::vector<std::unique_ptr<Worker>> workers_;

  alignas(64) std::atomic<QueueList*> queues_{nullptr};
  std::atomic<uint32_t> levels_used_{0};  // sticky; relaxed: publishes nothing, set before the op is published
  std::atomic<bool> aside_{false};        // something was put aside
  std::atomic<bool> stopping_{false};
  // Partners: Notify's relaxed loads behind LightFence; changed under mu_ (sleepers) or anywhere (searchers), each
  // change followed by HeavyFence where it promises to look again.
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> searchers_{0};
  // relaxed: both only choose who sleeps how long; a stale value costs a moment.
  std::atomic<bool> tiny_{false};
  std::atomic<Worker*> sentinel_{nullptr};
  alignas(64) Mutex mu_;
  std::vector<Worker*> sleeping_ GUARDED_BY(mu_);  // has room for all
  OpRecord* first_aside_ GUARDED_BY(mu_) = nullptr;
  OpRecord* last_aside_ GUARDED_BY(mu_) = nullptr;
  std::vector<std::unique_ptr<QueueList>> lists_ GUARDED_BY(mu_);
  std::map<int, std::unique_ptr<IntraOp>> intra_op_ GUARDED_BY(mu_);  // by number of threads
  std::atomic<uint64_t> wakeups_{0};
};

}  // namespace engine::detail
