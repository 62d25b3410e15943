// Captures and graphs of a software device. The rules are CUDA's; each refusal names the one that was broken.
#include <algorithm>

#include "device/software/software_impl.h"

namespace engine::detail {
namespace {

void Merge(std::vector<uint32_t>& into, const std::vector<uint32_t>& more) {
  for (uint32_t node : more) {
    const auto at = std::lower_bound(into.begin(), into.end(), node);
    if (at == into.end() || *at != node) into.insert(at, node);
  }
}

}  // namespace

bool Covers(const std::vector<GraphNode>& nodes, const std::vector<uint32_t>& ends) {
  std::vector<bool> covered(nodes.size());
  for (uint32_t end : ends) covered[end] = true;
  for (size_t i = nodes.size(); i-- > 0;) {  // what a node comes behind was noted before it
    if (!covered[i]) return false;
    for (uint32_t before : nodes[i].after) covered[before] = true;
  }
  return true;
}

Capture* SoftwareDeviceImpl::CaptureOf(StreamState& stream) {
  if (!stream.point.capture) return nullptr;
  if (!stream.point.capture->active) stream.point = {};
  return stream.point.capture.get();
}

DeviceStatus SoftwareDeviceImpl::RefuseInCapture(const char* call) {
  bool refused = false;
  for (const auto& capture : captures_) {
    if (capture->thread == std::this_thread::get_id()) refused = capture->spoilt = true;
  }
  if (!refused) return {};
  return Fail(DeviceCode::kCaptureUnsupported,
              std::string(call) + ": this thread captures; only other threads may do that");
}

DeviceStatus SoftwareDeviceImpl::RefuseCaptured(const char* call, EventState& event) {
  if (!event.point.capture) return {};
  event.point.capture->spoilt = true;
  return Fail(DeviceCode::kCapturedEvent,
              std::string(call) + ": the event was last recorded in a capture, where nothing runs");
}

DeviceStatus SoftwareDeviceImpl::RefuseCapturing(const char* call, StreamState& stream) {
  Capture* capture = CaptureOf(stream);
  if (!capture) return {};
  capture->spoilt = true;
  return Fail(DeviceCode::kCaptureUnsupported, std::string(call) + ": the stream captures, nothing on it runs");
}

DeviceStatus SoftwareDeviceImpl::WaitInCapture(StreamState& stream, EventState& event) {
  Capture* mine = CaptureOf(stream);
  Capture* theirs = event.point.capture.get();
  if (!theirs) {
    mine->spoilt = true;
    return Fail(DeviceCode::kCaptureIsolation, "Wait: the stream captures, and the event was recorded outside of it");
  }
  if (!theirs->active) {
    if (mine) mine->spoilt = true;
    return Fail(DeviceCode::kCapturedEvent, "Wait: the event was last recorded in a capture that has ended");
  }
  if (mine && mine != theirs) {
    mine->spoilt = theirs->spoilt = true;
    return Fail(DeviceCode::kCaptureMerge, "Wait: the stream and the event belong to two captures");
  }
  if (theirs->spoilt) return Fail(DeviceCode::kCaptureInvalidated, "Wait: the event's capture was spoilt before");
  if (mine) {
    Merge(stream.point.after, event.point.after);
  } else {
    stream.point = event.point;
    stream.point.branch = theirs->branches++;
  }
  return {};
}

DeviceStatus SoftwareDeviceImpl::BeginCapture(engine::Stream stream) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kBeginCapture); !bad.ok()) return bad;
  StreamState* on = streams_.Find(stream.raw);
  if (!on) return BadStream("BeginCapture", stream);
  if (CaptureOf(*on)) return Fail(DeviceCode::kCaptureMode, "BeginCapture: the stream captures already");
  auto capture = std::make_shared<Capture>();
  capture->thread = std::this_thread::get_id();
  capture->origin = on->lane;
  captures_.push_back(capture);
  on->point = {std::move(capture), {}, 0};
  return {};
}

