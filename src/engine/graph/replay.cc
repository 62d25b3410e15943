// Running ready tasks on one thread. Only a task with several predecessors has a counter. The first successor that becomes
// ready runs next; the others go onto a stack of this thread.
#include "graph/replay.h"

#include "core/core.h"

namespace engine::detail {

Replay::Replay(EngineCore& core, ThreadSlot& slot, OpRecord* op, Worker* worker, RunState& run)
    : core_(core),
      slot_(slot),
      op_(op),
      worker_(worker),
      run_(run),
      plan_(*run.owner),
      frame_{&core, op, t_frame},
      ctx_(Runs::MakeContext(core, op, worker ? worker->index : -1, run)),
      watched_(core.tracing()),
      // A run without shares, other placements and gates belongs to this thread alone.
      atomic_(plan_.concurrent || op->extra.kind != OpKindId::kRun || run.gates) {
  t_frame = &frame_;
}

inline void Replay::Run(const PlanNode& node) {
  Name(node);
  if ((node.flags & PlanNode::kWatched) | run_.watch.load(std::memory_order_relaxed) | watched_ | core_.gave_up())
      [[unlikely]]
    return RunWatched(static_cast<uint32_t>(&node - plan_.nodes.data()));
  Runs::SetNode(ctx_, node);
  try {
    node.run(node.closure, ctx_, nullptr);
  } catch (...) {
    Fail(node, ErrorRecord::NewRoot(node.name, {node.file, node.line}, std::current_exception()));
  }
  if (node.ends != (&node + 1)->ends) EndUses(static_cast<uint32_t>(&node - plan_.nodes.data()));
}

void Replay::RunTask(const PlanTask& task) {
  const PlanNode* const nodes = plan_.nodes.data();
  for (uint32_t n = task.first; n < task.end - task.async; ++n) Run(nodes[n]);
}

uint32_t Replay::RunAndRelease(uint32_t number) {
  const PlanTask& task = plan_.tasks[number];
  if (run_.gates) [[unlikely]] {
    if (!RunToGate(number)) return 0;
  } else {
    RunTask(task);
  }
  if (task.async) [[unlikely]]
    return 1 + LaunchLast(number);
  ReleaseSuccessors(task);
  return 1;
}

bool Replay::RunToGate(uint32_t number) {
  RunGates& gates = *run_.gates;
  const PlanTask& task = plan_.tasks[number];
  for (uint32_t n = gates.stopped[number]; n < task.end; ++n) {
    // Zero: it has no gates, or whoever opened the last one goes on with the task here.
    std::atomic<uint32_t>& missing = gates.missing[n];
    if (missing.load(std::memory_order_relaxed) != 0) {
      gates.stopped[number] = n;
      op_->extra.name = plan_.options.name.c_str();                            // no node runs here any more
      if (missing.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;  // mutant: node_before_its_gates
    }
    if (n < task.end - task.async) Run(plan_.nodes[n]);
  }
  gates.stopped[number] = task.first;
  // What is left may all wait at gates, and no node runs here then. The task counts as one that has not ended, so the run has
  // not, and the op is still ours.
  op_->extra.name = plan_.options.name.c_str();
  return true;
}

// Uses locals, because bodies are opaque calls: members of this object would be stored and loaded around each call.
uint32_t Replay::RunAlone(uint32_t head, uint32_t sources) {
  const PlanNode* const nodes = plan_.nodes.data();
  const PlanTask* const tasks = plan_.tasks.data();
  const PlanSuccessor* const successors = plan_.successors.data();
  uint32_t* const links = run_.next;
  const uint8_t here = op_->extra.pool;
  const bool elsewhere = plan_.concurrent;  // some tasks run elsewhere
  const bool gated = run_.gates;
  const bool others = core_.pool(here).workers().size() > 1;
  began_ = Clock::now();

  Stack stack{head, sources};
  const auto take_kept = [&] {
    while (kept_ != kNoIndex) {
      const uint32_t ready = std::exchange(kept_, links[kept_]);
      if (here == run_.home) {
        links[ready] = stack.top;
        stack.top = ready;
      } else {
        PostThere(ready, run_.home);
      }
    }
  };
  uint32_t ended = 0;
  uint32_t next = kNoIndex;
  uint32_t looked = 0;  // how many had ended at the last look at the clock
  auto looked_at = began_;
  for (;;) {
    if (next == kNoIndex) {
      if (stack.top != kNoIndex) {
        next = stack.top;
        stack.top = links[next];
      } else if (stack.sources != 0) {
        next = plan_.sources[--stack.sources];
        if (elsewhere && tasks[next].pool != kDefaultPool) [[unlikely]] {
          PostThere(next, tasks[next].pool);
          next = kNoIndex;
          take_kept();
          continue;
        }
      } else {
        break;
      }
    }
    const uint32_t current = next;
    const PlanTask& task = tasks[current];
    bool stopped = false;
    if (gated) [[unlikely]] {
      stopped = !RunToGate(current);
    } else {
      for (const PlanNode *n = nodes + task.first, *last = nodes + task.end - task.async; n != last; ++n) Run(*n);
    }
    ended += !stopped;
    next = kNoIndex;
    if (stopped) [[unlikely]] {  // nothing has become ready
    } else if (task.async) [[unlikely]] {
      ended += LaunchLast(current);
      take_kept();
    } else {
      const PlanSuccessor* const end = successors + task.successors_end;
      for (const PlanSuccessor* s = successors + task.successors; s != end; ++s) {
        if (!Arrive(*s)) continue;
        if (elsewhere && PoolOf(tasks[s->task]) != here) [[unlikely]] {
          PostThere(s->task, PoolOf(tasks[s->task]));
          take_kept();
          continue;
        }
        if (next != kNoIndex) {
          links[next] = stack.top;
          stack.top = next;
        }
        next = s->task;
      }
    }
    if (t_role_lent) [[unlikely]] {
      if (next != kNoIndex) {
        links[next] = stack.top;
        stack.top = std::exchange(next, kNoIndex);
      }
      const uint32_t rest = Link(stack);
      if (rest == kNoIndex || Runs(core_).PostShare(slot(), run_, rest, links[rest], here)) return ended;
      stack = {rest, 0};  // there is no memory for the share: this thread goes on without its role
      continue;
    }
    if (ended - looked < tuning::kReplayMeasured || !others) continue;
    const auto now = Clock::now();
    const bool long_ones =
        here == run_.home && now - looked_at >= std::chrono::nanoseconds(tuning::kSharedTaskNanos * (ended - looked));
    if (!long_ones && !TurnIsOver(now)) [[likely]] {
      looked = ended;
      looked_at = now;
      continue;
    }
    if (next != kNoIndex) {
      links[next] = stack.top;
      stack.top = std::exchange(next, kNoIndex);
    }
    const uint32_t rest = Link(stack);
    if (rest == kNoIndex) break;
    atomic_ = true;
    if (long_ones) {
      NoteTimes(ended, 0);
      return ended + RunTogether(rest, 0, false);
    }
    handed_ = Runs(core_).NewShare(slot_, run_, rest, here);
    if (handed_) return ended;
    stack = {rest, 0};  // its turn goes on
  }
  NoteTimes(ended, 0);
  return ended;
}

// The mean of all tasks is known at once if this thread ran them all, and else at the run's end (Runs::Finish).
void Replay::NoteTimes(uint32_t ended, int64_t overhead) {
  if (ended == 0) return;
  const int64_t took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_).count();
  const int64_t worked = std::max<int64_t>(1, took - overhead * ended);
  if (ended == plan_.tasks.size()) return plan_.NoteTaskNanos(worked / ended);
  run_.worked.fetch_add(worked, std::memory_order_relaxed);
}

uint32_t Replay::LaunchLast(uint32_t number) {
  const PlanTask& task = plan_.tasks[number];
  atomic_ = true;
  if (Launch(number, task.end - 1)) {
    ReleaseBehindLaunch(task);
    return 0;
  }
  ReleaseSuccessors(task);
  if (task.device) ReleaseBehindLaunch(task);
  return 1;  // the node was skipped, and so its second end is over too
}

// Whether this run has had the worker for long and other ops wait for it.
bool Replay::TurnIsOver(Clock::time_point now) const {
  return worker_ && now - began_ >= std::chrono::microseconds(tuning::kRunTurnMicros) && worker_->pool->HasReady();
}

// All tasks of the stack as one list, the sources last. Tasks for other pools are posted there.
uint32_t Replay::Link(Stack stack) {
  uint32_t list = kNoIndex;
  for (uint32_t i = 0; i < stack.sources; ++i) {
    const uint32_t source = plan_.sources[i];
    if (plan_.tasks[source].pool != kDefaultPool) {
      PostThere(source, plan_.tasks[source].pool);
      continue;
    }
    run_.next[source] = list;
    list = source;
  }
  list = TakeKept(list);
  if (stack.top == kNoIndex) return list;
  uint32_t last = stack.top;
  while (run_.next[last] != kNoIndex) last = run_.next[last];
  run_.next[last] = list;
  return stack.top;
}

uint32_t Replay::TakeKept(uint32_t list) {
  while (kept_ != kNoIndex) {
    const uint32_t ready = std::exchange(kept_, run_.next[kept_]);
    run_.next[ready] = std::exchange(list, ready);
  }
  return list;
}

// Posts a ready task to the pool of its placement. If there is no memory for the share, its nodes fail here, as a node that
// throws does, and what became ready by that is kept.
void Replay::PostThere(uint32_t task, uint8_t pool) {
  if (Runs(core_).PostShare(slot(), run_, task, kNoIndex, pool)) return;
  run_.next[task] = std::exchange(unposted_, task);
  if (refuses_) return;  // what is behind such a task comes when it has ended
  while (unposted_ != kNoIndex) SkipHere(std::exchange(unposted_, run_.next[unposted_]));
}

void Replay::SkipHere(uint32_t number) {
  refuses_ = watched_ = true;
  refused_ += RunAndRelease(number);  // one that stops at a gate goes on there: the start has taken the memory for that
  refuses_ = false;
}

void Replay::Release(const PlanSuccessor& edge) {
  if (!Arrive(edge)) return;
  const uint8_t pool = PoolOf(plan_.tasks[edge.task]);
  if (pool == run_.home) {
    Keep(edge.task);
  } else {
    PostThere(edge.task, pool);
  }
}

void Replay::ReleaseSuccessors(const PlanTask& task) {
  for (const PlanSuccessor& edge : plan_.SuccessorsOf(task))
    if (!task.device || !plan_.tasks[edge.task].device) Release(edge);
}

void Replay::ReleaseBehindLaunch(const PlanTask& task) {
  for (const PlanSuccessor& edge : plan_.SuccessorsOf(task))
    if (task.device && plan_.tasks[edge.task].device) Release(edge);
}

}  // namespace engine::detail
