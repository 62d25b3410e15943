// Tasks of plans on devices that are one op each: when they are, and that nothing but the cost differs.
#include <cstring>

#include "random_loop.h"

namespace engine::test {
namespace {

constexpr int kNodes = 5;

// Segments of kNodes kernels, a node on the host between each two. Each kernel makes 3 x + 1 of a number that it shares with all.
struct Segments {
  explicit Segments(Rig& r, int segments = 1, Placement place = Gpu(0)) : rig(r) {
    state = rig.eng().NewVar("state");
    for (int s = 0; s < segments; ++s) {
      if (s != 0) graph.Add({.name = "between", .updates = {state}}, [this] { ++total; });
      for (int k = 0; k < kNodes; ++k)
        graph.Add({.name = k == 0            ? Name("first")
                           : k == kNodes - 1 ? Name("last")
                                             : Name("node"),
                   .updates = {state},
                   .place = place,
                   .graph = {.kind = ++kinds, .one_call = true}},
                  [this](RunContext& ctx) {
                    ++bodies;
                    rig.Launch(ctx, ctx.name(), [this] { total = 3 * total + 1; });
                  });
    }
    plan = graph.Compile(rig.eng(), {.name = "segments", .static_alloc = true});
  }
  // One run, counted; and its frame is free, which it is a moment after the run has ended.
  void RunOnce() {
    plan.Start().Wait();
    rig.eng().WaitAll();
  }
  // Until all tasks are graphs.
  void Warm() {
    for (int run = 0; run < 4; ++run) RunOnce();
  }
  static uint32_t Applied(uint32_t x, int kernels) {
    for (int i = 0; i < kernels; ++i) x = 3 * x + 1;
    return x;
  }
  Rig& rig;
  Var state;
  Graph graph;
  Plan plan;
  uint64_t kinds = 0;
  std::atomic<int> bodies{0};
  uint32_t total = 0;
};

TEST(DeviceSegments, ARunPushesOneOpForEachAndNoneForItsNodes) {
  for (const int segments : {1, 2, 3}) {
    SCOPED_TRACE(segments);
    Rig rig;
    Segments s(rig, segments);
    EXPECT_EQ(s.plan.tasks().size(), static_cast<size_t>(2 * segments - 1));
    s.Warm();
    const DeviceCounts counts = rig.device().counts();
    const EngineStats before = rig.eng().stats();
    const DeviceStats there = rig.eng().device_stats();
    const int bodies = s.bodies;
    for (int run = 0; run < 10; ++run) {
      const uint32_t x = s.total = 7;
      s.RunOnce();
      uint32_t want = Segments::Applied(x, kNodes);
      for (int i = 1; i < segments; ++i) want = Segments::Applied(want + 1, kNodes);
      EXPECT_EQ(s.total, want);
    }
    EXPECT_EQ(rig.eng().stats().pushed - before.pushed, 10u * (1 + segments)) << "the run, and its segments";
    EXPECT_EQ(rig.eng().stats().completed - before.completed, 10u * (1 + segments));
    EXPECT_EQ(rig.eng().device_stats().issued - there.issued, 10u * segments);
    const DeviceCounts made = rig.device().counts() - counts;
    EXPECT_EQ(made[DeviceCall::kLaunchGraph], 10u * segments);
    EXPECT_LE(made[DeviceCall::kRecord], 10u * segments);
    EXPECT_EQ(made[DeviceCall::kLaunch] + made[DeviceCall::kWait] + made[DeviceCall::kSynchronize], 0u);
    EXPECT_EQ(s.bodies, bodies);
  }
}

TEST(DeviceSegments, RunsFollowEachOtherThereWithoutTheHost) {
  Rig rig;
  Segments s(rig);
  for (int round = 0; round < 6; ++round) {  // three frames, each with its graph from the fourth round on
    const uint64_t issued =
        rig.eng().device_stats().issued;  // before the held op, which counts a moment after its launch
    const uint64_t hold = rig.PushHeldKernel({.name = "before", .updates = {s.state}});
    const DeviceCounts counts = rig.device().counts();
    s.total = 1;
    std::vector<engine::Run> runs;
    for (int i = 0; i < 3; ++i) runs.push_back(s.plan.Start());
    if (round > 3) {
      while (rig.eng().device_stats().issued < issued + 1 + 3) std::this_thread::yield();
      const DeviceCounts made = rig.device().counts() - counts;
      EXPECT_EQ(made[DeviceCall::kLaunchGraph], 3u);
      EXPECT_EQ(made[DeviceCall::kWait] + made[DeviceCall::kSynchronize], 0u);
      for (const engine::Run& run : runs) EXPECT_FALSE(run.done());
    }
    rig.device().Release(hold);
    for (engine::Run& run : runs) run.Wait();
    EXPECT_EQ(s.total, Segments::Applied(1, 3 * kNodes));
    rig.eng().WaitAll();  // a frame comes back a moment after its run has ended
    EXPECT_EQ(s.plan.frames(), 3u);
  }
}

TEST(DeviceSegments, EachNodeIsInTheTrace) {
  Rig rig;
  Segments s(rig, 2);
  s.Warm();
  rig.eng().StartTrace();
  s.RunOnce();
  const auto trace = rig.eng().StopTrace().events;
  const auto named = [&](const char* name) {
    return std::ranges::count_if(trace, [&](const TraceEvent& e) { return !std::strcmp(e.name, name); });
  };
  EXPECT_EQ(named("first"), 2);
  EXPECT_EQ(named("node"), 2 * (kNodes - 2));
  EXPECT_EQ(named("last"), 2);
  EXPECT_EQ(named("first ... last (5 nodes)"), 0);
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 2u * 3) << "and nothing else differs";
}

TEST(DeviceSegments, WatchedRunsGoNodeByNodeAndTheNextOneDoesNot) {
  Rig rig;
  Segments s(rig);
  s.Warm();
  const auto pushed = [&](const RunOptions& options) {
    const uint64_t before = rig.eng().stats().pushed;
    s.plan.Start({}, options).Wait();
    rig.eng().WaitAll();
    return rig.eng().stats().pushed - before;
  };
  std::vector<NodeTime> times(kNodes);
  CancelScope scope;
  EXPECT_EQ(pushed({}), 2u);
  EXPECT_EQ(pushed({.times = times}), 1u + kNodes);
  EXPECT_EQ(pushed({.cancel = &scope}), 1u + kNodes);
  EXPECT_EQ(pushed({.deadline = std::chrono::steady_clock::now() + 1h}), 1u + kNodes);
  EXPECT_EQ(pushed({}), 2u);
  for (const NodeTime& t : times) EXPECT_GT(t.begin, 0);
  for (const Policy policy : {Policy::kInline, Policy::kNaive}) EXPECT_EQ(pushed({.policy = policy}), 2u);
}

// A kernel on a lane of its own, whose body throws when the segment behind it has been pushed; then the segment of what Add adds.
struct LateError {
  explicit LateError(Rig& r) : rig(r) {
    bad = rig.eng().NewVar("bad");
    graph.Add({.name = "source", .writes = {bad}, .place = Gpu(0, 1)}, [this](RunContext& ctx) {
      rig.Launch(ctx, "k");
      if (!fail) return;
      while (rig.eng().stats().pushed < pushed + 3) std::this_thread::yield();
      throw std::runtime_error("planted");
    });
  }
  void Add(OpDesc desc, std::function<void(RunContext&)> body) {
    desc.place = Gpu(0, 2);
    desc.graph = {.kind = ++kind, .one_call = true};
    Capture(graph).Push(desc, std::move(body));
  }
  void Compile() {
    plan = graph.Compile(rig.eng(), {.static_alloc = true});
    ASSERT_EQ(plan.tasks().size(), 2u);
    for (int run = 0; run < 4; ++run) EXPECT_EQ(Run(), "");
    EXPECT_EQ(last, 3u) << "the run, the source, the segment";
  }
  std::string Run() {  // the op whose error it has
    pushed = rig.eng().stats().pushed;
    engine::Run run = plan.Start();
    std::string op;
    try {
      run.Wait();
    } catch (const OpError& e) {
      op = e.op();
    }
    last = rig.eng().stats().pushed - pushed;
    return op;
  }
  Rig& rig;
  Var bad;
  Graph graph;
  Plan plan;
  uint64_t kind = 0;
  std::atomic<uint64_t> pushed{0};
  uint64_t last = 0;
  std::atomic<bool> fail{false};
};

// The bodies of the segment run, but for those that need what failed.
TEST(DeviceSegments, AnErrorThatComesBeforeItIsIssuedSkipsNodeByNode) {
  Rig rig;
  Var out = rig.eng().NewVar("out"), other = rig.eng().NewVar("other");
  int ran = 0;
  const auto kernel = [&](int bit) {
    return [&, bit](RunContext& ctx) { rig.Launch(ctx, "k", [&ran, bit] { ran |= bit; }); };
  };
  LateError s(rig);
  s.Add({.name = "needs it", .reads = {s.bad}, .writes = {out}}, kernel(1));
  s.Add({.name = "needs that", .updates = {out, other}}, kernel(2));
  s.Add({.name = "overwrites", .writes = {out}}, kernel(4));
  s.Compile();
  EXPECT_EQ(ran, 7);
  ran = 0;
  s.fail = true;
  EXPECT_EQ(s.Run(), "source");
  EXPECT_EQ(s.last, 3u) << "one op, whose bodies have run";
  EXPECT_EQ(ran, 4);
  EXPECT_EQ(FailureOf(rig.eng(), out).op, "");
  const Failure failure = FailureOf(rig.eng(), other);
  EXPECT_EQ(failure.op, "source");
  ExpectHas(failure.text, "'needs that'");
  s.fail = false;
  rig.eng().ClearError(other);
  EXPECT_EQ(s.Run(), "") << "what it overwrites, it clears";
  EXPECT_EQ(s.Run(), "");
  EXPECT_EQ(s.last, 3u) << "a graph again";
  EXPECT_EQ(ran, 7);
}

TEST(DeviceSegments, ANodeThatThrowsIsNamed) {
  Rig rig;
  Var state = rig.eng().NewVar("state"), next = rig.eng().NewVar("next");
  int apart = 0;
  LateError s(rig);
  s.Add({.name = "skipped", .reads = {s.bad}, .writes = {next}}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  s.Add({.name = "throws", .updates = {state}, .writes = {next}}, [&](RunContext& ctx) {
    EXPECT_STREQ(ctx.name(), "throws");
    if (s.fail) throw std::runtime_error("planted as well");
    rig.Launch(ctx, "k");
  });
  s.Add({.name = "apart", .writes = {next}}, [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ++apart; }); });
  s.Compile();
  s.fail = true;
  EXPECT_EQ(s.Run(), "source");
  const Failure failure = FailureOf(rig.eng(), state);
  EXPECT_EQ(failure.op, "throws");
  ExpectHas(failure.text, "planted as well");
  EXPECT_EQ(apart, 5) << "who needs neither runs";
}