DeviceStatus SoftwareDeviceImpl::EndCapture(engine::Stream stream, DeviceGraph* graph) {
  DeviceLock lock(mu_);
  *graph = {};
  DeviceStatus entered = Enter(DeviceCall::kEndCapture);
  StreamState* on = streams_.Find(stream.raw);
  if (!on) return entered.ok() ? BadStream("EndCapture", stream) : entered;
  if (!CaptureOf(*on)) {
    return entered.ok() ? Fail(DeviceCode::kCaptureMode, "EndCapture: the stream does not capture") : entered;
  }
  const CapturePoint end = on->point;
  Capture& capture = *end.capture;
  if (capture.thread != std::this_thread::get_id()) {
    return Fail(DeviceCode::kCaptureWrongThread, "EndCapture: another thread began this capture");
  }
  if (capture.origin != on->lane) {
    capture.spoilt = true;
    return Fail(DeviceCode::kCaptureUnmatched, "EndCapture: the capture began on another stream");
  }
  capture.active = false;
  std::erase(captures_, end.capture);
  DeviceStatus bad = std::move(entered);
  if (bad.ok() && capture.spoilt)
    bad = Fail(DeviceCode::kCaptureInvalidated, "EndCapture: the capture was spoilt before");
  if (bad.ok() && !Covers(capture.nodes, end.after)) {
    bad =
        Fail(DeviceCode::kCaptureUnjoined, "EndCapture: a stream that joined has work that the first did not wait for");
  }
  if (bad.ok()) {
    graph->raw = graphs_.Add(std::make_unique<CapturedGraph>(CapturedGraph{end.capture}));
  } else {
    Forget(capture);
  }
  return bad;
}

DeviceStatus SoftwareDeviceImpl::IsCapturing(engine::Stream stream, bool* capturing) {
  DeviceLock lock(mu_);
  if (DeviceStatus lost = Lost(); !lost.ok()) return lost;
  StreamState* on = streams_.Find(stream.raw);
  if (!on) return BadStream("IsCapturing", stream);
  *capturing = CaptureOf(*on) != nullptr;
  return {};
}

DeviceStatus SoftwareDeviceImpl::LastNode(engine::Stream stream, DeviceGraphNode* node) {
  DeviceLock lock(mu_);
  *node = {};
  if (DeviceStatus lost = Lost(); !lost.ok()) return lost;
  StreamState* on = streams_.Find(stream.raw);
  if (!on) return BadStream("LastNode", stream);
  Capture* capture = CaptureOf(*on);
  if (!capture) return Fail(DeviceCode::kCaptureMode, "LastNode: the stream does not capture");
  const std::vector<uint32_t>& after = on->point.after;
  if (after.size() != 1 || capture->nodes[after[0]].branch != on->point.branch) {
    return Fail(DeviceCode::kInvalidValue, "LastNode: the stream made no node, or waited since for another stream");
  }
  node->raw = nodes_.Add(std::make_unique<CapturedNode>(CapturedNode{capture, after[0]}));
  capture->node_handles.push_back(node->raw);
  return {};
}

void SoftwareDeviceImpl::Forget(Capture& capture) {
  for (void* node : capture.node_handles) nodes_.Remove(node);
  capture.node_handles.clear();
}

DeviceStatus SoftwareDeviceImpl::DestroyGraph(DeviceGraph graph) {
  DeviceLock lock(mu_);
  const std::unique_ptr<CapturedGraph> gone = graphs_.Remove(graph.raw);
  if (gone) Forget(*gone->capture);
  if (DeviceStatus lost = Lost(); !lost.ok()) return lost;
  return gone ? DeviceStatus() : Fail(DeviceCode::kInvalidHandle, "DestroyGraph: there is no such graph");
}

DeviceStatus SoftwareDeviceImpl::Instantiate(DeviceGraph graph, DeviceGraphExec* exec, size_t* bytes) {
  DeviceLock lock(mu_);
  *exec = {};
  if (DeviceStatus bad = Enter(DeviceCall::kInstantiate); !bad.ok()) return bad;
  const CapturedGraph* from = graphs_.Find(graph.raw);
  if (!from) return Fail(DeviceCode::kInvalidHandle, "Instantiate: there is no such graph");
  auto made = std::make_unique<GraphExec>();
  made->made_of = from->capture;
  made->nodes = from->capture->nodes;
  for (uint32_t i = 1; i < from->capture->branches; ++i) made->branches.push_back(TakeLane());
  made->last_event = next_event_++;
  made->start_event = next_event_++;
  made->node_events.resize(made->nodes.size());
  for (const GraphNode& node : made->nodes) {
    for (uint32_t before : node.after) {
      if (made->nodes[before].branch != node.branch && made->node_events[before] == 0) {
        made->node_events[before] = next_event_++;
      }
    }
  }
  if (bytes) *bytes = made->nodes.size() * options_.graph_node_bytes;
  exec->raw = execs_.Add(std::move(made));
  return {};
}

DeviceStatus SoftwareDeviceImpl::Update(DeviceGraphExec exec, DeviceGraph graph) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kUpdate); !bad.ok()) return bad;
  GraphExec* to = execs_.Find(exec.raw);
  const CapturedGraph* from = graphs_.Find(graph.raw);
  if (!to || !from) return Fail(DeviceCode::kInvalidHandle, "Update: there is no such executable, or no such graph");
  const std::vector<GraphNode>& nodes = from->capture->nodes;
  if (!std::equal(nodes.begin(), nodes.end(), to->nodes.begin(), to->nodes.end(),
                  [](const GraphNode& a, const GraphNode& b) { return a.SameShape(b); })) {
    return Fail(DeviceCode::kGraphUpdateFailed, "Update: the graphs differ in number, kind or order of their nodes");
  }
  for (size_t i = 0; i < nodes.size(); ++i) to->nodes[i].work = nodes[i].work;
  return {};
}

