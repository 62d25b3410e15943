// Counters: what must hold exactly, on every device, whatever the clock says. The hard gates of the suite, and of CI on
// the software device.
//
// Each scenario sets up a situation that leaves the engine no choice (kernels are held, so that nothing ends early; a
// first step warms), then says what was counted and what it must be.
#pragma once

#include <string>
#include <vector>

#include "target.h"

namespace engine::perf {

struct Counter {
  std::string name;
  uint64_t got;
  uint64_t want;
};

struct Scenario {
  int row;  // of the suite's table
  const char* name;
  const char* about;
  std::vector<Counter> (*run)(Target& target);
};

const std::vector<Scenario>& Scenarios();

}  // namespace engine::perf
