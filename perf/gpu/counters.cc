#include "scenarios.h"

namespace engine::perf {

const std::vector<Scenario>& Scenarios() {
  static const std::vector<Scenario> all = {
      {2, "static_bulk", "1,000 ops of a static bulk are one graph launch", Graph},
      {4, "host_synchronizations", "the host waits for what was asked for, and for nothing else", HostSynchronizations},
      {4, "back_pressure", "a pusher ahead of the device by its bound waits once", BackPressure},
      {9, "nobody_waits", "200 ops that nobody waits for", NobodyWaits},
      {5, "one_by_one", "1,000 dependent ops, one by one", OneByOne},
      {5, "bulks_of_15", "1,000 ops in bulks of 15", Bulks},
      {5, "lanes", "100 random bulks on four lanes", Lanes},
      {5, "plan_runs", "runs of a plan follow each other on the device", PlanRuns},
      {14, "plan_segments", "plans of one segment of 1,000 nodes, and of segments of 100, replayed", PlanSegments},
      {6, "four_chains", "four chains on four lanes", FourChains},
      {15, "eight_chains", "eight chains on four lanes", EightChains},
      {7, "stage_lane", "copy in and preprocess beside compute", StageLane},
      {10, "params", "parameters change, structure does not", Params},
      {10, "params_by_launch", "the same, bodies use ctx.Launch", ParamsByLaunch},
      {11, "memory", "memory allocated on one lane and freed on another", Memory},
      {12, "mlp_step", "a training step in bulks of 15", MlpStep},
      {13, "collectives", "40 all-reduces in groups of 4, in bulks of 5 groups", Collectives},
  };
  return all;
}

}  // namespace engine::perf
