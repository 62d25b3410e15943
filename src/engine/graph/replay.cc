// Running ready tasks. Only a task with several predecessors has a counter. The first successor that becomes ready runs
// next; the others go onto a stack of this thread, whose older half an idle worker gets.
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
      traced_(core.tracing()),
      // A run without shares and without other placements belongs to this thread alone.
      atomic_(plan_.concurrent || op->extra.kind != OpKindId::kRun) {
  t_frame = &frame_;
}

inline void Replay::Run(const PlanNode& node) {
  Name(node);
  if ((node.flags & PlanNode::kWatched) | run_.watch.load(std::memory_order_relaxed) | traced_) [[unlikely]]
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

// Uses locals, because bodies are opaque calls: members of this object would be stored and loaded around each call.
uint32_t Replay::RunReady(uint32_t head, uint32_t sources) {
  const PlanNode* const nodes = plan_.nodes.data();
  const PlanTask* const tasks = plan_.tasks.data();
  const PlanSuccessor* const successors = plan_.successors.data();
  uint32_t* const links = run_.next;
  class Pool& pool = core_.pool(op_->extra.pool);
  const uint8_t here = op_->extra.pool;
  const bool elsewhere = plan_.concurrent;  // some tasks run elsewhere
  const bool others = pool.workers().size() > 1;
  Begin();

  Stack stack{head, 0, sources};
  for (uint32_t t = head; t != kNoIndex; t = links[t]) ++stack.depth;
  uint32_t ended = 0;
  uint32_t next = kNoIndex;
  for (;;) {
    if (next == kNoIndex) {
      if (stack.top != kNoIndex) {
        next = stack.top;
        stack.top = links[next];
        --stack.depth;
      } else if (stack.sources != 0) {
        next = plan_.sources[--stack.sources];
        if (elsewhere && tasks[next].pool != kDefaultPool) [[unlikely]] {
          Runs(core_).PostShare(slot(), run_, next, kNoIndex, tasks[next].pool);
          next = kNoIndex;
          continue;
        }
      } else {
        break;
      }
    }
    const uint32_t current = next;
    const PlanTask& task = tasks[current];
    for (const PlanNode *n = nodes + task.first, *last = nodes + task.end - task.async; n != last; ++n) Run(*n);
    ++ended;
    next = kNoIndex;
    if (task.async) [[unlikely]] {
      ended += LaunchLast(current);
      while (kept_ != kNoIndex) {
        const uint32_t ready = std::exchange(kept_, run_.next[kept_]);
        if (here == run_.home) {
          links[ready] = stack.top;
          stack.top = ready;
          ++stack.depth;
        } else {
          Runs(core_).PostShare(slot(), run_, ready, kNoIndex, run_.home);
        }
      }
    } else {
      const PlanSuccessor* const end = successors + task.successors_end;
      for (const PlanSuccessor* s = successors + task.successors; s != end; ++s) {
        if (!Arrive(*s)) continue;
        if (elsewhere && PoolOf(tasks[s->task]) != here) [[unlikely]] {
          Runs(core_).PostShare(slot(), run_, s->task, kNoIndex, PoolOf(tasks[s->task]));
          continue;
        }
        if (next != kNoIndex) {
          links[next] = stack.top;
          stack.top = next;
          ++stack.depth;
        }
        next = s->task;
      }
    }
    if (t_role_lent) [[unlikely]] {
      if (next != kNoIndex) Runs(core_).PostShare(slot(), run_, next, kNoIndex, here);
      const uint32_t rest = Link(stack, stack.depth + stack.sources);
      if (rest != kNoIndex) Runs(core_).PostShare(slot(), run_, rest, links[rest], here);
      return ended;
    }
    if (!others) continue;
    if (ended % tuning::kReplayMeasured == 0) [[unlikely]] {
      stack = Measure(stack);
      if (handed_) {
        if (next != kNoIndex) Runs(core_).PostShare(slot_, run_, next, kNoIndex, here);
        return ended;
      }
    }
    if (may_share_ && (stack.depth | stack.sources) != 0 && pool.WantsWork() && slot_.NothingQueued(here))
      stack = Share(stack);
  }
  NoteTimes(ended);
  return ended;
}

void Replay::Begin() {
  const int64_t known = plan_.task_nanos.load(std::memory_order_relaxed);
  may_share_ = known == 0 || known >= tuning::kSharedTaskNanos;
  began_ = measured_ = Clock::now();
}

void Replay::NoteTimes(uint32_t ended) {
  const int64_t took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_).count();
  if (ended >= tuning::kReplayMeasured)
    plan_.task_nanos.store(std::max<int64_t>(1, took / ended), std::memory_order_relaxed);
}

