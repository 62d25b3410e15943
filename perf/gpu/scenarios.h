// The scenarios of the counters, by what they are about: a file each.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "counters.h"

namespace engine::perf {

inline constexpr Nanos kShort{1000};

// For what may be less by chance: a record is also made where the issuer runs out of ops.
inline Counter AtMost(std::string name, uint64_t got, uint64_t most) {
  return {std::move(name), std::max(got, most), most};
}

// submit_counters.cc
std::vector<Counter> Bulks(Target& target);
std::vector<Counter> OneByOne(Target& target);
std::vector<Counter> NobodyWaits(Target& target);
std::vector<Counter> HostSynchronizations(Target& target);
std::vector<Counter> BackPressure(Target& target);

// order_counters.cc
std::vector<Counter> Lanes(Target& target);
std::vector<Counter> FourChains(Target& target);
std::vector<Counter> EightChains(Target& target);
std::vector<Counter> StageLane(Target& target);
std::vector<Counter> PlanRuns(Target& target);

// graph_counters.cc
std::vector<Counter> Graph(Target& target);
std::vector<Counter> Params(Target& target);
std::vector<Counter> ParamsByLaunch(Target& target);
std::vector<Counter> PlanSegments(Target& target);

// step_counters.cc
std::vector<Counter> Memory(Target& target);
std::vector<Counter> MlpStep(Target& target);
std::vector<Counter> Collectives(Target& target);

}  // namespace engine::perf
