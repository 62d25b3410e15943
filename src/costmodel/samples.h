// Samples: what was measured of one node, and what it tells. Pure.
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
  double nanos = 0;   // median: half of the samples may be anything
  double spread = 0;  // between the quartiles
};

// Median and quartiles; sorts in place.
Estimate EstimateOf(std::vector<double>& samples);

// A bounded sample of a stream: all of it at first, then each of the stream with the same probability.
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

// How long it takes to have a task taken: from when its predecessors and its worker are there until it begins. Of one run;
// `task`: nodes of one number are not dispatched after each other. `clock`: what a reading of the clock adds. 0: nothing was.
double DispatchOf(const Dag& dag, std::span<const NodeTime> times, std::span<const uint32_t> task, double clock);

}  // namespace engine::costmodel
