// Running a node that needs more than a call: errors, cancels, deadlines, times, traces, asynchronous ends. And what
// ends with a node.
#include <algorithm>

#include "core/core.h"
#include "core/traced_body.h"
#include "graph/replay.h"

namespace engine::detail {
namespace {

// Processor time of this thread: neither waits nor preemptions count.
int64_t ThreadNanos() {
  timespec ts;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return ts.tv_sec * 1'000'000'000 + ts.tv_nsec;
}

void SetError(ErrorRecord*& at, ErrorRecord* error) {
  if (error) error->Retain();
  // acq_rel: publishes the record. Partner: ErrorAt; a lost device may report a node while later nodes are being
  // issued.
  if (ErrorRecord* before = std::atomic_ref(at).exchange(error, std::memory_order_acq_rel)) before->Release();
}

// Does not replace a record, because another thread may be looking at it.
void SetErrorIfNone(ErrorRecord*& at, ErrorRecord* error) {
  ErrorRecord* none = nullptr;
  error->Retain();
  if (!std::atomic_ref(at).compare_exchange_strong(none, error, std::memory_order_acq_rel)) error->Release();
}

}  // namespace

// Returns why the node is skipped, counted; null: it runs.
ErrorRecord* Replay::SkippedBy(const PlanNode& node, uint32_t index) {
  const Site site{node.file, node.line};
  if (core_.gave_up()) [[unlikely]]  // mutant: node_starts_behind_its_engine
    return EngineCore::GaveUpBefore(node.name, site);
  if (refuses_) [[unlikely]]
    return RefusalOf(node);
  if (node.flags & PlanNode::kAlways) return nullptr;
  const uint32_t watch = run_.watch.load(std::memory_order_relaxed);
  const auto refuse = [&](auto cause) {
    return ErrorRecord::NewAskedFor(node.name, site, std::make_exception_ptr(std::move(cause)));
  };
  if (((watch & RunState::kCancel) && EngineCore::Cancelled(run_.op)) ||
      ((node.flags & PlanNode::kHasScope) && plan_.scopes[index]->load(std::memory_order_relaxed)))
    return refuse(CancelledError("cancelled before it started"));
  if ((watch & RunState::kDeadline) && Clock::now() >= run_.deadline)
    return refuse(DeadlineError("the run's deadline passed before it started"));
  if (!(watch & RunState::kErrors)) return nullptr;
  // If several inputs have errors, the first in the caller's own order counts: values, then Vars.
  for (const uint32_t value : plan_.InputsOf(node))
    if (ErrorRecord* e = ErrorAt(value)) return e->Hop(node.name, site);
  for (const PlanEffect& effect : plan_.EffectsOf(node)) {
    if (effect.mode == AccessMode::kWrite) continue;
    if (ErrorRecord* e = ErrorAt(plan_.ErrorPlace(effect.var))) return e->Hop(node.name, site);
  }
  return nullptr;
}

// Takes over the count of `error`. `late`: the node was issued to a device that has been lost since. Nodes behind it
// may be looking at its outputs, so these stay.
void Replay::Fail(const PlanNode& node, ErrorRecord* error, bool late) {
  const uint32_t watch = run_.watch.fetch_or(RunState::kErrors, std::memory_order_relaxed);
  if (error->IsRoot() && (watch & RunState::kShowsErrors)) error->Quieten();
  if (late) {
    for (const uint32_t value : plan_.OutputsOf(node)) SetErrorIfNone(run_.errors[value], error);
    for (const PlanEffect& effect : plan_.EffectsOf(node))
      if (effect.mode != AccessMode::kRead) SetErrorIfNone(run_.errors[plan_.ErrorPlace(effect.var)], error);
    return KeepFirst(node, error);
  }
  if (node.flags & PlanNode::kAlways) {
    for (const PlanEffect& effect : plan_.EffectsOf(node)) {
      ErrorRecord* const poison =
          effect.mode != AccessMode::kWrite ? run_.errors[plan_.ErrorPlace(effect.var)] : nullptr;
      if (!poison) continue;
      error->ChainTo(poison);
      break;
    }
  }
  for (const uint32_t value : plan_.OutputsOf(node)) {
    SetError(run_.errors[value], error);
    run_.values[value].Reset();  // what the kernel stored before it threw
  }
  for (const PlanEffect& effect : plan_.EffectsOf(node))
    if (effect.mode != AccessMode::kRead) SetError(run_.errors[plan_.ErrorPlace(effect.var)], error);
  if (error->IsRoot() && !error->quiet) core_.NoteError(error);
  KeepFirst(node, error);
}

// Keeps the error of the failed node that was recorded first, for the run's handle. Takes over the count.
void Replay::KeepFirst(const PlanNode& node, ErrorRecord* error) {
  {
    MutexLock lock(run_.mu);
    if (node.recorded < run_.first_failed) {
      run_.first_failed = node.recorded;
      std::swap(run_.first_error, error);
    }
  }
  if (error) error->Release();  // without the lock: with the record may end the program's exception
}

// Records a node's outcome. Takes over the count of `error`.
void Replay::Note(const PlanNode& node, ErrorRecord* error) {
  if (error) {
    Fail(node, error);
  } else if (run_.watch.load(std::memory_order_relaxed) & RunState::kErrors) {
    for (const PlanEffect& effect : plan_.EffectsOf(node))
      if (effect.mode == AccessMode::kWrite) SetError(run_.errors[plan_.ErrorPlace(effect.var)], nullptr);
  }
}

// Records a node's outcome, and ends what only this node still needed.
void Replay::Settle(uint32_t index, ErrorRecord* error) {
  Note(plan_.nodes[index], error);
  if (run_.watch.load(std::memory_order_relaxed) & RunState::kOutputs) ReleaseOutputs(plan_.nodes[index]);
  EndUses(index);
}

void Replay::ReleaseOutputs(const PlanNode& node) {
  if (run_.forked()) return;
  for (const uint32_t value : plan_.OutputsOf(node)) {
    const uint32_t output = plan_.output_of[value];
    if (output != kNoIndex) Runs(core_).ReleaseOutput(slot(), run_, output);
  }
}

void Replay::SettleTicket(const PlanTicket& ticket) {
  if (plan_.tasks[ticket.task].device) return SettleBulk(ticket);
  Settle(ticket.node, ticket.error);
}

void Replay::RunWatched(uint32_t index) {
  if (run_.forked()) return;  // mutant: node_behind_a_fork
  const PlanNode& node = plan_.nodes[index];
  const uint32_t watch = run_.watch.load(std::memory_order_relaxed);
  const bool timed = watch & RunState::kTimes, busy = watch & RunState::kBusy;
  TracedBody traced(core_);
  if (traced.on()) DescribeNode(traced, run_, node, nullptr);
  ErrorRecord* error = SkippedBy(node, index);
  if (error) {
    slot().skipped.Add();
    traced.Skip(t_role_lent || !worker_ ? nullptr : worker_->name.c_str());
    return Settle(index, error);
  }
  traced.Begin(worker_ ? worker_->name.c_str() : nullptr);
  const auto begin = timed ? Clock::now() : Clock::time_point{};
  const int64_t before = busy ? ThreadNanos() : 0;
  Runs::SetNode(ctx_, node);
  try {
    node.run(node.closure, ctx_, nullptr);
  } catch (...) {
    error = ErrorRecord::NewRoot(node.name, {node.file, node.line}, std::current_exception());
  }
  const int64_t worked = busy ? ThreadNanos() - before : -1;
  if (timed) {
    NodeTime& time = run_.times[node.recorded];
    time = {NanosOf(begin), NanosOf(Clock::now()), worker_ ? worker_->index : -1, worked};
    for (const uint32_t value : plan_.OutputsOf(node)) time.bytes += run_.values[value].bytes();
  }
  traced.End();
  Settle(index, error);
}

// A value has one writer in a run. So has the mark of a node that others are ordered behind; marks are numbered from
// kMarks on.
void Replay::DescribeNode(TracedBody& traced, const RunState& run, const PlanNode& node, const void* key) {
  constexpr uint64_t kMarks = uint64_t{1} << 31;
  const PlanCore& plan = *run.owner;
  const auto of_run = [&](uint64_t number) { return run.frame_key << 32 | number; };
  traced.About(key, run.op, node.name, {node.file, node.line});
  for (const uint32_t value : plan.InputsOf(node)) traced.Touch(nullptr, of_run(value), AccessMode::kRead);
  auto order = std::lower_bound(plan.orders.begin(), plan.orders.end(), node.recorded,
                                [](const Graph::Edge& e, uint32_t to) { return e.to < to; });
  for (; order != plan.orders.end() && order->to == node.recorded; ++order)
    traced.Touch(nullptr, of_run(kMarks | order->from), AccessMode::kRead);
  for (const PlanEffect& effect : plan.EffectsOf(node)) {
    const VarCore* const var = CoreOf(plan.vars[effect.var].core());
    traced.Touch(var->pusher.name, reinterpret_cast<uint64_t>(var), effect.mode);
  }
  for (const uint32_t value : plan.OutputsOf(node)) traced.Touch(nullptr, of_run(value), AccessMode::kWrite);
  if (!plan.orders.empty()) traced.Touch(nullptr, of_run(kMarks | node.recorded), AccessMode::kWrite);
}

OpRecord* Replay::NewTicket(uint32_t task, uint32_t index, uint32_t flags) {
  OpRecord* op = Runs(core_).NewTicket(slot(), run_, {.run = &run_, .task = task, .node = index}, flags);
  if (!op) return nullptr;
  const PlanNode& node = plan_.nodes[index == kNoIndex ? plan_.tasks[task].first : index];
  op->extra.name = node.name;
  op->extra.file = node.file;
  op->extra.line = node.line;
  return op;
}

ErrorRecord* Replay::RefusalOf(const PlanNode& node) const {
  return ErrorRecord::NewRoot(node.name, {node.file, node.line},
                              refuses_ && cannot_await_ ? *cannot_await_ : std::make_exception_ptr(std::bad_alloc()));
}

// The asynchronous node cannot be started: it has failed.
OpRecord* Replay::Refuse(uint32_t index) {
  Settle(index, RefusalOf(plan_.nodes[index]));
  return nullptr;
}

OpRecord* Replay::Launch(uint32_t task, uint32_t index, OpRecord* ticket) {
  if (run_.forked()) return nullptr;
  if (plan_.tasks[task].device) return LaunchOnDevice(task);
  const PlanNode& node = plan_.nodes[index];
  Name(node);
  TracedBody traced(core_);
  if (ErrorRecord* error = SkippedBy(node, index)) {
    slot().skipped.Add();
    if (traced.on()) DescribeNode(traced, run_, node, nullptr);
    traced.Skip(t_role_lent || !worker_ ? nullptr : worker_->name.c_str());
    Settle(index, error);
    return nullptr;
  }
  OpRecord* const made = ticket ? nullptr : NewTicket(task, index, kAsyncOp);
  if (!ticket && !made) return Refuse(index);
  if (made) ticket = made;
  Completion ours;
  try {
    ours = core_.StartAsync(slot(), ticket);
  } catch (const std::bad_alloc&) {
    if (made) Runs(core_).RecycleOp(slot(), made);
    return Refuse(index);
  }
  if (run_.watch.load(std::memory_order_relaxed) & RunState::kTimes)
    run_.times[node.recorded] = {NanosOf(Clock::now()), 0, worker_ ? worker_->index : -1, -1};
  Runs::SetNode(ctx_, node);
  if (traced.on()) DescribeNode(traced, run_, node, ticket);
  traced.Begin(worker_ ? worker_->name.c_str() : nullptr);
  try {
    Completion theirs = ours;
    node.run(node.closure, ctx_, &theirs);
  } catch (...) {
    ours.Fail(std::current_exception());
  }
  EngineCore::NoteReturned(ours);
  traced.End();
  return ticket;
}

void Replay::EndUses(uint32_t index, uint32_t which) {
  for (const PlanLayout::End& end : plan_.EndsOf(plan_.nodes[index])) {
    if (!(which & (end.what < PlanLayout::kVarEnd ? kValueEnds : kVarEnds))) continue;
    if (end.counter != kNoIndex && !Down(end.counter)) continue;
    if (end.what < PlanLayout::kVarEnd) {
      run_.values[end.what].Reset();
    } else {
      ReleaseVar(end.what - PlanLayout::kVarEnd);
    }
  }
}

void Replay::ReleaseVar(uint32_t var) {
  if (run_.forked()) return;
  const uint32_t place = plan_.access_of[var];
  const Access& access = Runs::AccessOf(run_, place);
  if (!access.read() && (run_.watch.load(std::memory_order_relaxed) & RunState::kErrors))
    core_.SetPoison(CoreOf(access.var), run_.errors[plan_.ErrorPlace(var)]);
  Runs(core_).ReleaseVar(slot(), run_, place);
}

}  // namespace engine::detail
