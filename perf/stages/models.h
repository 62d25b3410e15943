// SmartStage on steps with the input and compute times that DeepRec published for its five models.
#pragma once

#include <string_view>

#include "../peers/runner.h"

// `name`: model_dlrm_cpu, model_dien, model_din, model_dlrm, model_dssm, model_deepfm; n: steps each way. Figures:
// guarded divided by whole, how often guarded is faster, what the times allow, the share of that gain, and the ratio
// that DeepRec published.
perf::Answer ModelSteps(std::string_view name, std::size_t n);
