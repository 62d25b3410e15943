// GPU nodes of plans: bulks on a lane, graphs when they come again, in order with the nodes on CPUs, errors per node.
#include <random>

#include "device_test.h"
#include "engine/spi/cost_model.h"

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

// Runs of one plan follow each other on the device: nobody waits for the run before, and nothing is waited for twice.
TEST(DevicePlans, RunsFollowEachOtherWithoutTheHost) {
  Rig rig;
  Var state = rig.eng().NewVar("state");
  int sum = 0;
  Graph graph;
  for (int k = 0; k < 3; ++k)
    graph.Add({.name = "kernel", .updates = {state}, .place = Gpu(0)},
              [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { sum = 3 * sum + 1; }); });
  const Plan plan = graph.Compile(rig.eng());
  const uint64_t hold = rig.PushHeldKernel({.name = "before", .updates = {state}});
  std::vector<engine::Run> runs;
  for (int i = 0; i < 4; ++i) runs.push_back(plan.Start());
  while (rig.eng().device_stats().issued < 13)
    std::this_thread::yield();  // all of it, behind a kernel that has not ended
  for (const engine::Run& run : runs) EXPECT_FALSE(run.done());
  DeviceCounts made = rig.device().counts();
  EXPECT_EQ(made[DeviceCall::kRecord], 5u) << "the held kernel's, and one a run";
  EXPECT_EQ(made[DeviceCall::kWait], 0u) << "all on one lane";
  EXPECT_EQ(made[DeviceCall::kSynchronize], 0u);
  // What is pushed behind the runs follows on the device as well: here on another lane, so it waits once.
  rig.Push({.reads = {state}, .place = Gpu(0, 3)});
  while (rig.eng().device_stats().issued < 14) std::this_thread::yield();
  rig.device().Release(hold);
  for (engine::Run& run : runs) run.Wait();
  rig.eng().WaitAll();
  EXPECT_EQ(sum, 265'720);  // (3^12 - 1) / 2
  made = rig.device().counts();
  EXPECT_EQ(made[DeviceCall::kRecord], 6u);
  EXPECT_EQ(made[DeviceCall::kWait], 1u);
  EXPECT_EQ(made[DeviceCall::kSynchronize], 0u);
}

// Tasks on two lanes of one run, and the same in the run behind it: one wait for each change of lane, none by the host.
TEST(DevicePlans, LanesOfARunAreOrderedOnTheDevice) {
  Rig rig;
  Var state = rig.eng().NewVar("state");
  int total = 0, left = 0, right = 0;
  Graph graph;
  const auto kernel = [&](std::function<void()> body) {
    return [&rig, body = std::move(body)](RunContext& ctx) { rig.Launch(ctx, "k", body); };
  };
  const NodeId a = graph.Add({.name = "a", .reads = {state}, .place = Gpu(0, 1)}, kernel([&] { left = total + 1; }));
  const NodeId b = graph.Add({.name = "b", .place = Gpu(0, 2)}, kernel([&] { right = left + 2; }));
  graph.Order(a, b);
  const NodeId c = graph.Add({.name = "c", .updates = {state}, .place = Gpu(0, 1)}, kernel([&] { total = right * 2; }));
  graph.Order(b, c);
  const Plan plan = graph.Compile(rig.eng());
  ASSERT_EQ(plan.tasks().size(), 3u);
  int want = 0;
  for (int round = 0; round < 3; ++round) {
    const DeviceCounts before = rig.device().counts();
    const uint64_t issued = rig.eng().device_stats().issued;
    const uint64_t hold = rig.device().HangKernel(1);
    std::vector<engine::Run> runs;
    for (int i = 0; i < 2; ++i) runs.push_back(plan.Start());
    while (rig.eng().device_stats().issued < issued + 6) std::this_thread::yield();
    const DeviceCounts made = rig.device().counts() - before;
    EXPECT_EQ(made[DeviceCall::kRecord], 6u) << "one a task";
    EXPECT_EQ(made[DeviceCall::kWait], 4u) << "to b, and back to c; the second run's a is on c's lane";
    EXPECT_EQ(made[DeviceCall::kSynchronize], 0u);
    rig.device().Release(hold);
    for (engine::Run& run : runs) run.Wait();
    for (int i = 0; i < 2; ++i) want = (want + 3) * 2;
    EXPECT_EQ(total, want);
  }
}