TEST(DeviceSegments, ALaunchThatFailsRunsTheBodiesAndLaterRunsAreEager) {
  Rig rig;
  Segments s(rig);
  s.Warm();
  const int bodies = s.bodies;
  rig.device().FailCall(DeviceCall::kLaunchGraph, 1, DeviceCode::kUnknown, false);
  for (int run = 1; run <= 3; ++run) {
    s.total = 2;
    s.RunOnce();
    EXPECT_EQ(s.total, Segments::Applied(2, kNodes));
    EXPECT_EQ(s.bodies, bodies + run * kNodes);
  }
}

TEST(DeviceSegments, ALostDeviceFailsEachNodeAndNamesTheSegment) {
  Rig rig;
  Segments s(rig);
  s.Warm();
  rig.device().FailKernel(3, DeviceCode::kIllegalAddress);
  engine::Run run = s.plan.Start();
  EXPECT_THROW(run.Wait(), OpError);
  const Failure failure = FailureOf(rig.eng(), s.state);
  ExpectHas(failure.text, "'first ... last (5 nodes)'");
  engine::Run next = s.plan.Start();
  try {
    next.Wait();
    FAIL() << "no device, and no error";
  } catch (const OpError& e) {
    ExpectHas(e.what(), "was lost");
  }
}

