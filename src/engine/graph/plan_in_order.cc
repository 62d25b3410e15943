// In-order runs (inline, naive): one thread runs the plan in its order, without a queue and without an atomic between
// nodes. What other threads do (asynchronous nodes, other placements) is awaited before the first task that needs it,
// and settled on this thread.
#include "core/core.h"
#include "core/lent_roles.h"
#include "graph/replay.h"

namespace engine::detail {

// A ticket has two words. `word` publishes its error; `returned` ends our use of the ticket, its run and its plan.

void Replay::RunAll() {
  const auto refuse = [&](uint32_t t) {  // the nodes fail here
    const PlanTask& task = plan_.tasks[t];
    refuses_ = watched_ = true;
    RunTask(task);
    if (task.async) Launch(t, task.end - 1);
    refuses_ = false;
  };
  std::exception_ptr no_stand_in;
  for (uint32_t t = 0; t < plan_.tasks.size(); ++t) {
    for (const uint32_t ticket : plan_.awaited[t]) Await(run_.tickets[ticket]);
    const PlanTask& task = plan_.tasks[t];
    if ((task.async || task.pool != kDefaultPool) && !MayAwait(no_stand_in)) {
      refuse(t);
      continue;
    }
    if (task.pool != kDefaultPool) {
      OpRecord* ticket = NewTicket(t, task.async ? task.end - 1 : kNoIndex, task.async ? kAsyncOp : 0u);
      if (!ticket) {
        refuse(t);
        continue;
      }
      ticket->extra.pool = task.pool;
      run_.tickets[task.ticket] = ticket;
      core_.Post(slot(), ticket);
      continue;
    }
    RunTask(task);
    if (run_.forked()) [[unlikely]]  // what the parent's threads do is not awaited
      return;
    if (!task.async) continue;
    OpRecord* const op = run_.tickets[task.ticket] = Launch(t, task.end - 1);
    if (run_.forked()) [[unlikely]]
      return;
    if (op) WaitNode::End(static_cast<PlanTicket*>(op->closure())->returned);
  }
  for (uint32_t i = 0; i < plan_.tickets; ++i) {
    Await(run_.tickets[i]);
    OpRecord* const op = std::exchange(run_.tickets[i], nullptr);
    if (!op) continue;
    core_.AwaitInside(static_cast<PlanTicket*>(op->closure())->returned);
    Runs(core_).RecycleOp(slot(), op);
  }
}

// Whether this thread may start what it will await. That may need the role which this thread plays, so a stand-in plays it
// from here on. False: none can be had, and the nodes fail as a wait would.
bool Replay::MayAwait(std::exception_ptr& no_stand_in) {
  if (cannot_await_) return false;
  if (t_role_lent || !slot_.worker) return true;
  try {
    LentRoles::LendWorker(core_);
    return true;
  } catch (...) {
    no_stand_in = std::current_exception();
  }
  cannot_await_ = &no_stand_in;  // mutant: awaits_without_a_stand_in
  return !cannot_await_;
}

// Runs in the task's own placement. If the last node is asynchronous, whoever awaits the ticket settles its outcome.
void Replay::RunTicket() {
  auto& ticket = *static_cast<PlanTicket*>(op_->closure());
  const uint32_t number = ticket.task;
  const PlanTask& task = plan_.tasks[number];
  RunTask(task);
  if (!task.async) {
    WaitNode::End(ticket.word);
  } else if (!Launch(number, task.end - 1, op_)) {
    ticket.node = kNoIndex;  // the node was skipped, and has been settled
    WaitNode::End(ticket.word);
  }
  WaitNode::End(ticket.returned);
}

// What comes behind the ticket may go on when its node has completed. The body may still run.
void Replay::Await(OpRecord* op) {
  if (!op) return;
  auto& ticket = *static_cast<PlanTicket*>(op->closure());
  if (std::exchange(ticket.settled, true)) return;
  core_.AwaitInside(ticket.word);
  if (ticket.node != kNoIndex) SettleTicket(ticket);
}

void Runs::FinishTicket(OpRecord* op, ErrorRecord* error) {
  auto& ticket = *static_cast<PlanTicket*>(op->closure());
  RunState& run = *ticket.run;
  const PlanTask& task = run.owner->tasks[ticket.task];
  if (!task.device && (run.watch.load(std::memory_order_relaxed) & RunState::kTimes))
    run.times[run.owner->nodes[ticket.node].recorded].end = NanosOf(Clock::now());
  op->extra.state.store(OpState::kFree, std::memory_order_relaxed);
  if (error) {
    // The error before is that of a bulk that was cut short.
    if (ErrorRecord* before = std::exchange(ticket.error, error)) before->Release();
    ticket.lost = task.device;
  }
  if (run.in_order) return WaitNode::End(ticket.word);
  ThreadSlot& slot = core_.Slot();
  uint32_t kept, ended = 1;
  {
    Replay replay(core_, slot, op, nullptr, run);
    replay.SettleTicket(ticket);
    replay.ReleaseSuccessors(task);
    kept = replay.TakeKept(kNoIndex);
    ended += replay.refused();
  }
  if (kept != kNoIndex) {
    core_.Post(slot, ShareIn(op, run, kept, run.home, false));  // in the ticket's block, because there may be no memory
  } else {
    RecycleOp(slot, op);
  }
  EndTasks(slot, run, ended, nullptr);
}

}  // namespace engine::detail
