// Batching: merges short nodes until a task is worth its dispatch. Pure.
#pragma once

#include "dag.h"

namespace engine::costmodel {

struct BatchLimits {
  double dispatch = 0;  // nanoseconds, measured: the cost of having one task taken by a worker
  int workers = 1;
};

// Returns a number for each node; nodes with the same number are a batch. Only nodes of the same `kind` are merged; a
// node of the kind kAlone is merged with none.
//
// A batch is worth its dispatch when it takes kWorth times as long. Two sorts of nodes are merged: nodes that become
// ready together, behind the same batch; and nodes that wait for the batch itself and for nothing else. Neither may
// lengthen the longest path. In that path a task counts with its dispatch; if there are more siblings than workers,
// they count with each worker's share of them. A path that is shorter than half of T1 / workers may grow up to that,
// because every schedule has that much slack. Batches follow each other in the order in which they are made, so they
// make no cycle.
inline constexpr uint32_t kAlone = UINT32_MAX;
inline constexpr double kWorth = 8;  // a dispatch is then a tenth of the work or less
std::vector<uint32_t> Batch(const Dag& dag, std::span<const double> cost, std::span<const uint32_t> kind,
                            const BatchLimits& limits);

// Batches as the nodes of a smaller graph.
struct Contracted {
  std::vector<uint32_t> task_of;  // by node
  std::vector<double> cost;       // by task
  Dag dag;                        // if batches make a cycle, dag.order has fewer tasks than dag
};
Contracted Contract(const Dag& dag, std::span<const double> cost, std::span<const uint32_t> batch);

}  // namespace engine::costmodel
