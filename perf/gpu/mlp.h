// Mlp: the ops of a training step of a perceptron of four layers, with the dependencies of the real one; each is one kernel
// of the length that its matrix product would have.
#pragma once

#include <functional>

#include "rig.h"

namespace engine::perf {

class Mlp {
 public:
  static constexpr int kLayers = 4;
  static constexpr Nanos kForward{30'000}, kLoss{20'000}, kInputGradient{30'000}, kWeightGradient{40'000},
      kUpdate{20'000};

  explicit Mlp(Rig& rig) : rig_(rig), bulk_(rig.eng) {
    for (int i = 0; i <= kLayers; ++i) {
      activation_.push_back(rig.eng.NewVar("activation"));
      gradient_.push_back(rig.eng.NewVar("gradient"));
      weight_.push_back(rig.eng.NewVar("weight"));
      weight_gradient_.push_back(rig.eng.NewVar("weight gradient"));
    }
  }

  // In bulks of `limit`, or one by one (1); `graph`: the whole step as one static bulk.
  void Step(size_t limit, bool graph) {
    size_t held = 0;
    uint64_t kind = 0;
    Each([&](OpDesc desc, Nanos time) {
      desc.place = Gpu(0);
      if (graph) desc.graph = {.kind = ++kind, .params = 1, .one_call = true};
      if (limit == 1 && !graph) return rig_.Push(desc, time);
      rig_.Push(bulk_, desc, time);
      if (++held == limit && !graph) {
        bulk_.Release();
        held = 0;
      }
    });
    bulk_.Release();
  }
  // The step's kernels in order, for whoever writes it by hand.
  void ByHand(const std::function<void(Nanos, const char*)>& launch) {
    Each([&](const OpDesc& desc, Nanos time) { launch(time, desc.name.c_str()); });
  }
  uint64_t ops() {
    uint64_t count = 0;
    Each([&](const OpDesc&, Nanos) { ++count; });
    return count;
  }
  const Var& weight(int layer) const { return weight_[static_cast<size_t>(layer)]; }

 private:
  template <class F>
  void Each(F&& op) {
    for (size_t i = 1; i <= kLayers; ++i)
      op(OpDesc{.name = "forward", .reads = {activation_[i - 1], weight_[i]}, .writes = {activation_[i]}}, kForward);
    op(OpDesc{.name = "loss", .reads = {activation_[kLayers]}, .writes = {gradient_[kLayers]}}, kLoss);
    for (size_t i = kLayers; i >= 1; --i) {
      op(
          OpDesc{
              .name = "weight gradient", .reads = {activation_[i - 1], gradient_[i]}, .writes = {weight_gradient_[i]}},
          kWeightGradient);
      if (i > 1)
        op(OpDesc{.name = "input gradient", .reads = {gradient_[i], weight_[i]}, .writes = {gradient_[i - 1]}},
           kInputGradient);
    }
    for (size_t i = 1; i <= kLayers; ++i)
      op(OpDesc{.name = "update", .reads = {weight_gradient_[i]}, .updates = {weight_[i]}}, kUpdate);
  }

  Rig& rig_;
  HeldOps bulk_;
  std::vector<Var> activation_, gradient_, weight_, weight_gradient_;
};

}  // namespace engine::perf
