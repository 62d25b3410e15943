// The gates of a run (gates.h): choosing, opening and giving back.
#include "graph/gates.h"

#include <algorithm>
#include <utility>

#include "core/core.h"
#include "graph/replay.h"
#include "graph/runs.h"

namespace engine::detail {
namespace {

constexpr uint32_t kGateBytes = sizeof(OpRecord) + sizeof(Access) + sizeof(PlanGate);
void* TakeBlock(void*& blocks) { return std::exchange(blocks, *static_cast<void**>(blocks)); }

void ReturnBlocks(ThreadSlot& slot, void* blocks) {
  while (blocks) slot.cache.Return(kShareClass, TakeBlock(blocks));
}

// Calls fn(place, Var, mode) for each place of a run that has an access.
template <class Fn>
void ForPlaces(const PlanCore& plan, std::span<const Var> inputs, Fn&& fn) {
  const auto shared = static_cast<uint32_t>(plan.accesses.size());
  for (uint32_t i = 0; i < shared; ++i) fn(i, plan.accesses[i].var, static_cast<AccessMode>(plan.accesses[i].word & 3));
  for (uint32_t i = 0; i < inputs.size(); ++i)
    if (inputs[i]) fn(shared + i, CoreOf(inputs[i].core()), AccessMode::kRead);
}

RunGates& GatesOf(RunState& run) {
  if (!run.gates_kept) {
    const PlanCore& plan = *run.owner;
    auto made = std::make_unique<RunGates>();
    for (const PlanTask& task : plan.tasks) made->stopped.push_back(task.first);
    made->missing = std::make_unique<std::atomic<uint32_t>[]>(plan.nodes.size());
    run.gates_kept = std::move(made);
  }
  return *run.gates_kept;
}

}  // namespace

// Which nodes wait for which place, and whether a run can start without it.
void PlanCore::FindUsers() {
  const size_t shared = accesses.size();
  std::vector<uint32_t> input_of(graph.values().size(), kNoIndex);
  for (uint32_t i = 0; i < graph.inputs().size(); ++i) input_of[graph.inputs()[i].index] = i;
  std::vector<std::vector<uint32_t>> of(shared + graph.inputs().size());
  task_of.resize(nodes.size());
  for (uint32_t t = 0; t < tasks.size(); ++t) {
    for (uint32_t n = tasks[t].first; n < tasks[t].end; ++n) {
      task_of[n] = t;
      // The task's later nodes come behind its first one of that place anyway.
      const auto add = [&](size_t place) {
        if (of[place].empty() || task_of[of[place].back()] != t) of[place].push_back(n);
      };
      for (const PlanEffect& effect : EffectsOf(nodes[n])) add(access_of[effect.var]);
      for (const uint32_t value : InputsOf(nodes[n]))
        if (input_of[value] != kNoIndex) add(shared + input_of[value]);
    }
  }
  for (const auto& list : of) {
    users_of.push_back(static_cast<uint32_t>(users.size()));
    users.insert(users.end(), list.begin(), list.end());
    const bool all =
        std::ranges::all_of(sources, [&](uint32_t t) { return std::ranges::find(list, tasks[t].first) != list.end(); });
    needed_first.push_back(all);
    may_have_gates |= !all && !has_device;
  }
  users_of.push_back(static_cast<uint32_t>(users.size()));
}

// Whether the run gets gates: then they are made, and `run.gates` is set. Throws if there is no memory for them.
void Runs::MakeGates(ThreadSlot& slot, RunState& run, std::span<const Var> inputs, Site site) {
  const PlanCore& plan = *run.owner;
  bool useful = false;
  ForPlaces(plan, inputs, [&](uint32_t place, VarCore* var, AccessMode mode) {
    useful |= !plan.needed_first[place] && !Protocol::LooksFree(var, mode);
  });
  if (!useful) return;
  RunGates& gates = GatesOf(run);
  const size_t places = plan.accesses.size() + plan.graph.inputs().size();
  gates.late.assign(places, false);
  gates.gate.assign(places, nullptr);
  gates.access.assign(places, nullptr);
  gates.all.clear();
  gates.all.reserve(places + run.released.size() + 1);
  gates.count = 0;
  useful = false;
  core_.gate().Enter(slot, nullptr);
  ForPlaces(plan, inputs, [&](uint32_t place, VarCore* var, AccessMode mode) {
    if (Protocol::IsFree(var, mode)) return;
    gates.late[place] = true;
    useful |= !plan.needed_first[place];
  });
  PushGate::Leave(slot);
  if (!useful) return;  // mutant: run_without_gates
  const uint32_t cls = ClassOf(kGateBytes);
  run.gates = &gates;
  ForPlaces(plan, inputs, [&](uint32_t place, VarCore* var, AccessMode mode) {
    if (!gates.late[place]) return;
    auto* gate = static_cast<OpRecord*>(slot.cache.Get(cls));
    gate->Init({.name = plan.options.name.c_str(),
                .site = site,
                .flags = kInternal | kOnePinMore,
                .kind = OpKindId::kGate,
                .pool = kDefaultPool,
                .level = kNormalLevel,
                .size_class = cls});
    gate->n_access = 1;
    Access& access = *gate->accesses();
    access.var = var;
    access.word = static_cast<uint64_t>(mode);
    access.op = gate;
    Protocol::SetPins(gate, mode != AccessMode::kRead);
    auto& opening = *::new (gate->closure()) PlanGate{&run, place, nullptr};
    gates.gate[place] = gate;
    gates.access[place] = &access;
    ++gates.count;
    // relaxed: the registration publishes it.
    uint32_t shares = 1;
    for (const uint32_t n : plan.UsersOf(place)) {
      shares += plan.tasks[plan.task_of[n]].pool != kDefaultPool;
      std::atomic<uint32_t>& missing = gates.missing[n];
      const uint32_t before = missing.load(std::memory_order_relaxed);
      missing.store(before ? before + 1 : 2, std::memory_order_relaxed);
    }
    for (; shares > 0; --shares) {
      void* const block = slot.cache.Get(kShareClass);
      *static_cast<void**>(block) = std::exchange(opening.blocks, block);
    }
  });
}

// The run's op names all Vars, and then those that have no gates.
void Runs::MoveToGates(RunState& run, OpRecord* op) {
  const auto shared = static_cast<uint32_t>(run.owner->accesses.size());
  RunGates& gates = *run.gates;
  const uint32_t n = op->n_access;
  uint32_t kept = 0, next_input = 0, writes = 0;
  const uint32_t inputs = shared + static_cast<uint32_t>(run.released.size());
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t place = kNoIndex;
    if (i < shared) {
      place = i;
    } else if (i >= inputs && next_input < run.awaited.size()) {
      place = shared + run.awaited[next_input++];
    }
    if (i == shared) run.first_own = kept;
    if (place != kNoIndex && gates.gate[place]) {
      gates.all.push_back(gates.access[place]);
      continue;
    }
    Access& to = op->accesses()[kept++];
    const Access& from = op->accesses()[i];
    to.var = from.var;
    to.word = from.word;
    to.op = op;
    writes += !to.read();
    if (place != kNoIndex) gates.access[place] = &to;
    gates.all.push_back(&to);
  }
  op->n_access = static_cast<uint16_t>(kept);
  Protocol::SetPins(op, writes);
}

