// Plans on devices: nodes that fail or are cancelled, a lost device, and what is refused.
#include "plan_pipeline.h"

namespace engine::test {
namespace {

TEST(DevicePlans, ANodeThatThrowsFailsWhatNeedsItAndNothingElse) {
  Rig rig;
  Graph graph;
  bool fail = true;
  std::atomic<int> ran{0};
  const NodeId bad = graph.Add({.name = "bad", .outputs = 1, .place = Gpu(0)}, [&](NodeContext& ctx) {
    if (fail) throw std::runtime_error("planted");
    ctx.Return(0, 5);
  });
  graph.Add({.name = "after", .inputs = {bad[0]}, .place = Gpu(0)},
            [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ran += 1; }); });
  graph.Add({.name = "beside", .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ran += 10; }); });
  graph.Output(bad[0]);
  const Plan plan = graph.Compile(rig.eng());
  engine::Run run = plan.Start();
  try {
    run.Wait();
    FAIL() << "the error was lost";
  } catch (const OpError& e) {
    EXPECT_EQ(e.op(), "bad");
    EXPECT_NE(std::string(e.what()).find("planted"), std::string::npos);
  }
  EXPECT_EQ(ran, 10);
  fail = false;
  EXPECT_EQ(plan.Start().Output<int>(0), 5) << "the plan is as good as before";
  EXPECT_EQ(ran, 21);
}

TEST(DevicePlans, ALostDeviceFailsTheRunAndItsVars) {
  Rig rig;
  Var out = rig.eng().NewVar("out");
  Graph graph;
  graph.Add({.name = "one", .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  graph.Add({.name = "two", .writes = {out}, .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  const Plan plan = graph.Compile(rig.eng());
  plan.Start().Wait();
  rig.device().FailKernel(2, DeviceCode::kIllegalAddress);
  EXPECT_THROW(plan.Start().Wait(), OpError);
  EXPECT_THROW(rig.eng().Wait(out), OpError);
  EXPECT_THROW(plan.Start().Wait(), OpError) << "no device, no run, and no hang";
  EXPECT_THROW(rig.eng().Wait(out), OpError);
  rig.eng().Push({.writes = {out}}, [] {});
  rig.eng().Wait(out);
}

TEST(DevicePlans, CancelledNodesAreNotIssued) {
  Rig rig;
  PlanPipeline p(rig);
  CancelScope scope;
  scope.Cancel();
  EXPECT_THROW(p.Once(1, {.cancel = &scope}), OpError);
  EXPECT_EQ(p.bodies, 0);
  EXPECT_EQ(p.Once(1), 19);
}

TEST(DevicePlans, AnAsynchronousNodeThatFailsFailsWhatNeedsIt) {
  enum class How { kThrows, kFails, kForgets, kFine };
  Rig rig({}, 2);
  Var out = rig.eng().NewVar("out"), apart = rig.eng().NewVar("apart");
  How how = How::kThrows;
  std::atomic<int> ran{0};
  Graph graph;
  graph.AddAsync({.name = "later", .writes = {out}, .place = Gpu(0)}, [&](NodeContext& ctx, Completion done) {
    rig.Launch(ctx, "k");
    if (how == How::kThrows) throw std::runtime_error("planted");
    if (how == How::kFails) done.Fail(std::make_exception_ptr(std::runtime_error("planted")));
    if (how == How::kFine) done();
  });
  graph.Add({.name = "behind", .updates = {out}, .place = Gpu(0)},
            [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ran += 1; }); });
  graph.Add({.name = "apart", .writes = {apart}, .place = Gpu(0)},
            [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ran += 10; }); });
  const Plan plan = graph.Compile(rig.eng());
  int expected = 0;
  for (how = How::kThrows; how != How::kFine; how = static_cast<How>(static_cast<int>(how) + 1)) {
    SCOPED_TRACE(static_cast<int>(how));
    try {
      plan.Start().Wait();
      FAIL() << "the error was lost";
    } catch (const OpError& e) {
      EXPECT_EQ(e.op(), "later");
    }
    EXPECT_THROW(rig.eng().Wait(out), OpError);
    EXPECT_NO_THROW(rig.eng().Wait(apart));
    EXPECT_EQ(ran, expected += 10);
  }
  plan.Start().Wait();
  rig.eng().Wait(out);
  EXPECT_EQ(ran, expected + 11) << "the plan is as good as before";
}

TEST(DevicePlans, WhatCannotBeHonouredIsRefusedAtCompile) {
  Rig rig;
  Graph unknown;
  unknown.Add({.name = "far", .place = Gpu(5)}, [] {});
  EXPECT_THROW(unknown.Compile(rig.eng()), UsageError);
}

}  // namespace
}  // namespace engine::test
