// Batching: short nodes merged until a task is worth its dispatch. Pure.
#pragma once

#include "dag.h"

namespace engine::costmodel {

struct BatchLimits {
  double dispatch = 0;  // measured: what it costs to have one task taken by a worker
  int workers = 1;
};

// A number for each node; nodes of one number are a batch. `kind`: only nodes of one kind are merged, kAlone with none.
//
// A batch is worth a dispatch when it takes kWorth of them. Merged are nodes that become ready together, behind the same
// batch, and nodes that only wait for the batch itself, unless that would lengthen the longest path: a task counts in it with
// its dispatch, and siblings of which there are more than workers count with the share of them that each worker has.
// Up to half of T1 / workers a path may be lengthened: that much slack every schedule has.
// Batches follow each other in the order in which they are made, so that no cycle can come of them.
inline constexpr uint32_t kAlone = UINT32_MAX;
inline constexpr double kWorth = 8;  // a dispatch is then a tenth of the work or less
std::vector<uint32_t> Batch(const Dag& dag, std::span<const double> cost, std::span<const uint32_t> kind,
                            const BatchLimits& limits);

// Batches as the nodes of a smaller graph.
struct Contracted {
  std::vector<uint32_t> task_of;  // by node
  std::vector<double> cost;       // by task
  Dag dag;                        // its order is shorter than it where batches make a cycle
};
Contracted Contract(const Dag& dag, std::span<const double> cost, std::span<const uint32_t> batch);

}  // namespace engine::costmodel
