// Plans on devices: nodes of a lane are a bulk, a bulk that comes again is a graph, and values are those of a loop.
#include "plan_pipeline.h"
#include "random_loop.h"

namespace engine::test {
namespace {

TEST(DevicePlans, NodesOfALaneAreOneTaskAndOneBulk) {
  Rig rig;
  PlanPipeline p(rig, false);
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
  PlanPipeline p(rig);
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
    PlanPipeline p(rig, keyed, fixed);
    for (int x = 0; x < 8; ++x) EXPECT_EQ(p.Once(x), (x + 1) * 8 + 3);
    EXPECT_EQ(p.bodies, 24);
    EXPECT_EQ(rig.eng().device_stats().graph_launches, 0u);
  }
}

TEST(DevicePlans, EachFrameHasItsGraph) {
  Rig rig({}, 2);
  PlanPipeline p(rig);
  for (int round = 0; round < 12; ++round) {
    std::vector<engine::Run> runs;
    for (int x = 0; x < 4; ++x) {
      Value in(100 * round + x);
      runs.push_back(p.plan.Start({&in, 1}));
    }
    for (int x = 0; x < 4; ++x) EXPECT_EQ(runs[x].Output<int>(0), (100 * round + x + 1) * 8 + 3);
  }
  // A frame comes back a moment after its run has ended, so one more may have been made, and used too seldom for a graph.
  EXPECT_LE(rig.eng().device_stats().graph_instantiations, p.plan.frames());
  EXPECT_GE(rig.eng().device_stats().graph_instantiations, 4u);
  EXPECT_EQ(rig.eng().device_stats().graph_updates, 0u);
}

TEST(DevicePlans, EveryPolicyGivesTheSame) {
  Rig rig;
  PlanPipeline p(rig);
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

// On host and device, two lanes and any, with ops pushed between the runs.
TEST(DevicePlans, RandomProgramsGiveWhatALoopGives) {
  const RandomLoop loop{.places = {Cpu(), Gpu(0), Gpu(0, 1), Gpu(0, 2)}, .steps = 12, .rounds = 8, .inline_each = 4};
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(loop.Run(seed), 0u);
}

// Between two synchronous nodes of its lane: a task by itself, issued when its Completion is called, and no cycle of tasks.
TEST(DevicePlans, AsynchronousNodesAreIssuedWhenTheirCompletionIsCalled) {
  for (const Policy policy : {Policy::kThreaded, Policy::kInline}) {
    Rig rig({}, 2);
    Var state = rig.eng().NewVar("state");
    std::vector<int> order;  // written by the device
    const auto kernel = [&](int what) {
      return [&, what](RunContext& ctx) { rig.Launch(ctx, "k", [&, what] { order.push_back(what); }); };
    };
    Slot<Completion> completions;
    Graph graph;
    graph.Add({.name = "before", .updates = {state}, .place = Gpu(0)}, kernel(1));
    graph.AddAsync({.name = "later", .updates = {state}, .place = Gpu(0)}, [&](NodeContext& ctx, Completion done) {
      rig.Launch(ctx, "k", [&] { order.push_back(2); });
      completions.Put(std::move(done));
    });
    graph.Add({.name = "behind", .updates = {state}, .place = Gpu(0)}, kernel(3));
    graph.Add({.name = "on the host", .reads = {state}}, [&] { order.push_back(4); });
    const Plan plan = graph.Compile(rig.eng());
    EXPECT_EQ(plan.tasks().size(), 4u);
    for (int round = 0; round < 3; ++round) {
      order.clear();
      Gate over;
      std::thread starter([&] {  // an inline run is over when its start returns
        engine::Run run = plan.Start({}, {.policy = policy});
        run.Wait();
        over.Open();
      });
      Completion done = completions.Take();
      EXPECT_FALSE(over.open());
      done();
      starter.join();
      EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
    }
    EXPECT_EQ(rig.device().counts()[DeviceCall::kSynchronize], 0u);
  }
}

}  // namespace
}  // namespace engine::test
