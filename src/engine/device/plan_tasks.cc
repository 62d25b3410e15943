// Runs the tasks of plans that are on devices. The nodes of such a task are pushed as a bulk.
//
// PlanLayout has put neighbouring nodes of one placement into one task. Each task has a Var of the run's frame, its
// *task Var*. When the task is ready, its nodes are pushed as held ops: the first writes the task Var, and the others
// update it. So they keep their order, stay on one stream, wait once and record once.
//
// What comes behind the task:
//   tasks on devices    are pushed at once. They read the task Var, and so are ordered behind the task on the device.
//   other runs and ops  are ordered by the Vars of the plan. A member waits for the points of its node's Vars and leaves
//                       its own points there (ForNodeVars). A Var is released when the last member that needs it has been
//                       issued.
//   tasks on the host   wait. An internal op reads the task Var, and is granted when the device is done. It settles the
//                       nodes, which gives their values up, and releases the tasks. If there are no such tasks and nobody
//                       asks for the run's end, nobody is in a hurry to settle the nodes (AskedFor).
//
// An asynchronous node is a task by itself. It counts as issued when its Completion is called.
//
// With static_alloc, and a GraphKey on every node, the bulk is launched as a graph from the third run of a frame on. Each
// frame has graphs of its own, because the addresses of its values are in them.
//
// Errors: a body that throws fails its node, as does an error that keeps a member from being issued. A lost device fails
//         the nodes that have not ended there.
#include <algorithm>
#include <optional>

#include "core/core.h"
#include "core/draft.h"
#include "device/devices.h"
#include "graph/replay.h"
#include "order/op_chain.h"