// Only what a node on the host touches first is waited for at the start of a run.
TEST(DevicePlans, AHostNodeThatComesFirstWaitsForTheDevice) {
  Rig rig;
  Var ready = rig.eng().NewVar("ready");
  std::atomic<int> seen{-1};
  int made = 0;
  Graph graph;
  graph.Add({.name = "look", .reads = {ready}}, [&] { seen = made; });
  const NodeId change = graph.Add({.name = "change", .updates = {ready}, .place = Gpu(0)},
                                  [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  (void)change;
  const Plan plan = graph.Compile(rig.eng());
  uint64_t hold = 0;
  Gate issued;
  rig.eng().Push({.name = "held", .writes = {ready}, .place = Gpu(0)}, [&](RunContext& ctx) {
    ASSERT_TRUE(rig.device().LaunchHeld(ctx.stream(), "held", &hold).ok());
    rig.Launch(ctx, "k", [&] { made = 7; });
    issued.Open();
  });
  issued.Wait();
  engine::Run run = plan.Start();
  while (rig.eng().device_stats().host_waits == 0) std::this_thread::yield();
  EXPECT_EQ(seen, -1);
  rig.device().Release(hold);
  run.Wait();
  EXPECT_EQ(seen, 7);
}

// What settles the nodes of a run is in a hurry only if somebody waits for that: a thread, or a node on the host.
TEST(DevicePlans, ARunThatNobodyWaitsForIsNoHostWait) {
  Rig rig;
  Var state = rig.eng().NewVar("state");
  const auto kernel = [&](RunContext& ctx) { rig.Launch(ctx, "k"); };
  const auto host_waits = [&] { return rig.eng().device_stats().host_waits; };
  Graph graph, to_host;
  for (Graph* g : {&graph, &to_host})
    for (int k = 0; k < 3; ++k) g->Add({.name = "node", .updates = {state}, .place = Gpu(0)}, kernel);
  to_host.Add({.name = "on the host", .reads = {state}}, [] {});
  const Plan plan = graph.Compile(rig.eng()), with_host = to_host.Compile(rig.eng());
  const auto until_parked = [&] {
    while (rig.eng().DescribePending().find("waits for work on a device to end") == std::string::npos)
      std::this_thread::yield();
  };
  uint64_t hold = rig.PushHeldKernel({.updates = {state}});
  engine::Run run = plan.Start();
  until_parked();
  EXPECT_EQ(host_waits(), 0u);
  rig.device().Release(hold);
  rig.eng().WaitAll();
  EXPECT_TRUE(run.done());
  EXPECT_EQ(host_waits(), 0u) << "nobody waited for the run itself";

  hold = rig.PushHeldKernel({.updates = {state}});
  run = plan.Start();
  until_parked();
  EXPECT_FALSE(run.WaitFor(0s));
  EXPECT_FALSE(run.WaitFor(0s));
  EXPECT_EQ(host_waits(), 1u);
  rig.device().Release(hold);
  run.Wait();
  EXPECT_EQ(host_waits(), 1u);

  hold = rig.PushHeldKernel({.updates = {state}});
  run = with_host.Start();
  while (host_waits() == 1) std::this_thread::yield();  // the node on the host waits for the device
  rig.device().Release(hold);
  while (!run.done()) std::this_thread::yield();
  EXPECT_EQ(host_waits(), 2u);
}

// The retirement thread dozes while nobody waits. Who comes to wait ends that, and need not see a timer run out.
TEST(DevicePlans, WhoeverComesToWaitIsNoticedAtOnce) {
  Rig rig;
  Var state = rig.eng().NewVar("state");
  Graph graph;
  graph.Add({.name = "node", .updates = {state}, .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  const Plan plan = graph.Compile(rig.eng());
  const auto stats = [&] { return rig.eng().device_stats(); };
  const auto looks = [&](uint64_t more) {
    for (const uint64_t before = stats().queries; stats().queries < before + more;) std::this_thread::yield();
  };
  for (const bool asks_for_the_run : {true, false}) {
    const uint64_t before = stats().late_looks;
    for (int i = 0; i < 10; ++i) {
      const uint64_t hold = rig.PushHeldKernel({.updates = {state}});
      engine::Run run = plan.Start();
      while (rig.eng().DescribePending().find("waits for work on a device to end") == std::string::npos)
        std::this_thread::yield();
      looks(1);  // and dozes again
      if (asks_for_the_run) {
        EXPECT_FALSE(run.WaitFor(0s));
      } else {
        rig.eng().Push({.reads = {state}}, [] {});
      }
      looks(3);
      rig.device().Release(hold);
      run.Wait();
      rig.eng().WaitAll();
    }
    EXPECT_LT(stats().late_looks - before, 5u) << (asks_for_the_run ? "Ask" : "AwaitRetired");
  }
}

// An op that reads the run's Var waits for it, too: who asks for the Var has the end looked for.
TEST(DevicePlans, AnOpBehindARunIsStartedWithoutAnybodysWait) {
  Rig rig;
  Graph graph;
  graph.Add({.name = "node", .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  const Plan plan = graph.Compile(rig.eng());
  engine::Run run = plan.Start();
  Gate ran;
  rig.eng().Push({.reads = {run.var()}}, [&] { ran.Open(); });
  ran.Wait();
  EXPECT_TRUE(run.done());
}

// Random programs on host and device, two lanes and any, with ops pushed between the runs: the same as in a loop.
TEST(DevicePlans, RandomProgramsGiveWhatALoopGives) {
  const std::array<Placement, 4> places{Cpu(), Gpu(0), Gpu(0, 1), Gpu(0, 2)};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 chance(seed);
    Rig rig({}, 2);
    constexpr size_t kVars = 5;
    std::array<Var, kVars> vars;
    std::array<uint32_t, kVars> x{}, want{};
    for (Var& v : vars) v = rig.eng().NewVar();
    struct Step {
      size_t from, to;
      uint32_t c;
      Placement place;
    };
    const auto draw = [&] {
      return Step{chance() % kVars, chance() % kVars, static_cast<uint32_t>(chance() % 100),
                  places[chance() % places.size()]};
    };
    const auto apply = [](std::array<uint32_t, kVars>& at, const Step& s) {
      at[s.to] = 3 * at[s.to] + at[s.from] + s.c;
    };
    const auto push = [&](Submitter& to, const Step& s) {
      OpDesc desc{.name = "step", .reads = vars[s.from], .updates = vars[s.to], .place = s.place};
      if (s.place.kind == Placement::Kind::kDefault) {
        to.Push(desc, [&x, s, apply] { apply(x, s); });
      } else {
        to.Push(desc, [&x, &rig, s, apply](RunContext& ctx) { rig.Launch(ctx, "k", [&x, s, apply] { apply(x, s); }); });
      }
    };
    std::vector<Step> steps(12);
    Graph graph;
    Capture capture(graph);
    for (Step& s : steps) push(capture, s = draw());
    const Plan plan = graph.Compile(rig.eng());
    std::vector<engine::Run> runs;
    for (int round = 0; round < 8; ++round) {
      runs.push_back(plan.Start({}, {.policy = round % 4 == 3 ? Policy::kInline : Policy::kThreaded}));
      for (const Step& s : steps) apply(want, s);
      const Step between = draw();
      push(rig.eng(), between);
      apply(want, between);
    }
    for (engine::Run& run : runs) run.Wait();
    rig.eng().WaitAll();
    EXPECT_EQ(x, want);
  }
}

// In the window, by events that nobody waits for and that are used again; outside of it not at all.
TEST(DevicePlans, CostModelMeasuresTheDevicesTime) {
  SoftwareDeviceOptions options{.clock = SoftwareDeviceOptions::Clock::kVirtual};
  options.costs.host.fill({});
  options.costs.kernel_gap = {};
  Rig rig(options);
  Var state = rig.eng().NewVar("state");
  Graph graph;
  for (const int64_t cost : {10'000, 3'000})
    graph.Add({.name = "kernel", .updates = {state}, .place = Gpu(0)}, [&, cost](RunContext& ctx) {
      ASSERT_TRUE(rig.device().Launch(ctx.stream(), "k", std::chrono::nanoseconds(cost), {}).ok());
    });
  graph.Add({.name = "host", .reads = {state}}, [] {});
  const Plan plan = graph.Compile(rig.eng());
  const PolicyScope scope = rig.eng().EnterPolicy({Policy::kCostModel, {.start_step = 1, .stop_step = 5}});
  const auto step = [&] {
    engine::Run run = plan.Start();
    while (!run.done()) rig.device().RunUntilIdle();
    return rig.device().counts();
  };
  EXPECT_EQ(step()[DeviceCall::kElapsed], 0u) << "before the window";
  const uint64_t events = step()[DeviceCall::kCreateEvent];
  for (int i = 2; i < 4; ++i) (void)step();
  const DeviceCounts in_window = step();
  EXPECT_EQ(in_window[DeviceCall::kCreateEvent], events);
  EXPECT_EQ(in_window[DeviceCall::kElapsed], 8u) << "once a node and step";
  const Explanation told = Explain(plan);
  ASSERT_EQ(told.nodes.size(), 3u);
  EXPECT_EQ(told.nodes[0].cost.nanos, 10'000);
  EXPECT_EQ(told.nodes[1].cost.nanos, 3'000);
  EXPECT_EQ(told.nodes[1].cost.spread, 0);
  EXPECT_EQ(told.nodes[1].cost.samples, 4u);
  EXPECT_TRUE(told.nodes[1].device && !told.nodes[2].device);
  EXPECT_NE(told.Text().find(" on a GPU"), std::string::npos) << told.Text();
  const DeviceCounts after = step();
  EXPECT_EQ(after[DeviceCall::kElapsed], 8u) << "behind the window";
  EXPECT_EQ(after[DeviceCall::kSynchronize], 0u);
  EXPECT_EQ(Explain(plan).state, Explanation::State::kComparing) << Explain(plan).said;
  EXPECT_EQ(Explain(plan).tasks, 2u) << "the device's nodes are one bulk under a schedule, too";
}

// What a timer is refused leaves a time unknown, and is nobody's failure; but for a sticky error, which is the device's.
class ATimersCallFails : public testing::TestWithParam<std::tuple<DeviceCall, bool>> {};

TEST_P(ATimersCallFails, AndTheRunIsAsWithoutTimes) {
  const auto [call, sticky] = GetParam();
  for (uint64_t nth = 1; nth <= 8; ++nth) {
    SCOPED_TRACE("failing call " + std::to_string(nth));
    std::atomic<int> ran{0};  // outlives the device
    Rig rig;
    Var state = rig.eng().NewVar("state");
    Graph graph;
    for (int i = 0; i < 2; ++i)
      graph.Add({.name = "kernel", .updates = {state}, .place = Gpu(0)},
                [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ++ran; }); });
    const Plan plan = graph.Compile(rig.eng());
    const PolicyScope scope = rig.eng().EnterPolicy({Policy::kCostModel, {.start_step = 1, .stop_step = 5}});
    plan.Start().Wait();
    // A step has four records of timers, two a node, and then one of the lane, without which nothing would go on.
    rig.device().FailCall(call, call == DeviceCall::kRecord ? nth + nth / 5 : nth, DeviceCode::kUnknown, sticky);
    bool failed = false;
    const auto look = [&](auto&& wait) {
      try {
        wait();
      } catch (const OpError&) {
        failed = true;
      }
    };
    for (int i = 0; i < 3; ++i) look([&] { plan.Start().Wait(); });
    look([&] { rig.eng().WaitAll(); });
    EXPECT_TRUE(failed || ran == 8) << ran << " kernels ran and nobody said why not all";
    EXPECT_TRUE(sticky || !failed);
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, ATimersCallFails,
                         testing::Combine(testing::Values(DeviceCall::kElapsed, DeviceCall::kRecord,
                                                          DeviceCall::kCreateEvent),
                                          testing::Bool()),
                         [](const auto& p) {
                           return std::string(DeviceCallName(std::get<0>(p.param))) +
                                  (std::get<1>(p.param) ? "Sticky" : "Once");
                         });

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
