// Simulator: the scheduler of ranked plans on a virtual clock, with any number of workers.
//
// It takes tasks as plans take them, from a RankQueue; ranks and batches come from dag.h and batching.h. The queue is
// one resource: accesses come one after another, as under its lock, and each takes `pick`. Deterministic.
#pragma once

#include "dag.h"

namespace engine::costmodel {

struct Simulated {
  double makespan = 0;
  double queued = 0;  // time that all workers together waited for the queue
  uint32_t ran = 0;
};

// `pick`, `dispatch`: what each task takes in the queue, and then on its worker, in nanoseconds. `begin`, if given,
// receives the begin of each task.
Simulated Simulate(const Dag& dag, std::span<const double> cost, std::span<const double> rank, int workers,
                   double pick = 0, double dispatch = 0, std::vector<double>* begin = nullptr);

}  // namespace engine::costmodel