namespace engine::detail {
namespace {

// The op that settles a task when the device work on its lane has ended. Its memory is taken before the task is pushed,
// because afterwards nothing may fail.
class Behind {
 public:
  Behind(EngineCore& core, ThreadSlot& slot) : core_(core), slot_(slot) {}
  ~Behind() {
    if (group_) slot_.cache.Return(kGroupClass, group_);
  }
  Behind(const Behind&) = delete;
  bool Take(VarRef task_var, OpRecord* ticket) noexcept try {
    draft_.emplace(core_.NewInternal(slot_, task_var, AccessMode::kRead, OpKindId::kSettle, ticket->site()));
    draft_->op()->extra.name = ticket->extra.name;
    ::new (draft_->op()->closure()) OpRecord*(ticket);
    group_ = slot_.cache.Get(kGroupClass);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
  void Register() {
    slot_.cache.Return(kGroupClass, std::exchange(group_, nullptr));  // for the registration
    core_.RegisterInternal(slot_, std::move(*draft_));
  }

 private:
  EngineCore& core_;
  ThreadSlot& slot_;
  std::optional<Draft> draft_;
  void* group_ = nullptr;
};

}  // namespace

void PlanIssue::operator()(RunContext& ctx) const { Replay::IssueNode(*run, node, ctx, nullptr); }
void PlanIssueAsync::operator()(RunContext& ctx, Completion done) const { Replay::IssueNode(*run, node, ctx, &done); }

// Null: there is no memory, and the nodes have failed.
OpRecord* Replay::LaunchOnDevice(uint32_t index) {
  const PlanTask& task = plan_.tasks[index];
  OpRecord* const op = refuses_ ? nullptr : NewTicket(index, task.first, 0);
  Behind behind(core_, slot());
  if (!op || !behind.Take(run_.task_vars[task.ticket], op)) {
    if (op) Runs(core_).RecycleOp(slot(), op);
    for (uint32_t n = task.first; n < task.end; ++n) Refuse(n);
    return nullptr;
  }
  auto& ticket = *static_cast<PlanTicket*>(op->closure());
  // A graph runs no bodies, so it must not be used where a body may have to be skipped, or is to be timed.
  const bool as_graph =
      plan_.options.static_alloc && (run_.watch.load(std::memory_order_relaxed) & ~uint32_t{RunState::kOutputs}) == 0;
  try {
    if (as_graph && run_.graphs[task.ticket].key != 0) {
      PushSegment(ticket);
    } else {
      PushNodes(ticket, as_graph);
    }
  } catch (...) {  // the push was refused: nodes that were not pushed fail
    ticket.error = ErrorRecord::NewRoot(plan_.nodes[ticket.node].name, op->site(), std::current_exception());
  }
  behind.Register();
  return op;
}

void Replay::PushNodes(PlanTicket& ticket, bool as_graph) {
  const PlanTask& task = plan_.tasks[ticket.task];
  const Var& task_var = run_.task_vars[task.ticket];
  as_graph &= !plan_.segments[task.ticket].empty();
  // It is in no list of open chains, because nobody else has to release it: this thread does, at the end of this
  // function.
  struct Bulk : ChainOwner {
    explicit Bulk(OpChains& all) : chains(all) {}
    ~Bulk() {
      if (OpChain* held = chain.load(std::memory_order_relaxed)) chains.Release(held);
    }
    OpChains& chains;
  } bulk(core_.chains());
  for (uint32_t& n = ticket.node; n < task.end; ++n) {
    const Graph::Node& node = plan_.graph.nodes()[plan_.nodes[n].recorded];
    OpDesc desc{.name = node.name, .place = node.place, .priority = node.priority};
    if (n == task.first) {
      desc.writes = task_var;  // a write, because it clears the error that a lost device may have left there
      desc.reads = run_.behind[task.ticket];
    } else {
      desc.updates = task_var;
    }
    if (as_graph) {
      // With the frame's key, so that runs in other frames do not change this frame's graph.
      desc.graph = node.graph;
      desc.graph.kind = (node.graph.kind ^ run_.frame_key) * 0x9e3779b97f4a7c15 | 1;
    }
    if (node.async) {  // the task's only node
      PlanIssueAsync body{{&run_, n, ticket.task}};
      core_.Push({.desc = &desc,
                  .closure = RefClosure<true>(body),
                  .site = node.site,
                  .flags = kAsyncOp,
                  .kind = OpKindId::kNode});
      continue;
    }
    PlanIssue body{&run_, n, ticket.task};
    core_.PushNode(desc, RefClosure(body), node.site, bulk);
  }
}

// The body of a member. It runs on the device's thread, and its work goes to the stream or into a capture.
void Replay::IssueNode(RunState& run, uint32_t index, RunContext& ctx, Completion* done) {
  EngineCore& core = *run.core;
  OpRecord* const op = EngineCore::OpOf(ctx);
  const PlanNode& node = run.owner->nodes[index];
  if (t_frame->stream || t_frame->update) {  // a capture: nothing is settled, because the op itself comes later
    NodeContext captured = Runs::MakeContext(core, op, ctx.worker(), run);
    Runs::SetNode(captured, node);
    return node.run(node.closure, captured, nullptr);
  }
  Replay replay(core, core.Slot(), op, nullptr, run);
  ErrorRecord* error = replay.SkippedBy(node, index);
  if (!error) error = replay.LostInput(node);
  if (error) {
    replay.slot().skipped.Add();
    DevicesOf(core).NoteSkipped(op, *error);
    replay.Note(node, error);
    if (done) (*done)();
    return;
  }
  const uint32_t watch = run.watch.load(std::memory_order_relaxed);
  if (watch & RunState::kTimes) run.times[node.recorded].begin = NanosOf(Clock::now());
  DeviceTimer* const timer = watch & RunState::kBusy ? &run.timers[index] : nullptr;
  if (timer) DevicesOf(core).BeginTimer(DevicesOf(core).Get(op->extra.device), ctx.stream(), timer);
  Runs::SetNode(replay.ctx_, node);
  if (done) {  // if the body throws, its Completion fails, and NodeFailed is called
    replay.Note(node, nullptr);
    node.run(node.closure, replay.ctx_, done);
    if (timer) DevicesOf(core).EndTimer(ctx.stream(), timer);
    return;
  }
  try {
    node.run(node.closure, replay.ctx_, nullptr);
    if (DeviceStatus s = ctx.device().TakeLastError(); !s.ok()) throw DeviceError(std::move(s));
  } catch (...) {
    (void)ctx.device().TakeLastError();  // a sticky error cannot be taken: Execute finds it, and the device is lost
    error = ErrorRecord::NewRoot(node.name, {node.file, node.line}, std::current_exception());
  }
  if (timer) DevicesOf(core).EndTimer(ctx.stream(), timer);
  replay.Note(node, error);
}

// The error of a Var that the node needs and that was lost with another device since the run began: counted, or null.
ErrorRecord* Replay::LostInput(const PlanNode& node) {
  if (node.flags & PlanNode::kAlways) return nullptr;
  for (const PlanEffect& effect : plan_.EffectsOf(node)) {
    if (effect.mode == AccessMode::kWrite) continue;
    if (ErrorRecord* lost = DevicesOf(core_).LostWith(plan_.vars[effect.var].core())) {
      ErrorRecord* const passed_on = lost->Hop(node.name, {node.file, node.line});
      lost->Release();
      return passed_on;
    }
  }
  return nullptr;
}

void Replay::NodeIssued(EngineCore& core, ThreadSlot& slot, OpRecord* op) {
  const auto [run, node, task] = *static_cast<PlanIssue*>(op->closure());
  if (!run->owner->EndsOf(run->owner->nodes[node]).empty())
    Replay(core, slot, op, nullptr, *run).EndUses(node, kVarEnds);
}

void Replay::NodeFailed(EngineCore& core, ThreadSlot& slot, OpRecord* op, ErrorRecord* error) {
  const auto [run, node, task] = *static_cast<PlanIssue*>(op->closure());
  Replay(core, slot, op, nullptr, *run).Note(run->owner->nodes[node], error);
}

void Replay::NodeRefused(EngineCore& core, ThreadSlot& slot, OpRecord* op, ErrorRecord* error) {
  const auto [run, node, task] = *static_cast<PlanIssue*>(op->closure());
  Replay replay(core, slot, op, nullptr, *run);
  replay.Note(run->owner->nodes[node], error);
  replay.EndUses(node, kVarEnds);
}

// Settles the nodes of a task that has ended on the device. The members that were pushed have released their Vars
// already.
void Replay::SettleBulk(const PlanTicket& ticket) {
  const PlanTask& task = plan_.tasks[ticket.task];
  const uint32_t watch = run_.watch.load(std::memory_order_relaxed);
  ErrorRecord* const error = ticket.error;
  // Of a segment that ended well there is nothing left: its Vars were released when it was issued, and static_alloc, without
  // which there are no segments, keeps the values.
  if (ticket.whole && !error && !(watch & RunState::kTimes)) return;
  for (uint32_t n = task.first; n < task.end; ++n) {
    const PlanNode& node = plan_.nodes[n];
    const bool pushed = n < ticket.node;
    if (error && (ticket.lost || !pushed) && !HasFailed(node))
      Fail(node, error->Hop(node.name, {node.file, node.line}), pushed);
    if (watch & RunState::kTimes) {
      NodeTime& time = run_.times[node.recorded];
      if (time.begin != 0) time.end = NanosOf(Clock::now());
      if (watch & RunState::kBusy) time.busy = DevicesOf(core_).ReadTimer(&run_.timers[n]);
    }
    EndUses(n, kValueEnds | (pushed ? 0u : kVarEnds));
  }
  if (error) error->Release();
}

const std::atomic<bool>* Replay::AskedFor(OpRecord* settles) {
  const auto& ticket = *static_cast<PlanTicket*>((*static_cast<OpRecord**>(settles->closure()))->closure());
  const RunState& run = *ticket.run;
  const PlanCore& plan = *run.owner;
  const auto on_host = [&](const PlanSuccessor& s) { return !plan.tasks[s.task].device; };
  return run.in_order || std::ranges::any_of(plan.SuccessorsOf(plan.tasks[ticket.task]), on_host) ? nullptr
                                                                                                  : &run.asked;
}

bool Replay::HasFailed(const PlanNode& node) const {
  if (!(run_.watch.load(std::memory_order_relaxed) & RunState::kErrors)) return false;
  return std::ranges::any_of(plan_.OutputsOf(node), [&](uint32_t value) { return ErrorAt(value) != nullptr; }) ||
         std::ranges::any_of(plan_.EffectsOf(node), [&](const PlanEffect& effect) {
           return effect.mode != AccessMode::kRead && ErrorAt(plan_.ErrorPlace(effect.var));
         });
}

}  // namespace engine::detail
