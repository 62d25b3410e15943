// A run from its start to its end: an op on the plan's Vars whose body is a replay, and the ops that carry parts of the
// run.
#include <algorithm>

#include "core/draft.h"
#include "graph/replay.h"
#include "graph/runs.h"

namespace engine::detail {
namespace {

std::string PlanText(const PlanCore& plan, Site site) {
  return "plan " + Quote(plan.options.name) + " started at " + At(site);
}

void CheckInputs(const PlanCore& plan, std::span<Value> inputs, Site site) {
  const auto& wanted = plan.graph.inputs();
  if (inputs.size() != wanted.size())
    throw UsageError(PlanText(plan, site) + " takes " + std::to_string(wanted.size()) + " inputs and was given " +
                     std::to_string(inputs.size()));
  if (plan.shape_checked.load(std::memory_order_relaxed)) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Graph::ValueInfo& info = plan.graph.values()[wanted[i].index];
    if (!info.type || (inputs[i].type() && *inputs[i].type() == *info.type)) continue;
    throw UsageError(PlanText(plan, site) + ": input " + std::to_string(i) + " " + Quote(info.name) +
                     " must be of type " + TypeText(info.type) + " and is " + TypeText(inputs[i].type()));
  }
  if (plan.options.static_shape) plan.shape_checked.store(true, std::memory_order_relaxed);
}

// A registration needs each Var once: it would wait for itself at the second.
void CheckOnce(const PlanCore& plan, std::span<const Var> vars, std::span<const Var> others, Site site) {
  for (size_t i = 0; i < vars.size(); ++i) {
    const VarCore* const var = vars[i] ? CoreOf(vars[i].core()) : nullptr;
    if (!var) continue;
    if (var->pusher.core != plan.core)
      throw UsageError(PlanText(plan, site) + ": Var '" + var->pusher.name +
                       "' of RunOptions belongs to another engine; name Vars of the plan's engine");
    const auto same = [&](const Var& other) { return other && CoreOf(other.core()) == var; };
    const auto named = std::ranges::lower_bound(plan.accesses, var, std::less<>(), &PlanCore::AccessTemplate::var);
    if ((named != plan.accesses.end() && named->var == var) || std::ranges::any_of(vars.subspan(i + 1), same) ||
        std::ranges::any_of(others, same))
      throw UsageError(PlanText(plan, site) + ": RunOptions names Var '" + var->pusher.name +
                       "' twice, or the plan names it, too; each input and output needs a Var of its own");
  }
}

// How many of the inputs have Vars.
uint32_t CheckOwnVars(const PlanCore& plan, std::span<const Var> inputs, std::span<const Var> outputs, Site site) {
  if (!inputs.empty() && inputs.size() != plan.graph.inputs().size())
    throw UsageError(PlanText(plan, site) + " has " + std::to_string(plan.graph.inputs().size()) +
                     " inputs, and RunOptions::inputs has " + std::to_string(inputs.size()) + " Vars");
  const auto ours = static_cast<uint32_t>(std::ranges::count_if(inputs, [](const Var& var) { return bool(var); }));
  if (const size_t wanted = plan.graph.outputs().size(); !outputs.empty() && outputs.size() != wanted)
    throw UsageError(PlanText(plan, site) + " has " + std::to_string(wanted) +
                     " outputs, and RunOptions::outputs has " + std::to_string(outputs.size()) + " Vars");
  if (plan.accesses.size() + ours + outputs.size() + 1 > Protocol::kMaxAccesses)
    throw UsageError(PlanText(plan, site) + " has more inputs, outputs and Vars than an op may name; " +
                     std::to_string(Protocol::kMaxAccesses - 1) + " together are the most");
  for (const Var& var : outputs)
    if (!var)
      throw UsageError(PlanText(plan, site) + ": RunOptions::outputs has a null Var; make Vars with Engine::NewVar");
  CheckOnce(plan, outputs, inputs, site);
  if (ours != 0) CheckOnce(plan, inputs, {}, site);
  return ours;
}

}  // namespace

