// Runs of ranked plans: one queue of the run has all ready tasks, and every worker of the run takes the most urgent
// one. Each task costs one lock, under which the tasks that became ready go in and the next one comes out. That cost is
// why schedulers batch short nodes.
//
// Idle workers come by a share, as in runs without ranks. The share carries the least urgent ready task, so that only a
// task that would have waited anyway is on its way. The worker that gets the share puts this task back, and takes the
// most urgent one.
#include "core/core.h"
#include "graph/replay.h"

namespace engine::detail {

// Adds the tasks of the list. Takes the most urgent ready task, and, with `spare`, the least urgent one for an idle
// worker.
Replay::Taken Replay::Exchange(uint32_t list, bool spare) {
  Taken taken{kNoIndex, kNoIndex};
  ShortLock lock(run_.ready_mu);
  for (; list != kNoIndex; list = run_.next[list]) run_.ready.Add(plan_.tasks[list].urgency);
  taken.task = run_.ready.TakeFirst();
  if (spare && run_.ready.size() > run_.idle) taken.spare = run_.ready.TakeLast();
  run_.ready_count.store(run_.ready.size(), std::memory_order_relaxed);
  if (taken.task != kNoIndex) taken.task = plan_.by_urgency[taken.task];
  if (taken.spare != kNoIndex) taken.spare = plan_.by_urgency[taken.spare];
  return taken;
}

uint32_t Replay::RunRanked(uint32_t head, uint32_t sources) {
  class Pool& pool = core_.pool(run_.home);
  Begin();
  const auto found = [&, others = pool.workers().size() > 1] {
    return others && may_share_ && pool.WantsWork() && slot_.NothingQueued(run_.home);
  };
  for (uint32_t i = 0; i < sources; ++i) {
    const uint32_t source = plan_.sources[i];
    if (plan_.tasks[source].pool != kDefaultPool) {
      Runs(core_).PostShare(slot(), run_, source, kNoIndex, plan_.tasks[source].pool);
    } else {
      run_.next[source] = std::exchange(head, source);
    }
  }

  uint32_t ended = 0;
  for (;;) {
    const bool spare = found();
    if (spare) atomic_ = true;
    const auto [current, given] = Exchange(head, spare);
    if (given != kNoIndex) Runs(core_).PostShare(slot_, run_, given, kNoIndex, run_.home);
    if (current == kNoIndex) break;
    const PlanTask& task = plan_.tasks[current];
    RunTask(task);
    ++ended;
    if (task.async) [[unlikely]] {
      ended += LaunchLast(current);
    } else {
      ReleaseSuccessors(task);
    }
    head = std::exchange(kept_, kNoIndex);
    if (t_role_lent) [[unlikely]] {
      atomic_ = true;
      // The worker that runs it goes on with the run. Others may have taken all tasks meanwhile.
      if (const uint32_t rest = Exchange(head, false).task; rest != kNoIndex)
        Runs(core_).PostShare(slot(), run_, rest, kNoIndex, run_.home);
      return ended;
    }
    if (ended % tuning::kReplayMeasured == 0 && TurnIsOver()) [[unlikely]] {
      atomic_ = true;
      const uint32_t rest = Exchange(head, false).task;
      if (rest == kNoIndex) return ended;
      run_.next[rest] = kNoIndex;
      handed_ = Runs(core_).NewShare(slot_, run_, rest, run_.home);
      return ended;
    }
  }
  NoteTimes(ended);
  return ended;
}

// A worker that found nothing ready waits for a moment, because a wake often takes longer than the task for which it
// would be woken. The caller has a count of the frame and none of the run, which may end meanwhile. Returns a task that
// it took, or kNoIndex.
uint32_t Runs::AwaitReady(RunState& run, Worker& worker) {
  class Pool& pool = *worker.pool;
  const auto spin = tuning::kRankedSpins * core_.options().spin;
  const auto take = [&](int idle) {
    ShortLock lock(run.ready_mu);
    run.idle += static_cast<uint32_t>(idle);
    const uint32_t place = run.ready.TakeFirst();
    if (place == kNoIndex) return kNoIndex;
    if (idle == 0) --run.idle;
    run.ready_count.store(run.ready.size(), std::memory_order_relaxed);
    return run.owner->by_urgency[place];
  };
  const auto over = [&] { return run.remaining.load(std::memory_order_relaxed) == 0; };
  if (spin.count() == 0 || pool.workers().size() < 2 || over()) return kNoIndex;
  {
    ShortLock lock(run.ready_mu);
    ++run.idle;
  }
  const auto until = Clock::now() + spin;
  for (uint32_t round = 1;; ++round) {
    if (run.ready_count.load(std::memory_order_relaxed) != 0)
      if (const uint32_t task = take(0); task != kNoIndex) return task;
    if (over() || Clock::now() >= until || pool.HasReady() || pool.stopping()) break;
    for (uint32_t i = 0; i < tuning::kIdlePauses; ++i) Pause();
    if (round % tuning::kIdlePauses == 0) sched_yield();  // the thread for which we wait may want this core
  }
  return take(-1);
}

}  // namespace engine::detail
