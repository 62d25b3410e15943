// From a recorded Graph to the graph that Partition understands, and from a cut to graphs that can be compiled. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/spi/smart_step.h"
#include "partition.h"

namespace engine::detail {

// Node 0 reads the data and makes the values `sourced`; node n of the graph is node n + 1 here. `copies`: which nodes
// are copy nodes (see crossing.h); empty: none.
StepGraph ToStepGraph(const Graph& graph, std::span<const ValueId> sourced, const std::vector<bool>& copies,
                      const SmartStageOptions& options);

// Of `sourced` and the values that the nodes `before` make: those that the nodes `after`, or the outputs of the graph,
// need.
std::vector<ValueId> BoundaryValues(const Graph& graph, std::span<const ValueId> sourced,
                                    const std::vector<bool>& before, const std::vector<bool>& after);

// The nodes `part` as a graph that takes `in`, which has all that they need and do not make, and returns `out`. `lane`: for nodes on a GPU that name no lane.
Graph PartOf(const Graph& graph, const std::vector<bool>& part, std::span<const ValueId> in,
             std::span<const ValueId> out, uint8_t lane);

}  // namespace engine::detail
