// Boundary: copies of what a step makes on the host and uses on a device (stage_subgraph_on_cpu).
//
// In the whole step each such value has a copy node of its own, so that nodes on a device see the same however the step is
// run. Those of staged values are one node at the end of the stage: their arrays are packed into one pinned buffer, and
// cross in one copy.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/device/array.h"
#include "engine/graph.h"

namespace engine::detail {

// A step with its copy nodes, and where what it had is now.
struct Copying {
  Graph graph;
  std::vector<uint32_t> nodes;  // by number before
  std::vector<ValueId> values;  // likewise
  std::vector<bool> copies;     // by number now: it is a copy node
};
Copying WithCopies(const Graph& step, std::shared_ptr<const BoundaryArrays> arrays);

// Takes `in`, gives `out`: the copy nodes `part` of a step, one for each device.
Graph PackedCopies(const Graph& step, const std::vector<bool>& part, std::span<const ValueId> in,
                   std::span<const ValueId> out, std::shared_ptr<const BoundaryArrays> arrays);

}  // namespace engine::detail
