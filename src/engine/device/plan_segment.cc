// A segment: a task on a device that is one op, because its graph is there from an earlier run of the frame.
//
// The first runs of a frame push the nodes one by one (plan_tasks.cc); the third captures them and launches a graph, which
// the device keeps for the frame (KeepGraph). From then on the host's work for the task does not grow with its nodes: one op,
// one launch, one number on the lane. The op has the points of all Vars that the nodes use, and releases them when it is
// issued; what settles the nodes comes behind it, as behind the nodes.
//
// The bodies run after all, in a row and as this one op, if one of them may have to be skipped (an error has come into the
// run, or something was lost on a device) or if the device keeps the graph no longer (evicted; of another lane; a launch
// that failed). In the latter cases the next run pushes the nodes one by one, so that there is a graph again. Runs that are
// watched (cancel scope, deadline, times) never come here.
//
// Errors: a body that throws fails its node, as everywhere. A segment that was issued and is lost, with its device or with
//         a communicator that it needs, fails with all its nodes.
#include "core/core.h"
#include "core/traced_body.h"
#include "device/body_scope.h"
#include "device/devices.h"
#include "graph/replay.h"

namespace engine::detail {

void PlanIssueAll::operator()(RunContext& ctx) const { Replay::IssueSegment(*run, task, ctx); }

void Replay::PushSegment(PlanTicket& ticket) {
  const PlanTask& task = plan_.tasks[ticket.task];
  const PlanSegment& segment = plan_.segments[task.ticket];
  const Graph::Node& first = plan_.graph.nodes()[plan_.nodes[task.first].recorded];
  const OpDesc desc{.name = segment.name,
                    .reads = run_.behind[task.ticket],
                    .writes = run_.task_vars[task.ticket],  // clears what a lost device left there
                    .place = first.place,
                    .priority = segment.priority};
  PlanIssueAll body{&run_, ticket.task};
  core_.Push({.desc = &desc, .closure = RefClosure(body), .site = first.site, .kind = OpKindId::kSegment});
  ticket.node = task.end;
  ticket.whole = true;
}

// On the thread that issues: the run's end, which is behind the launch, publishes it to the frame's next run.
void Replay::KeepGraph(OpRecord* head, uint64_t members, const KeptGraph& graph) {
  const auto& body = *static_cast<PlanIssue*>(head->closure());
  const PlanTask& task = body.run->owner->tasks[body.task];
  if (body.node == task.first && members == task.end - task.first) body.run->graphs[task.ticket] = graph;
}

KeptGraph* Replay::GraphOfSegment(EngineCore& core, OpRecord* op) {
  const auto& body = *static_cast<PlanIssueAll*>(op->closure());
  if ((body.run->watch.load(std::memory_order_relaxed) & ~uint32_t{RunState::kOutputs}) != 0 ||
      DevicesOf(core).AnyLost())
    return nullptr;
  return &body.run->graphs[body.run->owner->tasks[body.task].ticket];
}

void Replay::IssueSegment(RunState& run, uint32_t number, RunContext& ctx) {
  EngineCore& core = *run.core;
  OpRecord* const op = EngineCore::OpOf(ctx);
  Devices& devices = DevicesOf(core);
  DeviceLane& on = devices.lane(op->extra.lane);
  const PlanTask& task = run.owner->tasks[number];
  const char* const name = op->extra.name;
  for (uint32_t n = task.first; n < task.end; ++n) {
    const PlanNode& node = run.owner->nodes[n];
    // A launch beyond what a stream takes would wait with a lock that all threads need. The op has one number, so
    // nobody can wait for a part of it.
    if (n != task.first && (n - task.first) % (tuning::kLaunchesOfALane / 2) == 0) (void)devices.Synchronize(on);
    op->extra.name = node.name;
    TracedBody traced(core);
    if (traced.on()) DescribeNode(traced, run, node, nullptr);
    traced.Begin(on.name.c_str());
    const BodyScope body(node.name, {node.file, node.line}, name, on.stream);
    IssueNode(run, n, ctx, nullptr);
    if (DeviceStatus s = body.Verdict(); !s.ok()) {
      Replay replay(core, core.Slot(), op, nullptr, run);
      const auto cause = std::make_exception_ptr(DeviceError(std::move(s)));
      replay.Note(node, ErrorRecord::NewRoot(node.name, {node.file, node.line}, cause));
    }
    traced.End();
  }
  op->extra.name = name;
}

void Replay::TraceSegment(EngineCore& core, OpRecord* op, const char* lane) {
  const auto& body = *static_cast<PlanIssueAll*>(op->closure());
  const PlanTask& task = body.run->owner->tasks[body.task];
  for (uint32_t n = task.first; n < task.end; ++n) {
    TracedBody traced(core);
    if (traced.on()) DescribeNode(traced, *body.run, body.run->owner->nodes[n], nullptr);
    traced.Begin(lane);
  }
}

void Replay::EndVars(const PlanSegment& segment) {
  for (const PlanLayout::End& end : segment.ends)
    if (end.counter == kNoIndex || Down(end.counter)) ReleaseVar(end.what - PlanLayout::kVarEnd);
}

void Replay::SegmentIssued(EngineCore& core, ThreadSlot& slot, OpRecord* op) {
  const auto& body = *static_cast<PlanIssueAll*>(op->closure());
  Replay(core, slot, op, nullptr, *body.run).EndVars(body.segment());
}

// Before it was issued: no node has run.
void Replay::SegmentRefused(EngineCore& core, ThreadSlot& slot, OpRecord* op, ErrorRecord* error) {
  const auto& body = *static_cast<PlanIssueAll*>(op->closure());
  const PlanTask& task = body.run->owner->tasks[body.task];
  Replay replay(core, slot, op, nullptr, *body.run);
  // The nodes are told of one after another, and not of the op that stood for them.
  ErrorRecord* from = error->before ? error->before->Retain() : nullptr;
  for (uint32_t n = task.first; n < task.end; ++n) {
    const PlanNode& node = body.run->owner->nodes[n];
    const Site site{node.file, node.line};
    ErrorRecord* const of_node =
        from ? from->Hop(node.name, site) : ErrorRecord::NewRoot(node.name, site, error->cause);
    if (!from) from = of_node->Retain();
    replay.Note(node, of_node);
  }
  from->Release();
  replay.EndVars(body.segment());
  error->Release();
}

}  // namespace engine::detail