RunState* Runs::Start(PlanCore& plan, std::span<Value> inputs, const RunOptions& options, PolicyStamp stamp,
                      const ModelStep& step, Site site, bool may_wait) {
  core_.CheckMayPush(plan.options.name.c_str(), site);
  CheckInputs(plan, inputs, site);
  if (!options.times.empty() && options.times.size() != plan.graph.nodes().size())
    throw UsageError(PlanText(plan, site) + ": RunOptions::times has " + std::to_string(options.times.size()) +
                     " entries for a graph of " + std::to_string(plan.graph.nodes().size()) + " nodes");
  if (options.priority) CheckPriority(*options.priority, plan.options.name, site);
  const size_t outputs = options.outputs.size();
  const uint32_t awaited = CheckOwnVars(plan, options.inputs, options.outputs, site);

  const CancelScope* const cancel = options.cancel ? options.cancel : t_scopes.cancel;
  const ScopePtr* const scope = cancel ? &EngineCore::ScopeOf(*cancel) : nullptr;
  const auto shared = static_cast<uint32_t>(plan.accesses.size());
  const auto n = static_cast<uint32_t>(shared + awaited + outputs + 1);
  const size_t closure_at = scope ? sizeof(ScopePtr) : 0;
  const size_t bytes = sizeof(OpRecord) + n * sizeof(Access) + closure_at + sizeof(PlanShare);
  ThreadSlot& slot = core_.Slot();
  uint32_t cls = ClassOf(bytes);
  // Null: the start would have to wait for room.
  if ((cls >= kClasses || slot.cache.Empty(cls)) && !core_.admission().MakeRoom(slot, may_wait)) return nullptr;
  slot.cache.Reserve(kGroupClass, plan.reads + awaited);
  slot.ReserveScratch(n);
  auto* op = static_cast<OpRecord*>(cls < kClasses ? slot.cache.Get(cls) : core_.ops().TakeLarge(bytes, &cls));
  op->Init({.name = plan.options.name.c_str(),
            .site = site,
            .kind = OpKindId::kRun,
            .pool = core_.DefaultPoolOf(stamp),
            .level = LevelOf(options.priority.value_or(plan.priority)),
            .intra_op = static_cast<uint8_t>(stamp.intra_op_threads),
            .size_class = cls,
            .closure_at = closure_at});
  Draft draft(slot, op);
  RunState* run = plan.TakeFrame();
  op->extra.flags = kOwnWay | kOnePinMore | (scope ? kScoped : 0u) | (stamp.at_push ? kAtPush : 0u);
  op->n_access = static_cast<uint16_t>(n);
  for (uint32_t i = 0; i < shared; ++i) {
    op->accesses()[i].var = plan.accesses[i].var;
    op->accesses()[i].word = plan.accesses[i].word;
  }
  // The Vars of outputs and inputs and the run's own come last. That is the order in which a run finds them.
  uint32_t at = run->first_own = shared;
  const auto add = [&](VarCore* var, AccessMode mode) {
    op->accesses()[at].var = var;
    op->accesses()[at].word = uint64_t{at} << 2 | static_cast<uint64_t>(mode);
    ++at;
  };
  for (const Var& var : options.outputs) add(var.core(), AccessMode::kWrite);
  std::span<Access* const> together;
  try {
    run->awaited.clear();
    run->awaited.reserve(awaited);
    for (uint32_t i = 0; i < options.inputs.size(); ++i) {
      if (!options.inputs[i]) continue;
      add(options.inputs[i].core(), AccessMode::kRead);
      run->awaited.push_back(i);
    }
    add(run->done.core(), AccessMode::kWrite);
    run->released.assign(outputs, 0);
    if (step.timed && options.times.empty()) run->model_times.resize(plan.graph.nodes().size());
    if (step.timed && plan.concurrent) run->timers.resize(plan.nodes.size());
    Protocol::SetPins(op, n - plan.reads - awaited);
    if (plan.may_have_gates && !stamp.at_push && !step.model) MakeGates(slot, *run, options.inputs, site);
    if (run->gates) [[unlikely]]
      MoveToGates(*run, op);
    together = ListTogether(*run, op, options.outputs);
  } catch (...) {         // there is no memory
    op->extra.flags = 0;  // its scope has not been made
    DropGates(slot, *run);
    run->model_times.clear();
    plan.ReturnFrame(run);
    throw;
  }
  if (scope) ::new (&op->scope()) ScopePtr(*scope);
  ::new (op->closure()) PlanShare{run};

  run->plan = plan.shared_from_this();
  run->op = op;
  run->home = op->extra.pool;
  run->level = op->extra.level;
  run->in_order = stamp.at_push;
  run->narrow = step.narrow;
  run->deadline = options.deadline;
  run->times = options.times;
  if (step.model) [[unlikely]] {
    run->model = step.model;
    run->model_step = step.number;
    if (step.timed && run->times.empty()) run->times = run->model_times;
  }
  std::fill(run->times.begin(), run->times.end(), NodeTime{});
  uint32_t watch = scope ? uint32_t{RunState::kCancel} : 0;
  if (outputs != 0) watch |= RunState::kOutputs;
  if (options.shows_errors) watch |= RunState::kShowsErrors;
  if (options.deadline != kNever) watch |= RunState::kDeadline;
  if (!run->times.empty()) watch |= RunState::kTimes | (step.timed ? RunState::kBusy : 0u);
  // relaxed stores: the registration publishes the frame to the thread that begins the run.
  run->watch.store(watch, std::memory_order_relaxed);
  // A model measures the end of the run. Whoever waits for an output of its own does not ask.
  run->asked.store(watch & (RunState::kTimes | RunState::kOutputs) || step.model, std::memory_order_relaxed);
  const uint32_t gates = run->gates ? run->gates->count : 0;  // mutant: gates_that_nobody_awaits
  run->remaining.store(plan.remaining + 1 + gates, std::memory_order_relaxed);
  run->refs.store(2, std::memory_order_relaxed);
  run->worked.store(0, std::memory_order_relaxed);
  run->waiter.store(false, std::memory_order_relaxed);
  for (size_t i = 0; i < inputs.size(); ++i) run->values[plan.graph.inputs()[i].index] = std::move(inputs[i]);
  try {
    if (!together.empty()) [[unlikely]] {
      core_.StartTogether(slot, std::move(draft), together);
    } else {
      core_.StartRecord(slot, std::move(draft));
    }
  } catch (...) {  // the start was refused: nothing has begun
    DropGates(slot, *run);
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = std::move(run->values[plan.graph.inputs()[i].index]);
    run->refs.store(1, std::memory_order_relaxed);
    run->model.reset();
    Drop(*run);
    throw;
  }
  // A piece of ParallelFor may not wait, and nothing was run there; another thread may have run it meanwhile.
  if (!stamp.raise_at_push || t_in_piece) return run;
  try {
    if (Protocol::Settled(run->done.core())) core_.Wait(run->done, EngineCore::WaitKind::kRead, kNever, site);
  } catch (...) {
    Drop(*run);
    throw;
  }
  return run;
}

