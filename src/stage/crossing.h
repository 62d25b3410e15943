// Crossing: copies of the values that a step makes on the host and uses on a device (stage_subgraph_on_cpu).
//
// In the whole step each such value has a copy node of its own, so that nodes on a device see the same values however
// the step runs. In a cut step the copies of staged values are one node at the end of the stage: it packs their arrays
// into one pinned buffer, and one copy takes them across.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/device/array.h"
#include "engine/graph.h"

namespace engine::detail {

// A step with its copy nodes, and where the nodes and values of the step are in it.
struct Copying {
  Graph graph;
  std::vector<uint32_t> nodes;  // by number in the step: number here
  std::vector<ValueId> values;  // likewise
  std::vector<bool> copies;     // by number here: whether the node is a copy node
};
Copying WithCopies(const Graph& step, std::shared_ptr<const CrossingArrays> arrays);

// The copy nodes `part` of a step as a graph that takes `in` and returns `out`, with one packed copy for each device.
Graph PackedCopies(const Graph& step, const std::vector<bool>& part, std::span<const ValueId> in,
                   std::span<const ValueId> out, std::shared_ptr<const CrossingArrays> arrays);

}  // namespace engine::detail
