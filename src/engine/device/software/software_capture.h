// Captures and graphs of a software device: what is noted instead of run.
//
// Threads:   guarded by the device's lock.
// Ownership: a capture lives while a stream or an event knows it; nodes are shared by graphs and executables' updates.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "device/software/executor.h"

namespace engine::detail {

struct GraphNode {
  std::shared_ptr<const SoftwareKernel> work;
  bool copy = false;
  uint32_t branch = 0;          // the stream in its capture; 0 is the one that began it
  std::vector<uint32_t> after;  // nodes that come before it, sorted; indices are in the order of the calls
  bool SameShape(const GraphNode& other) const {
    return copy == other.copy && branch == other.branch && after == other.after;
  }
};

// A capture, and then the graph that it became.
struct Capture {
  std::thread::id thread;
  Lane* origin;
  bool active = true;  // until EndCapture
  bool spoilt = false;
  std::vector<GraphNode> nodes;
  std::vector<void*> node_handles;  // given out by LastNode; they go when this does
  uint32_t branches = 1;
};

// What the handle of a node stands for.
struct CapturedNode {
  Capture* owner;
  uint32_t index;
};

// Where a stream stands in a capture, or what an event recorded there.
struct CapturePoint {
  std::shared_ptr<Capture> capture;  // null: not in a capture
  std::vector<uint32_t> after;       // the nodes that the next one comes behind, sorted
  uint32_t branch = 0;
};

struct CapturedGraph {
  std::shared_ptr<Capture> capture;
};

struct GraphExec {
  std::shared_ptr<Capture> made_of;  // kept, so that no other capture is taken for it
  std::vector<GraphNode> nodes;
  std::vector<Lane*> branches;  // all but the first, which runs on the stream of the launch
  Marker last;                  // the end of the newest launch
  uint64_t last_event = 0;      // the same, for observers
  uint64_t start_event = 0;
  std::vector<uint64_t> node_events;  // one a node that another branch comes behind, else 0
};

// Every node is at or before one of `ends`: nothing was left behind.
bool Covers(const std::vector<GraphNode>& nodes, const std::vector<uint32_t>& ends);

}  // namespace engine::detail