// A registration locks the tails of all Vars in the order of their addresses, because others may be locking some of them.
// So the accesses are listed in that order, except Vars that no other thread can name yet: the run's own, and those of outputs
// that nobody has pushed on. Empty: the order of the op's accesses will do.
std::span<Access* const> Runs::ListTogether(RunState& run, OpRecord* op, std::span<const Var> outputs) {
  const auto fresh = [](const Var& var) {
    const VarCore* const core = CoreOf(var.core());
    // relaxed: if another thread is pushing on it right now, it also has a place among those of that push.
    return core->tail.load(std::memory_order_relaxed) == 0 && core->settled.load(std::memory_order_relaxed) == 0;
  };
  std::vector<Access*>& all = run.gates ? run.gates->all : run.together;
  if (!run.gates) {
    if (run.awaited.empty() && std::ranges::all_of(outputs, fresh)) return {};
    all.clear();
    for (uint32_t i = 0; i < op->n_access; ++i) {
      op->accesses()[i].op = op;
      all.push_back(&op->accesses()[i]);
    }
  }
  std::ranges::sort(all, std::less<>(), [](const Access* a) { return a->var; });
  return all;
}

// Called when all Vars of the run's op are granted, so that their errors are known.
void Runs::Begin(RunState& run) {
  const PlanCore& plan = *run.owner;
  if (run.model) [[unlikely]]
    run.began = Clock::now();
  if (!core_.poisoned()) [[likely]]
    return;
  const auto shared = static_cast<uint32_t>(plan.accesses.size());
  for (uint32_t place = 0; place < shared; ++place)
    if (!GateOf(run, place)) TakePoison(run, place, plan.accesses[place].var);
  const Access* input = run.op->accesses() + run.first_own + run.released.size();
  for (const uint32_t number : run.awaited)
    if (!GateOf(run, shared + number)) TakePoison(run, shared + number, CoreOf((input++)->var));
}