uint32_t Replay::LaunchLast(uint32_t number) {
  const PlanTask& task = plan_.tasks[number];
  atomic_ = true;
  if (Launch(number, task.end - 1)) {
    ReleaseBehindLaunch(task);
    return 0;
  }
  ReleaseSuccessors(task);
  return 1;  // the node was skipped, and so its second end is over too
}

// Notices long tasks among tiny ones. Returns true if this run has had the worker for long and other ops wait for it.
bool Replay::TurnIsOver() {
  const auto now = Clock::now();
  may_share_ = now - measured_ >= std::chrono::nanoseconds(tuning::kSharedTaskNanos * tuning::kReplayMeasured);
  measured_ = now;
  return worker_ && now - began_ >= std::chrono::microseconds(tuning::kRunTurnMicros) && worker_->pool->HasReady();
}

Replay::Stack Replay::Measure(Stack stack) {
  const uint32_t count = stack.depth + stack.sources;
  if (!TurnIsOver() || count == 0) return stack;
  atomic_ = true;
  handed_ = Runs(core_).NewShare(slot_, run_, Link(stack, count), op_->extra.pool);
  return stack;
}

// Gives away the older half: it lies below, and has more tasks behind it.
Replay::Stack Replay::Share(Stack stack) {
  atomic_ = true;
  const uint32_t head = Link(stack, (stack.depth + stack.sources + 1) / 2);
  if (head != kNoIndex) Runs(core_).PostShare(slot_, run_, head, run_.next[head], op_->extra.pool);
  return stack;
}

// Takes the `count` oldest tasks off the stack, and returns them as a list.
uint32_t Replay::Link(Stack& stack, uint32_t count) {
  uint32_t list = kNoIndex;
  for (; count != 0 && stack.sources != 0; --count) {
    // The source that runs next lies at the end; each source that is taken here goes to another worker.
    const uint32_t source = plan_.sources[--stack.sources];
    if (plan_.tasks[source].pool != kDefaultPool) {
      Runs(core_).PostShare(slot(), run_, source, kNoIndex, plan_.tasks[source].pool);
      continue;
    }
    run_.next[source] = list;
    list = source;
  }
  if (count == 0) return list;
  if (count >= stack.depth) {
    uint32_t last = stack.top;
    if (last == kNoIndex) return list;
    while (run_.next[last] != kNoIndex) last = run_.next[last];
    run_.next[last] = list;
    list = std::exchange(stack.top, kNoIndex);
    stack.depth = 0;
    return list;
  }
  uint32_t keep = stack.top;
  for (uint32_t i = 1; i < stack.depth - count; ++i) keep = run_.next[keep];
  uint32_t tail = run_.next[keep];
  const uint32_t taken = std::exchange(run_.next[keep], kNoIndex);
  while (run_.next[tail] != kNoIndex) tail = run_.next[tail];
  run_.next[tail] = list;
  stack.depth -= count;
  return taken;
}

void Replay::HandOver() {
  if (kept_ == kNoIndex) return;
  const uint32_t head = std::exchange(kept_, kNoIndex);
  Runs(core_).PostShare(slot(), run_, head, run_.next[head], run_.home);
}

void Replay::Release(const PlanSuccessor& edge) {
  if (!Arrive(edge)) return;
  const uint8_t pool = PoolOf(plan_.tasks[edge.task]);
  if (pool == run_.home) {
    Keep(edge.task);
  } else {
    Runs(core_).PostShare(slot(), run_, edge.task, kNoIndex, pool);
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
