// Simulator: the scheduler that a ranked plan is replayed by, on as many workers as one likes, on a virtual clock.
//
// Ranks, batches and the queue are the ones that plans use (dag.h, batching.h, RankQueue). The queue is one resource: each
// access to it takes `pick`, one after another, as under its lock. Deterministic.
#pragma once

#include "dag.h"

namespace engine::costmodel {

struct Simulated {
  double makespan = 0;
  uint32_t tasks = 0;
  double queued = 0;  // of all workers, for the queue
};

// `batch`: as Batch makes them, empty: each node by itself. `pick`, `dispatch`: nanoseconds in the queue for each task, and on
// its worker. `begin`, if given, receives when each node begins.
Simulated Simulate(const Dag& dag, std::span<const double> cost, std::span<const double> rank,
                   std::span<const uint32_t> batch, int workers, double pick = 0, double dispatch = 0,
                   std::vector<double>* begin = nullptr);

}  // namespace engine::costmodel
