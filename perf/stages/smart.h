// SmartStage in real time: random steps with random costs, guarded against whole, in pairs.
#pragma once

#include "../peers/runner.h"

// `pairs` of each of a dozen random steps. Figures: guarded / whole, its mean and the bounds of its 95 % interval over all
// pairs; how many steps were slower with SmartStage at that confidence; how many stayed staged; and the best ratio.
perf::Answer SmartPairs(std::size_t pairs);