// A Var of the run is granted: the nodes find its error in the run's own record.
void Runs::TakePoison(RunState& run, uint32_t place, const VarCore* var) {
  ErrorRecord* const poison = var->completer.poison.load(std::memory_order_relaxed);
  if (!poison) return;
  run.errors[run.owner->ErrorOfPlace(place)] = poison->Retain();
  run.watch.fetch_or(RunState::kErrors, std::memory_order_relaxed);
}

OpRecord* Runs::Execute(ThreadSlot& slot, OpRecord* op, Worker* worker) {
  RunState& run = *RunOf(op);
  const OpKindId kind = op->extra.kind;
  OpRecord* handed = nullptr;
  uint32_t ended = 0;
  bool together = false;
  {
    Replay replay(core_, slot, op, worker, run);
    if (kind == OpKindId::kTicket) {
      replay.RunTicket();
      return nullptr;
    }
    // The tasks of a share may all stop at gates, and go on and end elsewhere. So it has a count of its own: else the run
    // could end, and its frame begin another run, while we are here. relaxed: the tasks that we were given have not ended.
    const bool counts = kind == OpKindId::kShare && run.gates;
    if (counts) [[unlikely]]
      run.remaining.fetch_add(1, std::memory_order_relaxed);
    if (kind == OpKindId::kRun) Begin(run);
    if (run.in_order) {
      replay.RunAll();
      ended = run.owner->remaining;
    } else {
      const auto& share = *static_cast<PlanShare*>(op->closure());  // of a run that begins: empty
      const uint32_t sources = kind == OpKindId::kRun ? static_cast<uint32_t>(run.owner->sources.size()) : 0;
      const uint32_t ends = share.ends;
      together = share.counted || (op->extra.pool == run.home && Together(run));
      ended = together ? replay.RunTogether(share.head, sources, share.counted) : replay.RunAlone(share.head, sources);
      ended += ends;
      ended += counts;
      ended += replay.refused() + replay.held();
      together |= replay.in_team();
      handed = replay.handed();
    }
  }
  if (run.forked()) [[unlikely]]  // slot and role are the parent's
    return nullptr;
  ThreadSlot& now = t_role_lent ? core_.Slot() : slot;
  if (kind == OpKindId::kRun) {
    ++ended;
  } else {
    RecycleOp(now, op);
  }
  if (together && !handed && !t_role_lent) {
    // We take a count, because the run may end without us.
    run.refs.fetch_add(1, std::memory_order_relaxed);
    OpRecord* next = EndTasks(now, run, ended, worker);
    if (SpareShare spare(now, run); spare.Have()) {
      if (const uint32_t ready = AwaitReady(run, worker); ready != kNoIndex) next = spare.Of(ready);
    } else {
      LeaveTeam(run);
    }
    Drop(run);
    return next;
  }
  OpRecord* next = EndTasks(now, run, ended, t_role_lent ? nullptr : worker);
  if (!handed) return next;
  worker->turn_over = true;
  return handed;
}

OpRecord* Runs::EndTasks(ThreadSlot& slot, RunState& run, uint32_t ended, Worker* worker) {
  CheckCounts(run.op, ended);
  // seq_cst: acq_rel for what the others did, and partner of Park.
  if (run.remaining.fetch_sub(ended, std::memory_order_seq_cst) != ended) return nullptr;
  return Finish(slot, run, worker);
}

