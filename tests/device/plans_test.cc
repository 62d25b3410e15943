// GPU nodes of plans: bulks on a lane, graphs when they come again, in order with the nodes on CPUs, errors per node.
#include "device_test.h"
#include "engine/plan.h"

namespace engine::test {
namespace {

// in (CPU) -> three kernels -> out (CPU), each adding to what it gets; values are numbers in the frame.
struct Pipeline {
  explicit Pipeline(Rig& r, bool keyed = true, bool static_alloc = true) : rig(r) {
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

TEST(DevicePlans, NodesOfALaneAreOneTaskAndOneBulk) {
  Rig rig;
  Pipeline p(rig, false);
  EXPECT_EQ(p.plan.tasks().size(), 3u);
  for (int x = 0; x < 10; ++x) EXPECT_EQ(p.Once(x), (x + 1) * 8 + 3);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kRecord], 10u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kLaunch], 30u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kWait], 0u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kSynchronize], 0u);
  EXPECT_EQ(rig.eng().device_stats().lanes, 1u);
}

TEST(DevicePlans, AStaticSegmentIsOneGraphLaunchARun) {
  Rig rig;
  Pipeline p(rig);
  for (int x = 0; x < 3; ++x) EXPECT_EQ(p.Once(x), (x + 1) * 8 + 3);
  const DeviceCounts before = rig.device().counts();
  const int bodies = p.bodies;
  for (int x = 3; x < 23; ++x) EXPECT_EQ(p.Once(x), (x + 1) * 8 + 3);
  const DeviceCounts made = rig.device().counts() - before;
  EXPECT_EQ(made[DeviceCall::kLaunchGraph], 20u);
  EXPECT_EQ(made[DeviceCall::kRecord], 20u);
  EXPECT_EQ(made[DeviceCall::kInstantiate] + made[DeviceCall::kUpdateNode] + made[DeviceCall::kUpdate], 0u);
  EXPECT_EQ(made[DeviceCall::kLaunch] + made[DeviceCall::kBeginCapture] + made[DeviceCall::kCreateEvent], 0u);
  EXPECT_EQ(p.bodies, bodies) << "no body runs any more";
}

TEST(DevicePlans, WithoutStaticAllocOrKeysBodiesRun) {
  for (const auto& [keyed, fixed] : {std::pair(true, false), std::pair(false, true)}) {
    Rig rig;
    Pipeline p(rig, keyed, fixed);
    for (int x = 0; x < 8; ++x) EXPECT_EQ(p.Once(x), (x + 1) * 8 + 3);
    EXPECT_EQ(p.bodies, 24);
    EXPECT_EQ(rig.eng().device_stats().graph_launches, 0u);
  }
}

TEST(DevicePlans, EachFrameHasItsGraph) {
  Rig rig({}, 2);
  Pipeline p(rig);
  for (int round = 0; round < 12; ++round) {
    std::vector<engine::Run> runs;
    for (int x = 0; x < 4; ++x) {
      Value in(100 * round + x);
      runs.push_back(p.plan.Start({&in, 1}));
    }
    for (int x = 0; x < 4; ++x) EXPECT_EQ(runs[x].Output<int>(0), (100 * round + x + 1) * 8 + 3);
  }
  EXPECT_EQ(rig.eng().device_stats().graph_instantiations, p.plan.frames());
  EXPECT_EQ(rig.eng().device_stats().graph_updates, 0u);
}

TEST(DevicePlans, EveryPolicyGivesTheSame) {
  Rig rig;
  Pipeline p(rig);
  for (const Policy policy : {Policy::kInline, Policy::kNaive, Policy::kThreaded, Policy::kInline})
    for (int x = 0; x < 4; ++x) EXPECT_EQ(p.Once(x, {.policy = policy}), (x + 1) * 8 + 3);
  EXPECT_GT(rig.eng().device_stats().graph_launches, 0u);
}

// Forks and joins, a CPU node in the middle, two lanes, and state in Vars: ordered as recorded.
TEST(DevicePlans, AreInOrderWithCpuNodesAndVars) {
  Rig rig({}, 2);
  Var state = rig.eng().NewVar("state");
  int total = 0, left = 0, right = 0, middle = 0;
  Graph graph;
  const auto kernel = [&](std::function<void()> body) {
    return [&rig, body = std::move(body)](RunContext& ctx) { rig.Launch(ctx, "k", body); };
  };
  const NodeId a = graph.Add({.name = "a", .reads = {state}, .place = Gpu(0, 1)}, kernel([&] { left = total + 1; }));
  const NodeId b = graph.Add({.name = "b", .reads = {state}, .place = Gpu(0, 2)}, kernel([&] { right = total + 2; }));
  const NodeId c = graph.Add({.name = "c"}, [&] { middle = left + right; });
  graph.Order(a, c);
  graph.Order(b, c);
  const NodeId d = graph.Add({.name = "d", .updates = {state}, .place = Gpu(0, 1)}, kernel([&] { total = middle; }));
  graph.Order(c, d);
  const Plan plan = graph.Compile(rig.eng());
  int want = 0;
  for (int run = 0; run < 10; ++run) {
    plan.Start();
    want = 2 * want + 3;
  }
  rig.eng().Wait(state);
  EXPECT_EQ(total, want);
  // What comes after the run on the host, and on the device, comes after its kernels.
  plan.Start();
  int seen = 0;
  rig.Push({.reads = {state}, .place = Gpu(0, 3)}, [&] { seen = total; });
  rig.eng().WaitAll();
  EXPECT_EQ(seen, 2 * want + 3);
}

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
  Pipeline p(rig);
  CancelScope scope;
  scope.Cancel();
  EXPECT_THROW(p.Once(1, {.cancel = &scope}), OpError);
  EXPECT_EQ(p.bodies, 0);
  EXPECT_EQ(p.Once(1), 19);
}

TEST(DevicePlans, TimesCoverTheDevice) {
  Rig rig;
  Pipeline p(rig);
  for (int x = 0; x < 4; ++x) p.Once(x);
  std::vector<NodeTime> times(p.plan.graph().nodes().size());
  EXPECT_EQ(p.Once(4, {.times = times}), 43);
  for (const NodeTime& t : times) {
    EXPECT_GT(t.begin, 0);
    EXPECT_GE(t.end, t.begin);
  }
  EXPECT_GE(times[4].begin, times[3].end) << "the host's node, after the last kernel had ended";
}

TEST(DevicePlans, WhatCannotBeHonouredIsRefusedAtCompile) {
  Rig rig;
  Graph async;
  async.AddAsync({.name = "later", .place = Gpu(0)}, [](NodeContext&, Completion done) { done(); });
  EXPECT_THROW(async.Compile(rig.eng()), UsageError);
  Graph unknown;
  unknown.Add({.name = "far", .place = Gpu(5)}, [] {});
  EXPECT_THROW(unknown.Compile(rig.eng()), UsageError);
}

}  // namespace
}  // namespace engine::test
