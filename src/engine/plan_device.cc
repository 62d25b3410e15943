// Nodes of plans on devices: a task of them is a bulk.
//
// PlanLayout has put neighbours of one placement in one task. When it is ready its nodes are pushed as held ops that
// update one Var of the frame's, which nobody else has: they keep their order, stay on one lane, wait once and record
// once. An internal op behind them on that Var is granted when the device is done: it settles the nodes, which releases
// what only they needed, and what comes after them. With static_alloc, and a GraphKey on every node, the bulk is launched
// as a graph from a frame's third run on; keys are those of the frame, because its addresses are in the graph.
//
// Errors: a body that throws fails its node, as anywhere. What fails the bulk itself (a lost device) fails its nodes.
#include "core.h"
#include "held_chain.h"
#include "replay.h"

namespace engine::detail {
namespace {

struct NodeClosure {
  RunState* run;  // first: RunOf reads it
  uint32_t node;
  void operator()(RunContext& ctx) const { Replay::IssueNode(*run, node, ctx); }
};

int64_t NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

OpRecord* Replay::LaunchOnDevice(uint32_t index) {
  const PlanTask& task = plan_.tasks[index];
  OpRecord* const ticket = NewTicket(index, task.first, 0);
  const Var& lane = run_.lanes[task.ticket];
  // A graph runs no bodies: none may have to be skipped or timed.
  const bool as_graph = plan_.options.static_alloc && run_.watch.load(std::memory_order_relaxed) == 0;
  HeldOwner bulk;  // in no list: only this thread can hold it up, and it releases it below
  uint64_t opened = 0;
  try {
    for (uint32_t n = task.first; n < task.end; ++n) {
      const Graph::Node& node = plan_.graph.nodes()[plan_.nodes[n].recorded];
      OpDesc desc{.name = node.name, .updates = lane, .place = node.place, .priority = node.priority};
      if (as_graph && node.graph.kind != 0) {
        // Of this frame alone, so that runs in other frames leave its graph as it is.
        desc.graph = node.graph;
        desc.graph.kind = (node.graph.kind ^ run_.frame_key) * 0x9e3779b97f4a7c15 | 1;
      }
      NodeClosure body{&run_, n};
      core_.PushChained({.desc = &desc, .closure = RefClosure(body), .site = node.site, .flags = kInChain | kNodeOp},
                        bulk, &opened);
    }
  } catch (...) {  // no room, or too late: as if the bulk had failed
    static_cast<PlanTicket*>(ticket->closure())->error =
        ErrorRecord::NewRoot(plan_.nodes[task.first].name, ticket->site(), std::current_exception());
  }
  if (HeldChain* chain = bulk.chain.load(std::memory_order_relaxed)) core_.ReleaseChain(chain);
  core_.SettleBehind(slot(), lane, ticket);
  return ticket;
}

// The body of a member: on the device's thread, or into a capture.
void Replay::IssueNode(RunState& run, uint32_t index, RunContext& ctx) {
  EngineCore& core = *run.core;
  OpRecord* const op = EngineCore::OpOf(ctx);
  const PlanNode& node = run.owner->nodes[index];
  if (t_frame->stream) {  // nothing is settled: it will run for real, or a graph stands for it
    NodeContext captured = EngineCore::MakeNodeContext(core, op, ctx.worker(), run);
    EngineCore::SetNode(captured, node);
    return node.run(node.closure, captured, nullptr);
  }
  Replay replay(core, core.Slot(), op, nullptr, run);
  ErrorRecord* error = replay.SkippedBy(node, index);
  if (error) {
    replay.slot().skipped.Add();
    core.devices().NoteSkipped(op, *error);
    return replay.Note(node, error);
  }
  if (run.watch.load(std::memory_order_relaxed) & RunState::kTimes)
    run.times[node.recorded] = {NowNanos(), 0, ctx.worker()};
  EngineCore::SetNode(replay.ctx_, node);
  try {
    node.run(node.closure, replay.ctx_, nullptr);
    if (DeviceStatus s = ctx.device().TakeLastError(); !s.ok()) throw DeviceError(std::move(s));
  } catch (...) {
    (void)ctx.device().TakeLastError();  // a sticky one stays, and loses the device
    error = ErrorRecord::NewRoot(node.name, {node.file, node.line}, std::current_exception());
  }
  replay.Note(node, error);
}

// A device task has ended there. Consumes the count of `error`: the bulk's own, of which the nodes say nothing yet.
void Replay::SettleBulk(const PlanTask& task, ErrorRecord* error) {
  const bool timed = run_.watch.load(std::memory_order_relaxed) & RunState::kTimes;
  for (uint32_t n = task.first; n < task.end; ++n) {
    const PlanNode& node = plan_.nodes[n];
    if (error && !HasFailed(node)) Fail(node, error->Hop(node.name, {node.file, node.line}));
    if (NodeTime* time = timed ? &run_.times[node.recorded] : nullptr; time && time->begin != 0) time->end = NowNanos();
    EndUses(n);
  }
  if (error) error->Release();
}

bool Replay::HasFailed(const PlanNode& node) const {
  if (!(run_.watch.load(std::memory_order_relaxed) & RunState::kErrors)) return false;
  for (uint32_t i = node.outputs; i < (&node + 1)->outputs; ++i)
    if (run_.errors[plan_.node_outputs[i]]) return true;
  for (uint32_t i = node.effects; i < (&node + 1)->effects; ++i)
    if (plan_.node_effects[i].role != Role::kRead &&
        run_.errors[plan_.graph.values().size() + plan_.node_effects[i].var])
      return true;
  return false;
}

void EngineCore::SettleBehind(ThreadSlot& slot, VarRef var, OpRecord* ticket) {
  OpRecord* op = NewInternal(slot, var, Mode::kUpdate, kSettleOp, ticket->site());
  op->extra.name = ticket->extra.name;
  ::new (op->closure()) OpRecord*(ticket);
  RegisterInternal(slot, op);
}

}  // namespace engine::detail
