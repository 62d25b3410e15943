// SmartStage in real time: random steps with random costs, guarded and whole, in pairs.
#pragma once

#include "../peers/runner.h"

// Runs `pairs` pairs of each of a dozen random steps. Figures: the mean of guarded / whole over all pairs, and the
// bounds of its 95 % interval; how many steps were slower with SmartStage at that confidence; how many stayed staged;
// and the best ratio.
perf::Answer SmartPairs(std::size_t pairs);