DeviceStatus SoftwareDeviceImpl::UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, DeviceGraphNode from) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kUpdateNode); !bad.ok()) return bad;
  GraphExec* of = execs_.Find(exec.raw);
  const CapturedNode* to = nodes_.Find(node.raw);
  const CapturedNode* source = nodes_.Find(from.raw);
  if (!of || !to || !source) {
    return Fail(DeviceCode::kInvalidHandle,
                "UpdateNode: there is no such executable or node; nodes go with their graph");
  }
  if (to->owner != of->made_of.get()) {
    return Fail(DeviceCode::kInvalidValue, "UpdateNode: the node is not of the graph that the executable was made of");
  }
  const GraphNode& with = source->owner->nodes[source->index];
  if (of->nodes[to->index].copy != with.copy) {
    return Fail(DeviceCode::kInvalidValue, "UpdateNode: one node is a kernel and the other a copy");
  }
  of->nodes[to->index].work = with.work;
  return {};
}

DeviceStatus SoftwareDeviceImpl::UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, const KernelLaunch& launch) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kUpdateNode); !bad.ok()) return bad;
  GraphExec* of = execs_.Find(exec.raw);
  const CapturedNode* to = nodes_.Find(node.raw);
  if (!of || !to)
    return Fail(DeviceCode::kInvalidHandle,
                "UpdateNode: there is no such executable or node; nodes go with their graph");
  if (to->owner != of->made_of.get())
    return Fail(DeviceCode::kInvalidValue, "UpdateNode: the node is not of the graph that the executable was made of");
  if (of->nodes[to->index].copy) return Fail(DeviceCode::kInvalidValue, "UpdateNode: the node is a copy");
  of->nodes[to->index].work = std::make_shared<const SoftwareKernel>(KernelOf(launch));
  return {};
}

DeviceStatus SoftwareDeviceImpl::Launch(DeviceGraphExec exec, engine::Stream stream) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kLaunchGraph); !bad.ok()) return bad;
  StreamState* on = streams_.Find(stream.raw);
  if (!on) return BadStream("Launch", stream);
  GraphExec* graph = execs_.Find(exec.raw);
  if (!graph) return Fail(DeviceCode::kInvalidHandle, "Launch: there is no such executable graph");
  if (CaptureOf(*on)) return Fail(DeviceCode::kCaptureMode, "Launch: a graph inside a capture is not supported");
  Order(on->lane, graph->last, graph->last_event);
  const auto lane_of = [&](uint32_t branch) { return branch == 0 ? on->lane : graph->branches[branch - 1]; };
  if (!graph->branches.empty()) {
    const Marker start = Mark(on->lane, graph->start_event);
    for (Lane* lane : graph->branches) Order(lane, start, graph->start_event);
  }
  std::vector<Marker> ends(graph->nodes.size());
  for (size_t i = 0; i < graph->nodes.size(); ++i) {
    const GraphNode& node = graph->nodes[i];
    Lane* lane = lane_of(node.branch);
    for (uint32_t before : node.after) {
      if (graph->nodes[before].branch != node.branch) Order(lane, ends[before], graph->node_events[before]);
    }
    Run(lane, node.work, options_.costs.graph_node_gap, node.copy);
    ends[i] = graph->node_events[i] ? Mark(lane, graph->node_events[i]) : Marker{lane, lane->issued};
  }
  for (Lane* lane : graph->branches) Order(on->lane, Mark(lane, graph->start_event), graph->start_event);
  graph->last = Mark(on->lane, graph->last_event);
  NoteWork("a graph", *on);
  return {};
}

DeviceStatus SoftwareDeviceImpl::DestroyGraphExec(DeviceGraphExec exec) {
  DeviceLock lock(mu_);
  const std::unique_ptr<GraphExec> gone = execs_.Remove(exec.raw);
  if (gone) {
    idle_lanes_.insert(idle_lanes_.end(), gone->branches.begin(), gone->branches.end());
    if (observer()) {
      observer()->OnForget(gone->last_event);
      observer()->OnForget(gone->start_event);
      for (uint64_t event : gone->node_events) observer()->OnForget(event);
    }
  }
  if (DeviceStatus lost = Lost(); !lost.ok()) return lost;
  return gone ? DeviceStatus()
              : Fail(DeviceCode::kInvalidHandle, "DestroyGraphExec: there is no such executable graph");
}

}  // namespace engine::detail
