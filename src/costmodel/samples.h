// Samples: what was measured of one node, and the estimate that follows. Pure.
//
// Threads: none of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dag.h"
#include "engine/plan.h"

namespace engine::costmodel {

struct Estimate {
  uint64_t samples = 0;
  double nanos = 0;   // the median, so that up to half of the samples may be outliers
  double spread = 0;  // between the quartiles
};

// Median and quartiles; sorts in place.
Estimate EstimateOf(std::vector<double>& samples);

// A bounded sample of a stream: at first it keeps everything, then each sample with the same probability.
class Samples {
 public:
  void Add(double nanos);
  Estimate Tell() const;
  uint64_t seen() const { return seen_; }

 private:
  static constexpr size_t kKept = 128;
  std::vector<double> kept_;
  uint64_t seen_ = 0;
  uint64_t random_ = 1;
};

// The dispatch of one run, in nanoseconds: the median time from when a task's predecessors have ended and its worker is
// free until the task begins. `task`: the task of each node; nodes of one task need no dispatch between them. `clock`:
// what reading the clock adds. 0: there was no dispatch.
double DispatchOf(const Dag& dag, std::span<const NodeTime> times, std::span<const uint32_t> task, double clock);

}  // namespace engine::costmodel
