// PlanPipeline: a plan with three kernels between two nodes on the host, for the tests of plans on devices.
#pragma once

#include "device_test.h"
#include "engine/plan.h"

namespace engine::test {

// in (CPU) -> three kernels -> out (CPU), each adding to what it gets; values are numbers in the frame.
struct PlanPipeline {
  explicit PlanPipeline(Rig& r, bool keyed = true, bool static_alloc = true) : rig(r) {
    ValueId x = graph.Input<int>("x");
    x = graph.Add({.name = "in", .inputs = {x}, .outputs = 1},
                  [](NodeContext& ctx) { ctx.Reuse<int>(0) = ctx.In<int>(0) + 1; })[0];
    for (uint64_t k = 0; k < 3; ++k) {
      const GraphKey key = keyed ? GraphKey{.kind = k + 1, .params = 1, .one_call = true} : GraphKey{};
      x = graph.Add({.name = "kernel", .inputs = {x}, .outputs = 1, .place = Gpu(0), .graph = key},
                    [this](NodeContext& ctx) {
                      ++bodies;
                      rig.Launch(ctx, "kernel", [from = &ctx.In<int>(0), to = &ctx.Reuse<int>(0)] { *to = *from * 2; });
                    })[0];
    }
    graph.Output(graph.Add({.name = "out", .inputs = {x}, .outputs = 1},
                           [](NodeContext& ctx) { ctx.Reuse<int>(0) = ctx.In<int>(0) + 3; })[0]);
    plan = graph.Compile(rig.eng(), {.name = "pipeline", .static_alloc = static_alloc});
  }
  int Once(int x, const RunOptions& options = {}) {
    Value in(x);
    return plan.Start({&in, 1}, options).Output<int>(0);
  }
  Rig& rig;
  Graph graph;
  Plan plan;
  std::atomic<int> bodies{0};
};

}  // namespace engine::test
