// The steps per second that DeepRec published for its five models, and the step that is made of them here. Shared by the suites
// `stages` (software device) and `gpu`.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace perf {

// Steps a second without SmartStage and with it (on a GPU: with the stage on the CPU), as published. The time that it saved
// in a step is input work, the rest is the model's. Here both are three tenths of that, so that a suite does not take an hour.
struct DeepRecModel {
  std::string_view name;
  double off, on;
  bool gpu;
  double compute_seconds() const { return kScale / on; }
  double input_seconds() const { return std::min(kScale / off - kScale / on, kScale / on); }

  static constexpr double kScale = 0.3;
};
inline constexpr std::array kDeepRecModels = {
    DeepRecModel{"model_dlrm_cpu", 201, 212, false},    DeepRecModel{"model_dien", 17.1673, 17.2557, true},
    DeepRecModel{"model_din", 137.584, 165.069, true},  DeepRecModel{"model_dlrm", 91.6982, 188.105, true},
    DeepRecModel{"model_dssm", 92.4544, 101.352, true}, DeepRecModel{"model_deepfm", 74.7011, 93.0858, true},
};
inline constexpr std::size_t kDeepRecFeatures = 512 * 13;  // floats of a batch, as in Criteo

}  // namespace perf
