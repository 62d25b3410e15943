// The loop of a thread that plays a worker's role: takes ops from the pool and runs them, until the pool stops, or the
// body of an op has waited and so lent the role to another thread.
#include <pthread.h>

#include <cstdio>

#include "base/affinity.h"
#include "base/fork.h"
#include "core/core.h"
#include "core/hook_frame.h"

namespace engine::detail {

static void SetThreadUp(const PoolOptions& options, const std::string& prefix, const Worker& worker) {
  char name[16];  // Linux allows no more
  std::snprintf(name, sizeof name, "%s/%s", prefix.c_str(), worker.name.c_str());
  pthread_setname_np(pthread_self(), name);
  if (options.cpus.empty()) return FreeThisThread();  // it may have played in a pool that has them
  ConfineThisThread(options.cpus[static_cast<size_t>(worker.index) % options.cpus.size()]);
}

// Returns true when the pool has stopped; false when another thread has the role now, or in the child of a fork.
bool Threads::PlayRole(EngineThread& thread, Worker& worker) {
  const uint64_t id = core_.slots().id();
  const uint32_t forks = Forks();
  class Pool& pool = *worker.pool;
  const PoolOptions& options = pool.options();
  core_.slots().Remember(worker.slot);
  t_role_lent = false;
  SetThreadUp(options, core_.options().thread_name, worker);
  if (!thread.hooked[pool.index()]) {
    thread.hooked[pool.index()] = worker.index + 1;
    if (options.on_start)
      RunHook(&core_, HookFrame::Kind::kWorker, "on_start", [&] { options.on_start(worker.index); });
  }
  OpRecord* next = nullptr;
  bool fair = false;
  uint32_t taken = 0, measured = 0;
  Clock::time_point since{};
  const bool several = pool.workers().size() > 1;
  for (uint32_t run = 0;; ++run) {
    if (several && (measured == 0 || measured >= tuning::kMeasuredOps)) {  // mechanism: tiny_regime
      if (Forks() != forks) break;                                         // the pool is the parent's
      const auto now = Clock::now();
      const auto searched = std::exchange(worker.searched, std::chrono::nanoseconds{0});
      if (measured && pool.NoteMean(worker, now - since - searched, measured)) {
        if (next) pool.Put(*worker.slot, std::exchange(next, nullptr));
        pool.Retire(worker);
      }
      since = measured ? Clock::now() : now;
      measured = 0;
    }
    ++measured;
    const bool merged = next && (next->extra.flags & kInChain) && next->extra.merged;
    // Queues `next` instead of running it, so that other ops of the pool have a turn.
    if (next && ((run >= tuning::kInlineRun && !merged) || worker.turn_over || pool.stopping())) {
      worker.turn_over = false;
      if (merged) core_.devices().EndDispatchOf(worker);
      pool.Put(*worker.slot, next);
      next = nullptr;
      fair = true;
    }
    if (!next) {
      run = 0;
      // Now and then other queues come first: otherwise an op that pushes another one like it would keep all others
      // waiting for ever, because its own queue is looked at first.
      fair |= ++taken % tuning::kInlineRun == 0;
      const uint64_t sleeps = worker.sleeps.Read();
      next = pool.Next(worker, fair);
      if (worker.sleeps.Read() != sleeps) measured = 0;  // the time asleep counts for no op
      fair = false;
      if (!next) break;
    }
    next = core_.Execute(*worker.slot, next, &worker);
    if (t_role_lent) break;  // `worker` is another thread's now
  }
  const bool lent = std::exchange(t_role_lent, false);
  if (Forks() != forks) return false;  // in the child: role and slot are the parent's
  if (lent) {
    core_.EndOwnRun(core_.Slot());
    core_.slots().Return(&core_.Slot());
  } else {
    core_.DeliverDrainNote(*worker.slot, nullptr);
    worker.slot->cache.Flush();
  }
  Slots::Forget(id);
  return !lent;
}

}  // namespace engine::detail
