// Simulator: the scheduler that a ranked plan is replayed by, on as many workers as one likes, on a virtual clock.
//
// Tasks are taken as plans take them, from a RankQueue; ranks and batches come from dag.h and batching.h. The queue is one
// resource: each access to it takes `pick`, one after another, as under its lock. Deterministic.
#pragma once

#include "dag.h"

namespace engine::costmodel {

struct Simulated {
  double makespan = 0;
  double queued = 0;  // of all workers, for the queue
  uint32_t ran = 0;
};

// `pick`, `dispatch`: nanoseconds in the queue for each task, and on its worker. `begin`, if given, receives when each begins.
Simulated Simulate(const Dag& dag, std::span<const double> cost, std::span<const double> rank, int workers,
                   double pick = 0, double dispatch = 0, std::vector<double>* begin = nullptr);

}  // namespace engine::costmodel