OpRecord* Runs::Finish(ThreadSlot& slot, RunState& run, Worker* worker) {
  OpRecord* op = run.op;
  Access& done = op->accesses()[op->n_access - 1];
  if (const int64_t worked = run.worked.load(std::memory_order_relaxed))
    run.owner->NoteTaskNanos(worked / static_cast<int64_t>(run.owner->tasks.size()));
  if (run.model) [[unlikely]]
    ReportToModel(run);
  for (uint32_t output = 0; output < run.released.size(); ++output) ReleaseOutput(slot, run, output);
  if (!run.forked()) ReleaseInputs(slot, run);
  EndGates(slot, run);
  if (run.watch.load(std::memory_order_relaxed) & RunState::kErrors) [[unlikely]] {
    const size_t n = run.owner->graph.values().size() + run.owner->vars.size();
    for (size_t i = 0; i < n; ++i)
      if (ErrorRecord* error = std::exchange(run.errors[i], nullptr)) error->Release();
    ErrorRecord* first;
    {
      MutexLock lock(run.mu);
      first = std::exchange(run.first_error, nullptr);
      run.first_failed = kNoIndex;
    }
    core_.SetPoison(CoreOf(done.var), first);
    if (first) first->Release();  // without the lock, like the others: with a record may end the program's exception
  }
  if (op->extra.flags & kScoped) op->scope().~ScopePtr();
  const uint8_t epoch = op->extra.epoch;
  op->extra.state.store(OpState::kFree, std::memory_order_relaxed);
  Pass pass{&slot};
  Jitter();
  Protocol::CompleteOne(pass, op, done);
  Protocol::DropPins(pass, op, 1);
  if (run.waiter.load(std::memory_order_seq_cst)) Unpark(run);
  Jitter();
  Drop(run);  // before the run is counted as ended, so that the plan's frames are free after a drain
  return core_.CountEnd(slot, pass, epoch, worker);
}

// Called before the run's end is published, because afterwards the times belong to the caller.
void Runs::ReportToModel(RunState& run) {
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - run.began);
  bool failed;
  {
    MutexLock lock(run.mu);
    failed = run.first_error != nullptr;
  }
  using Outcome = CostModel::Report::Outcome;
  run.model->End(run.model_step,
                 {.outcome = failed ? Outcome::kFailed : Outcome::kEnded, .nanos = took.count(), .times = run.times});
  run.model.reset();
  run.model_times.clear();
}

