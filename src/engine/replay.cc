// Running ready tasks: a counter only where a task has several predecessors, the first ready successor next, the others on a
// stack of this thread, the older half of it to whoever is idle.
#include "replay.h"

#include "core.h"

namespace engine::detail {

Replay::Replay(EngineCore& core, ThreadSlot& slot, OpRecord* op, Worker* worker, RunState& run)
    : core_(core),
      slot_(slot),
      op_(op),
      worker_(worker),
      run_(run),
      plan_(*run.owner),
      frame_{&core, op, t_frame},
      ctx_(EngineCore::MakeNodeContext(core, op, worker ? worker->index : -1, run)),
      traced_(core.tracing()),
      // What has no share out yet and no other placement is this thread's alone.
      atomic_(plan_.concurrent || !(op->extra.flags & kRunOp)) {
  t_frame = &frame_;
}

// relaxed stores and loads: while `atomic_` is false nobody else is there; handing a share to a queue publishes them.
// acq_rel: who arrives last sees what the others did. A count of one is ours alone to take.
bool Replay::Down(uint32_t counter) {
  std::atomic<uint32_t>& count = run_.counters[counter];
  const uint32_t left = count.load(std::memory_order_acquire);
  if (left == 1 || (atomic_ && count.fetch_sub(1, std::memory_order_acq_rel) == 1)) {
    count.store(plan_.counters[counter], std::memory_order_relaxed);  // for the frame's next run
    return true;
  }
  if (!atomic_) count.store(left - 1, std::memory_order_relaxed);
  return false;
}

inline bool Replay::Arrive(uint32_t task) {
  const uint32_t counter = plan_.tasks[task].counter;
  return counter == kNone || Down(counter);
}

void Replay::Name(const PlanNode& node) {
  op_->extra.name = node.name;
  op_->extra.file = node.file;
  op_->extra.line = node.line;
}

inline void Replay::Run(uint32_t index) {
  const PlanNode& node = plan_.nodes[index];
  Name(node);
  if ((node.flags & PlanNode::kWatched) | run_.watch.load(std::memory_order_relaxed) | traced_) [[unlikely]]
    return RunWatched(index);
  EngineCore::SetNode(ctx_, node);
  try {
    node.type->run(node.closure, ctx_, nullptr);
  } catch (...) {
    Fail(node, ErrorRecord::NewRoot(node.name, {node.file, node.line}, std::current_exception()));
  }
  if (node.ends != (&node + 1)->ends) EndUses(index);
}

uint32_t Replay::RunReady(uint32_t head) {
  for (top_ = head; head != kNone; head = run_.next[head]) ++depth_;
  const class Pool& pool = core_.pool(op_->extra.pool);
  const int64_t known = plan_.task_nanos.load(std::memory_order_relaxed);
  may_share_ = known == 0 || known >= tuning::kSharedTaskNanos;
  began_ = measured_ = Clock::now();
  uint32_t ended = 0;
  uint32_t current = Pop();
  while (current != kNone) {
    const PlanTask& task = plan_.tasks[current];
    const uint32_t last = task.end - task.async;
    for (uint32_t n = task.first; n < last; ++n) Run(n);
    ++ended;
    uint32_t next = kNone;
    if (task.async) [[unlikely]] {
      atomic_ = true;
      if (!Launch(current, last)) {
        ++ended;  // skipped: its second count is ours as well
        ReleaseSuccessors(task);
      }
    } else {
      for (const uint32_t s : plan_.SuccessorsOf(task)) {
        if (!Arrive(s)) continue;
        if (PoolOf(plan_.tasks[s]) != op_->extra.pool) [[unlikely]] {
          core_.PostShare(slot(), run_, s, kNone, PoolOf(plan_.tasks[s]));
          continue;
        }
        if (next != kNone) Push(next);
        next = s;
      }
    }
    if (t_role_lent) [[unlikely]] {
      if (next != kNone) Push(next);
      HandOver();
      return ended;
    }
    if (ended % tuning::kReplayMeasured == 0) Measure(tuning::kReplayMeasured);
    if (depth_ != 0 && may_share_ && pool.WantsWork() && slot_.NothingQueued(pool.index())) Share();
    if (handed_) [[unlikely]] {
      if (next != kNone) core_.PostShare(slot_, run_, next, kNone, op_->extra.pool);
      break;
    }
    current = next != kNone ? next : Pop();
  }
  const int64_t took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_).count();
  if (ended >= tuning::kReplayMeasured) plan_.task_nanos.store(std::max<int64_t>(1, took / ended), std::memory_order_relaxed);
  return ended;
}

// Long tasks among tiny ones show here; and a run that has the worker for long lets others have a turn.
void Replay::Measure(uint32_t ended) {
  const auto now = Clock::now();
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(now - measured_).count();
  may_share_ = nanos >= tuning::kSharedTaskNanos * ended;
  measured_ = now;
  if (!worker_ || depth_ == 0 || now - began_ < std::chrono::microseconds(tuning::kRunTurnMicros)) return;
  if (!worker_->pool->HasReady()) return;
  atomic_ = true;
  handed_ = core_.NewShare(slot_, run_, top_, op_->extra.pool);
  top_ = kNone;
  depth_ = 0;
}

// The older half: it lies below, and has more behind it.
void Replay::Share() {
  atomic_ = true;
  uint32_t head;
  if (depth_ == 1) {
    head = Pop();
  } else {
    uint32_t keep = top_;
    for (uint32_t i = 1; i < depth_ - depth_ / 2; ++i) keep = run_.next[keep];
    head = std::exchange(run_.next[keep], kNone);
    depth_ -= depth_ / 2;
  }
  core_.PostShare(slot_, run_, head, run_.next[head], op_->extra.pool);
}

void Replay::HandOver() {
  if (top_ == kNone) return;
  const uint32_t head = std::exchange(top_, kNone);
  depth_ = 0;
  core_.PostShare(slot(), run_, head, run_.next[head], run_.home);
}

void Replay::ReleaseSuccessors(const PlanTask& task) {
  for (const uint32_t s : plan_.SuccessorsOf(task)) {
    if (!Arrive(s)) continue;
    if (PoolOf(plan_.tasks[s]) == run_.home) {
      Push(s);
    } else {
      core_.PostShare(slot(), run_, s, kNone, PoolOf(plan_.tasks[s]));
    }
  }
}

}  // namespace engine::detail