TEST(DeviceSegments, ASegmentThatIsRefusedFailsItsNodesByName) {
  Rig rig;
  Segments s(rig, 1, Gpu(0, 1));
  s.Warm();
  const uint64_t hold = rig.PushHeldKernel({.updates = {s.state}, .place = Gpu(0, 3)});
  rig.device().FailCall(DeviceCall::kWait, 1, DeviceCode::kUnknown, false);
  engine::Run run = s.plan.Start();
  try {
    run.Wait();
    FAIL() << "the error was lost";
  } catch (const OpError& e) {
    EXPECT_EQ(e.op(), "first");
  }
  rig.device().Release(hold);
  const Failure failure = FailureOf(rig.eng(), s.state);
  EXPECT_EQ(failure.op, "first");
  ExpectHas(failure.text, "'last'");
  EXPECT_EQ(failure.text.find("nodes)"), std::string::npos) << failure.text;
}

// A graph whose bodies use what they keep with a lane is that lane's; on another the bodies run, and the next run makes another.
TEST(DeviceSegments, AGraphOfAnotherLaneIsNotUsed) {
  Rig rig({}, 1, 2);
  Var state = rig.eng().NewVar("state");
  Var other[] = {rig.eng().NewVar("lane 0"), rig.eng().NewVar("lane 1")};
  int total = 0;
  Graph graph;
  for (uint64_t k = 1; k <= 3; ++k)
    graph.Add({.name = "node", .updates = {state}, .place = Gpu(0), .graph = {.kind = k, .one_call = true}},
              [&](RunContext& ctx) {
                static const char key = 0;
                (void)ctx.LaneLocal(&key, [](RunContext&) -> std::shared_ptr<void> { return std::make_shared<int>(); });
                rig.Launch(ctx, "k", [&] { ++total; });
              });
  const Plan plan = graph.Compile(rig.eng(), {.static_alloc = true});
  int want = 0;
  for (int run = 0; run < 24; ++run) {
    // The producer's lane: 0 and 1 by turns, a few runs each.
    rig.Push({.name = "producer", .updates = {state}, .place = Gpu(0, static_cast<uint8_t>(run / 6 % 2))});
    plan.Start().Wait();
    rig.eng().WaitAll();
    EXPECT_EQ(total, want += 3);
  }
  EXPECT_GT(rig.eng().device_stats().graph_launches, 10u);
}

