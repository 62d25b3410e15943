// The kinds of ops that carry runs of plans (op_kind.h).
#include <new>

#include "graph/replay.h"

namespace engine::detail {
namespace {

OpRecord* Run(EngineCore& core, ThreadSlot& slot, OpRecord* op, Worker* worker) {
  return Runs(core).Execute(slot, op, worker);
}
OpRecord* OwnerOf(OpRecord* op) { return RunOf(op)->op; }

// Called in a fork's child. The run's other threads are gone, so the run never ends; this one runs no further node of it.
void Orphan(OpRecord* op) {
  RunState& run = *RunOf(op);
  run.watch.fetch_or(RunState::kForked, std::memory_order_relaxed);
  run.remaining += uint32_t{1} << 30;
  // A thread that does not exist in the child may have locked these, so they are made anew.
  ::new (static_cast<void*>(&run.mu)) Mutex;
  ::new (static_cast<void*>(&run.ready_mu)) Mutex;
  run.parked.store(RunState::kNobody, std::memory_order_relaxed);
}

void ForVars(OpRecord* op, void* to, void (*fn)(void* to, VarCore* var, AccessMode mode)) {
  ForNodeVars(op, [&](VarCore* var, AccessMode mode) { fn(to, var, mode); });
}

void ForSegmentVars(OpRecord* op, void* to, void (*fn)(void* to, VarCore* var, AccessMode mode)) {
  const auto& body = *static_cast<PlanIssueAll*>(op->closure());
  for (const PlanEffect& effect : body.segment().effects)
    fn(to, CoreOf(body.run->owner->vars[effect.var].core()), effect.mode);
}

bool OrderedThere(OpRecord* op, uint32_t access) {
  const auto& there = RunOf(op)->owner->ordered_there;  // of the plan's Vars, in front of the run's own
  return access < there.size() && there[access];
}

// Of a run: the Vars that its gates have.
void ForGateVars(OpRecord* op, void* to, void (*fn)(void* to, VarCore* var, AccessMode mode)) {
  const RunGates* const gates = RunOf(op)->gates;
  if (!gates) return;
  for (OpRecord* const gate : gates->gate)
    if (gate) fn(to, CoreOf(gate->accesses()->var), gate->accesses()->mode());
}

void Settle(EngineCore& core, Pass& pass, OpRecord* op) {
  OpRecord* const ticket = *static_cast<OpRecord**>(op->closure());
  // Nobody clears this poison here, because the next write of the task Var does.
  ErrorRecord* const poison = CoreOf(op->accesses()[0].var)->completer.poison.load(std::memory_order_relaxed);
  if (poison) poison->Retain();
  core.Complete(pass, op);
  Runs(core).FinishTicket(ticket, poison);
}

const OpKindEntry kRun(OpKindId::kRun, {.execute = Run,
                                        .orphan = Orphan,
                                        .wide_for = Runs::WideFor,
                                        .for_vars = ForGateVars,
                                        .ordered_there = OrderedThere,
                                        .access_elsewhere = Runs::AccessInGate});
const OpKindEntry kShare(OpKindId::kShare,
                         {.execute = Run, .owner = OwnerOf, .orphan = Orphan, .wide_for = Runs::WideFor});
const OpKindEntry kTicket(OpKindId::kTicket,
                          {.execute = Run,
                           .when_completed = [](EngineCore& core, OpRecord* op,
                                                ErrorRecord* error) { Runs(core).FinishTicket(op, error); },
                           .owner = OwnerOf,
                           .orphan = Orphan});
const OpKindEntry kNode(OpKindId::kNode, {.owner = OwnerOf,
                                          .issued = Replay::NodeIssued,
                                          .refused = Replay::NodeRefused,
                                          .failed = Replay::NodeFailed,
                                          .launched = Replay::KeepGraph,
                                          .for_vars = ForVars});
const OpKindEntry kSegment(OpKindId::kSegment, {.owner = OwnerOf,
                                                .issued = Replay::SegmentIssued,
                                                .refused = Replay::SegmentRefused,
                                                .kept_graph = Replay::GraphOfSegment,
                                                .trace = Replay::TraceSegment,
                                                .for_vars = ForSegmentVars});
const OpKindEntry kGate(OpKindId::kGate, {.when_granted = [](EngineCore& core, Pass& pass, OpRecord* op) {
                          Runs(core).OpenGate(pass, op);
                        }});
const OpKindEntry kSettle(OpKindId::kSettle, {.when_granted = Settle, .asked_for = Replay::AskedFor});

}  // namespace
}  // namespace engine::detail