// Called by the handle and by the run. The second call empties the frame, except for what static_alloc keeps.
void Runs::Drop(RunState& run) {
  if (run.refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::shared_ptr<PlanCore> plan = std::move(run.plan);
  // Ops that were pushed behind the run may still look at its error. So the Var goes, behind them, and the frame gets
  // another one (TakeFrame).
  if (run.done.core()->completer.poison.load(std::memory_order_relaxed)) [[unlikely]]
    run.done = Var();  // mutant: error_of_a_dropped_run
  if (!plan->options.static_alloc)
    for (const uint32_t v : plan->left_over) run.values[v].Reset();
  plan->ReturnFrame(&run);
}

// --- the ops that carry parts of a run

// Null: there is no memory, or this is a fork's child, whose threads have no part in the parent's run.
static void* ShareBlock(ThreadSlot& slot, const RunState& run) noexcept try {
  return run.forked() ? nullptr : slot.cache.Get(kShareClass);
} catch (const std::bad_alloc&) {
  return nullptr;
}

OpRecord* Runs::NewTicket(ThreadSlot& slot, RunState& run, const PlanTicket& ticket, uint32_t flags) noexcept {
  void* const block = ShareBlock(slot, run);
  if (!block) return nullptr;
  OpRecord* op = OpIn(block, kShareClass, run, OpKindId::kTicket, flags, run.home);
  ::new (op->closure()) PlanTicket{.run = ticket.run, .task = ticket.task, .node = ticket.node};
  return op;
}

OpRecord* Runs::OpIn(void* block, uint32_t cls, RunState& run, OpKindId kind, uint32_t flags, uint8_t pool_index) {
  auto* op = static_cast<OpRecord*>(block);
  op->Init({.name = run.owner->options.name.c_str(),
            .flags = kOwnWay | flags,
            .kind = kind,
            .pool = pool_index,
            .level = run.level,
            .intra_op = run.op->extra.intra_op,
            .size_class = cls});
  op->extra.epoch = run.op->extra.epoch;  // who waits for it is notified at the run's end
  op->n_access = 0;
  op->extra.state.store(OpState::kReady, std::memory_order_release);
  return op;
}

void Runs::RecycleOp(ThreadSlot& slot, OpRecord* op) {
  op->extra.state.store(OpState::kFree, std::memory_order_relaxed);
  slot.cache.Return(op->extra.size_class, op);
}

OpRecord* Runs::NewShare(ThreadSlot& slot, RunState& run, uint32_t head, uint8_t pool_index, bool counted) noexcept {
  void* const block = ShareBlock(slot, run);
  return block ? ShareIn(block, run, head, pool_index, counted) : nullptr;
}

bool SpareShare::Have() noexcept {
  if (!block_) block_ = ShareBlock(slot_, run_);
  return block_;
}

OpRecord* SpareShare::Of(uint32_t task) {
  if (task == kNoIndex) return nullptr;
  run_.next[task] = kNoIndex;
  return Runs::ShareIn(std::exchange(block_, nullptr), run_, task, run_.home, true);
}

OpRecord* Runs::ShareIn(void* block, RunState& run, uint32_t head, uint8_t pool_index, bool counted) {
  OpRecord* op = OpIn(block, kShareClass, run, OpKindId::kShare, 0, pool_index);
  ::new (op->closure()) PlanShare{&run, head, counted};
  return op;
}

bool Runs::PostShare(ThreadSlot& slot, RunState& run, uint32_t head, uint32_t rest, uint8_t pool_index) noexcept {
  OpRecord* const share = NewShare(slot, run, head, pool_index);
  if (!share) return false;
  run.next[head] = rest;
  core_.Post(slot, share);
  return true;
}

void Runs::ReleaseAccess(ThreadSlot& slot, OpRecord* op, Access& access) {
  Pass pass{&slot};
  Protocol::CompleteOne(pass, op, access);
  if (pass.ready) core_.Dispatch(pass, nullptr);
}

NodeContext Runs::MakeContext(EngineCore& core, OpRecord* op, int worker, RunState& run) {
  return {&core, op, worker, &run};
}

void Runs::ReleaseInputs(ThreadSlot& slot, RunState& run) {
  Access* input = run.op->accesses() + run.first_own + run.released.size();
  for (const uint32_t number : run.awaited) {
    const auto place = static_cast<uint32_t>(run.owner->accesses.size() + number);
    if (OpRecord* const gate = GateOf(run, place)) {
      ReleaseGate(slot, gate);
    } else {
      ReleaseAccess(slot, run.op, *input++);
    }
  }
}

void Runs::ReleaseOutput(ThreadSlot& slot, RunState& run, uint32_t output) {
  if (run.forked() || run.released.empty() || std::exchange(run.released[output], uint8_t{1})) return;
  Access& access = run.op->accesses()[run.first_own + output];
  if (run.watch.load(std::memory_order_relaxed) & RunState::kErrors) {
    const uint32_t value = run.owner->graph.outputs()[output].index;
    core_.SetPoison(CoreOf(access.var), std::atomic_ref(run.errors[value]).load(std::memory_order_acquire));
  }
  ReleaseAccess(slot, run.op, access);
}

// If the run needs a Var that an op on this thread's stack names, it would wait for that op.
void Runs::CheckWait(const RunState& run, Site site) const {
  for (const BodyFrame* f = t_frame; f; f = f->outer) {
    if (f->core != &core_) continue;
    for (const auto& wanted : run.owner->accesses) {
      const Access* held = EngineCore::FindAccess(f->op, wanted.var);
      const bool reads = static_cast<AccessMode>(wanted.word & 3) == AccessMode::kRead;
      if (held && !(held->read() && reads))
        throw UsageError("op '" + std::string(f->op->extra.name) + "' waits at " + At(site) + " for a run of plan " +
                         Quote(run.owner->options.name) + ", which needs Var '" + wanted.var->pusher.name +
                         "' that the op names itself; wait for the run outside of the op");
    }
  }
}

}  // namespace engine::detail