// The run was not started.
void Runs::DropGates(ThreadSlot& slot, RunState& run) {
  if (!run.gates) return;
  for (uint32_t place = 0; place < run.gates->gate.size(); ++place) {
    OpRecord* const gate = run.gates->gate[place];
    if (!gate) continue;
    ReturnBlocks(slot, static_cast<PlanGate*>(gate->closure())->blocks);
    core_.DropUnregistered(slot, gate);
    for (const uint32_t n : run.owner->UsersOf(place)) run.gates->missing[n].store(0, std::memory_order_relaxed);
  }
  run.gates = nullptr;
}

// The run has ended.
void Runs::EndGates(ThreadSlot& slot, RunState& run) {
  if (!run.gates) return;
  Pass pass{&slot};
  for (OpRecord* const gate : run.gates->gate)
    if (gate) Protocol::DropPins(pass, gate, 1);
  run.gates = nullptr;
}

// The Var is granted.
void Runs::OpenGate(Pass& pass, OpRecord* op) {
  auto [run_of, place, blocks] = *static_cast<PlanGate*>(op->closure());
  RunState& run = *run_of;
  const PlanCore& plan = *run.owner;
  RunGates& gates = *run.gates;
  if (core_.poisoned()) TakePoison(run, place, CoreOf(op->accesses()->var));  // mutant: error_of_a_late_var
  // It goes on until the run gives the Var back. From the counts below on that may happen at any moment.
  op->extra.state.store(OpState::kAsync, std::memory_order_relaxed);
  uint32_t head = kNoIndex;
  for (const uint32_t n : plan.UsersOf(place)) {
    if (gates.missing[n].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;  // mutant: stopped_task_forgotten
    const uint32_t task = plan.task_of[n];
    const uint8_t pool = plan.tasks[task].pool;
    if (pool != kDefaultPool && pool != run.home) {
      run.next[task] = kNoIndex;
      core_.Post(*pass.slot, ShareIn(TakeBlock(blocks), run, task, pool, false));
    } else {
      run.next[task] = std::exchange(head, task);
    }
  }
  if (head == kNoIndex) {
    // acq_rel: as in EndTasks. The count stays above zero here, so another thread ends the run.
    uint32_t left = run.remaining.load(std::memory_order_relaxed);
    while (left > 1)
      if (run.remaining.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_relaxed))
        return ReturnBlocks(*pass.slot, blocks);
  }
  // Counting down may end the run. Its end gives Vars back, which may open gates of other runs; so a share does it, and
  // not this thread, which is in the middle of a grant.
  OpRecord* const share = ShareIn(TakeBlock(blocks), run, head, run.home, false);
  static_cast<PlanShare*>(share->closure())->ends = 1;
  ReturnBlocks(*pass.slot, blocks);
  ProductionEnv::AddReady(pass, share);
}

Access& Runs::AccessOf(const RunState& run, uint32_t place) {
  return run.gates ? *run.gates->access[place] : run.op->accesses()[place];
}

void Runs::ReleaseVar(ThreadSlot& slot, RunState& run, uint32_t place) {
  if (OpRecord* const gate = GateOf(run, place)) return ReleaseGate(slot, gate);
  ReleaseAccess(slot, run.op, AccessOf(run, place));
}

// Gives the gate's Var back.
void Runs::ReleaseGate(ThreadSlot& slot, OpRecord* gate) {
  Pass pass{&slot};
  core_.Complete(pass, gate);
  if (pass.ready) core_.Dispatch(pass, nullptr);
}

Access* Runs::AccessInGate(OpRecord* op, const VarCore* var) {
  const RunGates* const gates = RunOf(op)->gates;
  if (!gates) return nullptr;
  for (OpRecord* const gate : gates->gate)
    if (gate && gate->accesses()->var == var) return gate->accesses();
  return nullptr;
}

}  // namespace engine::detail