TEST(DeviceSegments, ANodeWithACancelScopeIsInNoGraph) {
  Rig rig;
  Var state = rig.eng().NewVar("state");
  CancelScope scope;
  int ran = 0;
  Graph graph;
  for (uint64_t k = 1; k <= 3; ++k) {
    OpDesc desc{.name = "node", .place = Gpu(0), .graph = {.kind = k, .one_call = true}};
    if (k == 2) desc.cancel = &scope;
    Capture(graph).Push(desc, [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ++ran; }); });
  }
  const Plan plan = graph.Compile(rig.eng(), {.static_alloc = true});
  for (int run = 0; run < 5; ++run) plan.Start().Wait();
  EXPECT_EQ(ran, 15);
  scope.Cancel();
  EXPECT_THROW(plan.Start().Wait(), OpError);
  EXPECT_EQ(ran, 17) << "the cancelled one did not run";
}

// On host and device, two lanes and any, with ops pushed between the runs.
TEST(DeviceSegments, RandomProgramsGiveWhatALoopGives) {
  const RandomLoop loop{.places = {Cpu(), Gpu(0), Gpu(0), Gpu(0, 1), Gpu(0, 1), Gpu(0, 2)},
                        .steps = 16,
                        .rounds = 40,
                        .inline_each = 8,
                        .graphs = true,
                        .most_runs = 3};
  uint64_t launches = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) launches += loop.Run(seed);
  EXPECT_GT(launches, 200u);
}

}  // namespace
}  // namespace engine::test
