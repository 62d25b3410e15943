// The team of a run: one queue of the run has all ready tasks, and each thread of the team takes the most urgent one. Each
// task costs one lock, under which the tasks that became ready go in and the next one comes out. That cost is why tiny
// tasks are run by one thread alone, and why schedulers batch short nodes.
//
// A worker is invited by a share, if it is idle and the team may grow. The share carries the least urgent ready task, so
// that only a task that would have waited anyway is on its way. The worker that gets the share puts this task back, and
// takes the most urgent one. If the thread that sent the share runs out of tasks first, it takes the share back.
//
// A thread that waits for the run's end is one of the team, in the place of an idle worker (Runs::TakePart). There are never
// more threads in a team than the pool has workers.
#include "core/core.h"
#include "core/hook_frame.h"
#include "core/push_scopes.h"
#include "graph/replay.h"

namespace engine::detail {

// Adds the tasks of the list. Takes the most urgent ready task, with `take`, and, with `may_invite`, the least urgent one for an
// idle thread, which the team then counts: the one that waits for the run, if it sleeps, and else a worker.
Replay::Taken Replay::Exchange(uint32_t list, bool may_invite, bool take) {
  Taken taken{kNoIndex, kNoIndex};
  ShortLock lock(run_.ready_mu);
  for (; list != kNoIndex; list = run_.next[list]) run_.ready.Add(plan_.tasks[list].urgency);
  if (take) taken.task = run_.ready.TakeFirst();
  const bool room = run_.team < core_.pool(run_.home).workers().size();  // mutant: team_without_limit
  if (may_invite && room && run_.ready.size() > run_.idle) {
    taken.for_waiter = run_.parked.load(std::memory_order_relaxed) == kNoIndex;
    // Also where no worker is idle now: one that is soon finds the share, and a task may take long. Not where the schedule ranks
    // tasks, because what becomes ready meanwhile may be less urgent.
    const bool wanted = core_.pool(run_.home).WantsWork() || (!run_.invitation && plan_.options.schedule.rank.empty());
    if (taken.for_waiter || (wanted && slot_.NothingQueued(run_.home))) {
      taken.spare = run_.ready.TakeLast();
      ++run_.team;
    }
  }
  run_.ready_count.store(run_.ready.size(), std::memory_order_relaxed);
  if (taken.task != kNoIndex) taken.task = plan_.by_urgency[taken.task];
  if (taken.spare != kNoIndex) taken.spare = plan_.by_urgency[taken.spare];
  if (taken.for_waiter) {
    run_.parked.store(taken.spare, std::memory_order_relaxed);
    run_.sleeper.SendAway();
  }
  return taken;
}

// Exchange, and sends the task for an idle thread on its way. Returns the one for this thread.
uint32_t Replay::HandOut(uint32_t list, bool may_invite, bool take) {
  const auto [task, spare, for_waiter] = Exchange(list, may_invite, take);
  if (for_waiter) {
    given_ = spare;
    FutexWake(run_.parked, 1);
  } else if (spare != kNoIndex) {
    Invite(spare);  // mutant: ready_node_kept_to_oneself
  }
  return task;
}

uint32_t Replay::RunTogether(uint32_t head, uint32_t sources, bool counted) {
  class Pool& pool = core_.pool(run_.home);
  const int64_t known = plan_.task_nanos.load(std::memory_order_relaxed);
  const bool may_invite = pool.workers().size() > 1 && (known == 0 || known >= tuning::kSharedTaskNanos);
  atomic_ = in_team_ = true;
  began_ = Clock::now();
  {
    ShortLock lock(run_.ready_mu);
    if (!counted) ++run_.team;
    if (run_.invitation == op_) run_.invitation = nullptr;
  }
  if (op_->extra.kind == OpKindId::kRun && worker_) AwaitWaiter();
  for (uint32_t i = 0; i < sources; ++i) {
    const uint32_t source = plan_.sources[i];
    if (plan_.tasks[source].pool != kDefaultPool) {
      PostThere(source, plan_.tasks[source].pool);
    } else {
      run_.next[source] = std::exchange(head, source);
    }
  }
  head = TakeKept(head);

  uint32_t ended = 0;
  for (;;) {
    const bool invites = may_invite && !t_role_lent;
    if (run_.wide_open.load(std::memory_order_relaxed)) {
      // What this thread has made ready is for others while it helps. If it has ended no task, what it was given kept the run.
      if (head != kNoIndex) {
        if (ended + held_ == 0) {
          run_.remaining.fetch_add(1, std::memory_order_relaxed);  // not the last: these tasks have not ended
          held_ = 1;
        }
        HandOut(std::exchange(head, kNoIndex), invites, false);  // mutant: ready_nodes_kept_while_helping
      }
      if (Runs(core_).Help(run_)) continue;
    }
    const uint32_t current = HandOut(head, invites, true);
    if (current == kNoIndex) {
      head = TakeInvitationBack();
      if (head == kNoIndex) break;
      continue;
    }
    ended += RunAndRelease(current);
    head = std::exchange(kept_, kNoIndex);
    if (t_role_lent) [[unlikely]] {
      // The worker that runs it goes on with the run, in our place. Others may have taken all tasks meanwhile.
      const uint32_t rest = Exchange(head, false).task;
      if (rest == kNoIndex) {
        Runs::LeaveTeam(run_);
        return ended;
      }
      run_.next[rest] = kNoIndex;
      if (OpRecord* const share = Runs(core_).NewShare(slot(), run_, rest, run_.home, true)) {
        core_.Post(slot(), share);
        return ended;
      }
      // There is no memory for the share: this thread goes on, without its role and what lies in the slot that went with it.
      head = rest;
      invited_ = nullptr;
      continue;
    }
    if (ended % tuning::kReplayMeasured == 0 && TurnIsOver(Clock::now())) [[unlikely]] {
      const uint32_t rest = Exchange(head, false).task;
      if (rest == kNoIndex) break;
      run_.next[rest] = kNoIndex;
      handed_ = Runs(core_).NewShare(slot_, run_, rest, run_.home, true);
      if (handed_) return ended;
      head = rest;  // its turn goes on
    }
  }
  NoteTimes(ended, tuning::kTakeNanos);
  return ended;
}

// A worker has begun the run. If the thread that started the last run waited for it, the one that started this run will
// probably wait, too, and joins the team sooner than another worker could be woken. So this worker pauses for it.
void Replay::AwaitWaiter() {
  if (!plan_.waited_for.load(std::memory_order_relaxed)) return;
  for (uint32_t i = 0; i < tuning::kWaiterPauses; ++i) {
    if (run_.waiter.load(std::memory_order_relaxed)) return;
    Pause();
  }
  plan_.waited_for.store(false, std::memory_order_relaxed);
}

void Replay::Invite(uint32_t task) {
  run_.next[task] = kNoIndex;
  invited_ = Runs(core_).NewShare(slot_, run_, task, run_.home, true);
  if (!invited_) {  // then nobody is invited
    ShortLock lock(run_.ready_mu);
    --run_.team;
    run_.ready.Add(plan_.tasks[task].urgency);
    run_.ready_count.store(run_.ready.size(), std::memory_order_relaxed);
    return;
  }
  {
    ShortLock lock(run_.ready_mu);
    run_.invitation = invited_;
  }
  core_.Post(slot_, invited_, Beside::kYes);
}

// This thread has nothing to do, and what it sent to an idle worker may not have arrived: a wake takes a while. Returns the
// task that was on its way, or kNoIndex. As long as the run names the share as its invitation, no other op has its block.
uint32_t Replay::TakeInvitationBack() {
  if (const uint32_t given = std::exchange(given_, kNoIndex); given != kNoIndex) {
    ShortLock lock(run_.ready_mu);
    if (run_.parked.load(std::memory_order_relaxed) == given) {
      run_.parked.store(kNoIndex, std::memory_order_relaxed);
      --run_.team;
      run_.next[given] = kNoIndex;
      return given;
    }
  }
  OpRecord* const share = std::exchange(invited_, nullptr);
  if (!share) return kNoIndex;
  {
    ShortLock lock(run_.ready_mu);
    if (run_.invitation != share || !core_.pool(run_.home).TakeBack(slot_, share, run_.level)) return kNoIndex;
    run_.invitation = nullptr;
    --run_.team;
  }
  const uint32_t task = static_cast<PlanShare*>(share->closure())->head;
  Runs(core_).RecycleOp(slot_, share);
  return task;
}

void Runs::LeaveTeam(RunState& run) {
  ShortLock lock(run.ready_mu);
  --run.team;
}

// A thread of the team that found nothing ready waits for a moment, because a wake often takes longer than the task for
// which it would be woken. The caller has a count of the frame and none of the run, which may end meanwhile. Returns a task
// that it took, or kNoIndex; then it has left the team. `worker`: null for a thread that waits for the run.
uint32_t Runs::AwaitReady(RunState& run, const Worker* worker) {
  class Pool& pool = core_.pool(run.home);
  const auto spin = tuning::kTeamSpins * core_.options().spin;
  const auto take = [&]() REQUIRES(run.ready_mu) {
    const uint32_t place = run.ready.TakeFirst();
    if (place == kNoIndex) return kNoIndex;
    --run.idle;
    run.ready_count.store(run.ready.size(), std::memory_order_relaxed);
    return run.owner->by_urgency[place];
  };
  const auto leave = [&] {
    for (;; Help(run, true)) {
      ShortLock lock(run.ready_mu);
      if (const uint32_t task = take(); task != kNoIndex) return task;
      if (LoopWithRoom(run)) continue;  // whoever has opened it has seen an idle thread, and invites nobody
      --run.idle;
      --run.team;
      return kNoIndex;
    }
  };
  const auto over = [&] { return run.remaining.load(std::memory_order_relaxed) == 0; };
  {
    ShortLock lock(run.ready_mu);
    ++run.idle;
  }
  if (spin.count() == 0 || pool.workers().size() < 2) return leave();
  const auto until = Clock::now() + spin;
  const auto found = [&] { return run.ready_count.load(std::memory_order_relaxed) != 0; };
  for (uint32_t round = 1; !over() && !pool.stopping() && !(worker && pool.HasReady()); ++round) {
    if (Help(run, true)) continue;
    if (found()) {
      ShortLock lock(run.ready_mu);
      if (const uint32_t task = take(); task != kNoIndex) return task;
    }
    for (uint32_t i = 0; i < tuning::kIdlePauses && !found(); ++i) Pause();
    if (round % tuning::kIdlePauses != 0) continue;
    if (Clock::now() >= until) break;
    sched_yield();  // the thread for which we wait may want this core
  }
  return leave();
}

bool Runs::Together(const RunState& run) const {
  const PlanCore& plan = *run.owner;
  const size_t workers = core_.pool(run.home).workers().size();
  if (run.in_order || workers == 0 || (plan.tasks.size() < 2 && !plan.has_wide)) return false;
  if (!plan.options.schedule.rank.empty()) return true;
  const int64_t known = plan.task_nanos.load(std::memory_order_relaxed);
  return workers > 1 && (known == 0 || known >= tuning::kSharedTaskNanos);
}

// The thread that waits for the run does what an idle worker would have to be woken for: it begins the run, if nobody has,
// and else it is one of the team. If no worker is idle, as many threads work as may.
void Runs::TakePart(RunState& run) {
  if (t_frame || run.in_order || run.forked() || core_.Stopped() || HookFrame::Inside(&core_)) return;
  class Pool& pool = core_.pool(run.home);
  if (pool.workers().empty() || !pool.WantsWork()) return;
  ThreadSlot& slot = core_.Slot();
  SpareShare spare(slot, run);
  if (!spare.Have()) return;
  OpRecord* next = nullptr;
  // The op that lies in this thread's own queue is the run's: the run has not ended, so no other op has its block.
  if (pool.TakeBack(slot, run.op, run.level)) {
    next = run.op;
  } else if (Together(run) && pool.workers().size() > 1) {
    if (!run.owner->waited_for.load(std::memory_order_relaxed))
      run.owner->waited_for.store(true, std::memory_order_relaxed);
    run.waiter.store(true, std::memory_order_relaxed);
    if (Join(run)) next = spare.Of(AwaitReady(run, nullptr));
  } else {
    return;
  }
  const BodyScopes aside;  // mutant: node_under_the_scopes_of_who_waits
  for (;;) {
    while (next) next = core_.Execute(slot, next, nullptr);
    if (!spare.Have()) return;
    next = spare.Of(Park(run));
    if (!next) return;
  }
}

bool Runs::Join(RunState& run) {
  ShortLock lock(run.ready_mu);
  if (run.team >= core_.pool(run.home).workers().size()) return false;
  ++run.team;
  return true;
}

// The thread that waits for the run found nothing to do. It sleeps until the run is over, or one of the team has a task for
// it: a worker that was woken instead would be a third thread, which often lands on the core of one of the two. Returns a
// task, for which the team counts this thread, or kNoIndex. Only for a while, because what else ends a wait (a shutdown)
// does not look here.
uint32_t Runs::Park(RunState& run) {
  const PlanCore& plan = *run.owner;
  if (!Together(run) || plan.has_device || core_.pool(run.home).workers().size() < 2) return kNoIndex;
  const auto until = Clock::now() + tuning::kLongestPark;
  // seq_cst: partner is Finish, which takes `remaining` to zero and then looks at `waiter`.
  run.waiter.store(true, std::memory_order_seq_cst);
  {
    ShortLock lock(run.ready_mu);
    if (run.remaining.load(std::memory_order_seq_cst) == 0) return kNoIndex;
    if (run.parked.load(std::memory_order_relaxed) != RunState::kNobody) return kNoIndex;  // another thread waits, too
    run.parked.store(kNoIndex, std::memory_order_relaxed);
    run.sleeper.Lie();
  }
  for (;;) {
    FutexWait(run.parked, kNoIndex, until);
    ShortLock lock(run.ready_mu);
    run.sleeper.ComeBack();
    const uint32_t given = run.parked.load(std::memory_order_relaxed);
    if (given == RunState::kNobody) return kNoIndex;  // the run is over
    if (given == kNoIndex && Clock::now() < until) continue;
    run.parked.store(RunState::kNobody, std::memory_order_relaxed);
    return given;
  }
}

// The run is over: whoever sleeps in it goes on.
void Runs::Unpark(RunState& run) {
  {
    ShortLock lock(run.ready_mu);
    if (run.parked.load(std::memory_order_relaxed) != kNoIndex) return;
    run.parked.store(RunState::kNobody, std::memory_order_relaxed);
  }
  FutexWake(run.parked, 1);
}

}  // namespace engine::detail
