// From a recorded Graph to what Partition understands, and from a cut to graphs that can be compiled. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/spi/smart_step.h"
#include "partition.h"

namespace engine::detail {

// Node 0 reads the data and makes the values `sourced`; node n of the graph is node n + 1. `copies`: the copy nodes (see
// boundary.h), or none.
StepGraph ToStepGraph(const Graph& graph, std::span<const ValueId> sourced, const std::vector<bool>& copies,
                      const SmartStageOptions& options);

// The values that those in `after` (nodes) or the outputs of the graph need, of `sourced` and of what `before` makes.
std::vector<ValueId> Crossing(const Graph& graph, std::span<const ValueId> sourced, const std::vector<bool>& before,
                              const std::vector<bool>& after);

// The nodes of a part, which takes `in` and gives `out`. What it needs besides are constants, which it computes itself.
// `lane`: of nodes on a GPU that name none.
Graph Segment(const Graph& graph, const std::vector<bool>& part, std::span<const ValueId> in,
              std::span<const ValueId> out, uint8_t lane);

}  // namespace engine::detail
