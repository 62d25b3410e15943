// Plans under cost_model: the window, what is measured, the switch, files, overlapping runs, refusals.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/spi/cost_model.h"
#include "support/engine_test.h"
#include "support/odd_locale.h"
#include "support/seed.h"

namespace engine::test {
namespace {

using State = Explanation::State;

struct CostModelTest : testing::Test {
  // Six nodes: a fan and a join; `sum` changes by one with each run.
  Plan Fan() {
    Graph graph;
    const NodeId source = graph.Add({.name = "source"}, [] {});
    const NodeId sink = graph.Add({.name = "sink", .updates = {var}}, [this] { ++sum; });
    for (int i = 0; i < 4; ++i) {
      const NodeId node = graph.Add({.name = "part"}, [] {});
      graph.Order(source, node);
      graph.Order(node, sink);
    }
    return graph.Compile(eng, {.name = "fan"});
  }
  static State StateOf(const Plan& plan) { return Explain(plan).state; }
  // Runs, each waited for, until the policy has made up its mind.
  static int RunUntilDecided(const Plan& plan) {
    int steps = 0;
    for (; steps < 1000 && StateOf(plan) != State::kScheduled && StateOf(plan) != State::kWentBack; ++steps)
      plan.Start().Wait();
    return steps;
  }

  Engine eng{Quiet(2)};
  Var var = eng.NewVar("sum");
  int sum = 0;
};

TEST_F(CostModelTest, MeasuresTheWindowComparesAndDecides) {
  const Plan plan = Fan();
  const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 3, .stop_step = 7}});
  EXPECT_EQ(StateOf(plan), State::kNotUsed);
  for (int i = 0; i < 3; ++i) plan.Start().Wait();
  EXPECT_EQ(StateOf(plan), State::kWaiting);
  EXPECT_TRUE(plan.cost_model()->Costs().empty());
  for (int i = 3; i < 7; ++i) plan.Start().Wait();
  EXPECT_EQ(StateOf(plan), State::kMeasuring);
  plan.Start().Wait();
  EXPECT_EQ(StateOf(plan), State::kComparing);
  RunUntilDecided(plan);
  const Explanation told = Explain(plan);
  EXPECT_TRUE(told.state == State::kScheduled || told.state == State::kWentBack);
  EXPECT_TRUE(Has(told.said, "24 pairs"));
  const std::vector<NodeCost> costs = plan.cost_model()->Costs();
  ASSERT_EQ(costs.size(), 6u);
  std::vector<std::string> keys;
  for (const NodeCost& c : costs) {
    EXPECT_EQ(c.samples, 4u) << "the steps of the window, and no others";
    keys.push_back(c.key);
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"source", "sink", "part#1", "part#2", "part#3", "part#4"}));
  const int before = sum;
  for (int i = 0; i < 20; ++i) plan.Start();
  eng.WaitAll();
  EXPECT_EQ(sum, before + 20);
}

TEST_F(CostModelTest, OtherPoliciesMeasureNothing) {
  const Plan plan = Fan();
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive})
    for (int i = 0; i < 5; ++i) plan.Start({}, {.policy = policy}).Wait();
  std::vector<NodeTime> times(plan.graph().nodes().size());
  plan.Start({}, {.times = times}).Wait();
  EXPECT_EQ(StateOf(plan), State::kNotUsed);
  for (const NodeTime& t : times) EXPECT_EQ(t.busy, -1) << "processor time is read for the cost model only";
  const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 0, .stop_step = 1}});
  plan.Start({}, {.times = times}).Wait();
  for (const NodeTime& t : times) EXPECT_GE(t.busy, 0);
}

// DeepRec: an op in flight when the window opens gets a start of 0.
TEST_F(CostModelTest, WhatRanWhenTheWindowOpenedIsNotCounted) {
  Gate gate, entered;
  std::atomic<int> runs{0};
  Graph graph;
  graph.Add({.name = "node"}, [&] {
    if (runs.fetch_add(1) != 0) return;
    entered.Open();
    gate.Wait();
  });
  const Plan plan = graph.Compile(eng);
  const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 1, .stop_step = 4}});
  engine::Run first = plan.Start();
  entered.Wait();
  for (int i = 0; i < 3; ++i) plan.Start().Wait();
  gate.Open();
  first.Wait();
  ASSERT_EQ(plan.cost_model()->Costs().size(), 1u);
  EXPECT_EQ(plan.cost_model()->Costs()[0].samples, 3u);
}

// DeepRec: blocking waits are counted as work.
TEST_F(CostModelTest, TimeBlockedIsNotWork) {
  Gate gate, entered;
  Graph graph;
  graph.Add({.name = "blocks"}, [&] {
    entered.Open();
    gate.Wait();
  });
  const Plan plan = graph.Compile(eng);
  const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 0, .stop_step = 1}});
  engine::Run run = plan.Start();
  entered.Wait();
  const auto from = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - from < 5ms) std::this_thread::yield();  // the node is blocked meanwhile
  const auto blocked = std::chrono::steady_clock::now() - from;
  gate.Open();
  run.Wait();
  EXPECT_LT(plan.cost_model()->Costs().at(0).nanos, static_cast<double>(blocked.count()));
}

TEST_F(CostModelTest, AsynchronousNodesCostUntilTheyComplete) {
  Graph graph;
  std::thread other;
  graph.AddAsync({.name = "fetch"}, [&](RunContext&, Completion done) {
    other = std::thread([done]() mutable {
      const auto from = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - from < 1ms) std::this_thread::yield();
      done();
    });
  });
  const Plan plan = graph.Compile(eng);
  const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 0, .stop_step = 1}});
  plan.Start().Wait();
  other.join();
  EXPECT_GE(plan.cost_model()->Costs().at(0).nanos, 0.9e6);
}

// DeepRec: 0 < start < stop or silently off.
TEST_F(CostModelTest, AWindowThatIsNoneIsRefused) {
  const auto refusal = [&](int start, int stop) {
    return RefusalOf([&] { eng.SetPolicy(Policy::kCostModel, {.start_step = start, .stop_step = stop}); });
  };
  EXPECT_TRUE(Has(refusal(200, 100), "start_step = 200 and stop_step = 100"));
  EXPECT_TRUE(Has(refusal(5, 5), "must be less than"));
  EXPECT_TRUE(Has(refusal(300, -1), "stop_step = 200")) << "the default that it meets is named";
  EXPECT_TRUE(Has(refusal(-7, 5), "from -1 to 16777215"));
  EXPECT_TRUE(Has(RefusalOf([] {
                    MakePolicy("cost_model", {{"start_step", "9"}, {"stop_step", "8"}});
                  }),
                  "start_step"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.SetPolicy(Policy::kThreaded, {.start_step = 5}); }), "'cost_model'"));
  EXPECT_TRUE(Has(RefusalOf([] { Engine({.policy = Policy::kCostModel, .start_step = 8, .stop_step = 8}); }),
                  "start_step = 8 and stop_step = 8"));
  EXPECT_EQ(eng.policy(), Policy::kThreaded);
  eng.SetPolicy(Policy::kCostModel);
  EXPECT_EQ(eng.policy_choice().options.start_step, 100);
  EXPECT_EQ(eng.policy_choice().options.stop_step, 200);
}

TEST_F(CostModelTest, TheEnvironmentsNamesAreDefaults) {
  setenv("START_NODE_STATS_STEP", "4", 1);
  setenv("STOP_NODE_STATS_STEP", "9", 1);
  EngineOptions options = EngineOptions::FromEnv();
  setenv("STOP_NODE_STATS_STEP", "3", 1);
  const EngineOptions none = EngineOptions::FromEnv();  // refused only where cost_model is chosen
  EXPECT_TRUE(Has(RefusalOf([&] { Engine(none).SetPolicy(Policy::kCostModel); }), "start_step = 4 and stop_step = 3"));
  unsetenv("START_NODE_STATS_STEP");
  unsetenv("STOP_NODE_STATS_STEP");
  options.workers = 1;
  Engine other(options);
  other.SetPolicy(Policy::kCostModel, {.stop_step = 7});
  EXPECT_EQ(other.policy_choice().options.start_step, 4);
  EXPECT_EQ(other.policy_choice().options.stop_step, 7);
}

TEST_F(CostModelTest, FailedStepsTellNothingAndMeasuringGoesOn) {
  bool fails = true;
  Graph graph;
  const NodeId a = graph.Add({.name = "a"}, [&] {
    if (fails) throw std::runtime_error("not now");
  });
  const NodeId b = graph.Add({.name = "b"}, [] {});
  graph.Order(a, b);
  const Plan plan = graph.Compile(eng);
  const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 0, .stop_step = 2}});
  for (int i = 0; i < 5; ++i) EXPECT_THROW(plan.Start().Wait(), OpError);
  EXPECT_TRUE(plan.cost_model()->Costs().empty());
  EXPECT_TRUE(Has(Explain(plan).said, "5 failed"));
  CancelScope cancelled;
  cancelled.Cancel();
  EXPECT_THROW(plan.Start({}, {.cancel = &cancelled}).Wait(), OpError);
  fails = false;
  plan.Start().Wait();
  EXPECT_EQ(plan.cost_model()->Costs().size(), 2u);
  plan.Start().Wait();
  EXPECT_EQ(StateOf(plan), State::kComparing);
}

TEST_F(CostModelTest, OverlappingRunsOfManyThreads) {
  const Plan plan = Fan();
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&] {
      const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 5, .stop_step = 15}});
      for (int i = 0; i < 60; ++i) plan.Start();
    });
  }
  for (std::thread& client : clients) client.join();
  eng.WaitAll();
  EXPECT_EQ(sum, 240);
  {
    const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 5, .stop_step = 15}});
    RunUntilDecided(plan);
  }
  EXPECT_TRUE(Has(Explain(plan).said, "24 pairs"));
}

// Counts of frames and engines live on in runs; a plan may go while runs of its schedule are in flight.
TEST_F(CostModelTest, ThePlanMayGoWhileItsRunsAreInFlight) {
  Gate gate;
  eng.Push({.name = "first", .writes = {var}}, [&] { gate.Wait(); });
  {
    const Plan plan = Fan();
    const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 0, .stop_step = 1}});
    for (int i = 0; i < 8; ++i) plan.Start();
  }
  gate.Open();
  eng.WaitAll();
  EXPECT_EQ(sum, 8);
}

TEST_F(CostModelTest, CostsAreSavedAndLoaded) {
  const auto path = std::filesystem::temp_directory_path() / "engine_cost_model_test.txt";
  const Plan measured = Fan(), fresh = Fan();
  eng.SetPolicy(Policy::kCostModel, {.start_step = 0, .stop_step = 3});
  for (int i = 0; i < 3; ++i) measured.Start().Wait();
  measured.cost_model()->Save(path);
  fresh.cost_model()->Load(path);
  fresh.Start().Wait();
  EXPECT_EQ(StateOf(fresh), State::kComparing) << "no window is needed";
  EXPECT_EQ(fresh.cost_model()->Costs().size(), 6u);
  EXPECT_EQ(fresh.cost_model()->Costs()[0].nanos, measured.cost_model()->Costs()[0].nanos);

  Graph graph;
  graph.Add({.name = "something else"}, [] {});
  const Plan other = graph.Compile(eng);
  EXPECT_TRUE(Has(RefusalOf([&] { other.cost_model()->Load(path); }), "none of its 6 keys is one of this plan's"));
  std::ofstream(path) << "engine-costs 1\n100 5 x\n";
  EXPECT_TRUE(Has(RefusalOf([&] { fresh.cost_model()->Load(path); }), "line 2"));
  EXPECT_EQ(fresh.cost_model()->Costs().size(), 6u) << "a refused file changes nothing";
  std::filesystem::remove(path);
}

TEST_F(CostModelTest, WhatIsLoadedIsSavedAgain) {
  const auto path = std::filesystem::temp_directory_path() / "engine_cost_model_again.txt";
  const Plan measured = Fan(), later = Fan(), last = Fan();
  eng.SetPolicy(Policy::kCostModel, {.start_step = 0, .stop_step = 2});
  for (uint64_t shape = 0; shape < 2; ++shape)
    for (int i = 0; i < 3; ++i) measured.Start({}, {.shape = shape}).Wait();
  measured.cost_model()->Save(path);
  const size_t all = measured.cost_model()->Costs().size();
  later.cost_model()->Load(path);
  later.Start({}, {.shape = 0}).Wait();
  later.cost_model()->Save(path);
  EXPECT_EQ(later.cost_model()->Costs().size(), all);
  last.cost_model()->Load(path);
  EXPECT_EQ(last.cost_model()->Costs().size(), all) << "without a run";
  std::filesystem::remove(path);
}

TEST_F(CostModelTest, ManyMaySaveToOneFile) {
  const auto path = std::filesystem::temp_directory_path() / "engine_cost_model_many.txt";
  const Plan measured = Fan(), fresh = Fan();
  eng.SetPolicy(Policy::kCostModel, {.start_step = 0, .stop_step = 2});
  for (int i = 0; i < 3; ++i) measured.Start().Wait();
  measured.cost_model()->Save(path);
  const auto saves = [&] {
    for (int i = 0; i < 100; ++i) measured.cost_model()->Save(path);
  };
  std::thread one(saves), two(saves);
  for (int i = 0; i < 100; ++i) fresh.cost_model()->Load(path);
  one.join();
  two.join();
  std::filesystem::remove(path);
}

// DeepRec: averages, frozen for ever.
TEST_F(CostModelTest, CostsAreMeasuredAgainWhenAsked) {
  const Plan plan = Fan();
  eng.SetPolicy(Policy::kCostModel, {.start_step = 1, .stop_step = 3});
  RunUntilDecided(plan);
  plan.cost_model()->Remeasure();
  EXPECT_TRUE(plan.cost_model()->Costs().empty());
  for (int i = 0; i < 4; ++i) plan.Start().Wait();
  EXPECT_EQ(StateOf(plan), State::kComparing);
  // So does another window.
  eng.SetPolicy(Policy::kCostModel, {.start_step = 2, .stop_step = 3});
  plan.Start().Wait();
  EXPECT_EQ(StateOf(plan), State::kWaiting);
}

TEST_F(CostModelTest, ShapeClassesAreMeasuredByThemselves) {
  const Plan plan = Fan();
  eng.SetPolicy(Policy::kCostModel, {.start_step = 0, .stop_step = 2});
  for (int i = 0; i < 3; ++i) plan.Start({}, {.shape = 1}).Wait();
  plan.Start({}, {.shape = 2}).Wait();
  EXPECT_EQ(Explain(plan, 1).state, State::kComparing);
  EXPECT_EQ(Explain(plan, 2).state, State::kMeasuring);
  EXPECT_EQ(Explain(plan, 3).state, State::kNotUsed);
  for (uint64_t shape = 3; shape < 40; ++shape) plan.Start({}, {.shape = shape}).Wait();
  EXPECT_TRUE(Has(Explain(plan, 39).said, "too many shape classes"));
}

TEST_F(CostModelTest, NodesOfOneKeyShareTheirCost) {
  Graph graph;
  for (int i = 0; i < 3; ++i) graph.Add({.name = "n", .cost_key = "shared"}, [] {});
  const Plan plan = graph.Compile(eng);
  eng.SetPolicy(Policy::kCostModel, {.start_step = 0, .stop_step = 2});
  for (int i = 0; i < 2; ++i) plan.Start().Wait();
  ASSERT_EQ(plan.cost_model()->Costs().size(), 1u);
  EXPECT_EQ(plan.cost_model()->Costs()[0].samples, 6u);
}

// Every other measured run uses one thread a node; what the others show has a key of its own.
TEST_F(CostModelTest, WideNodesAreMeasuredWithOneThreadAndWithAllOfTheirs) {
  Graph graph;
  std::atomic<int> alone{0}, together{0};
  const NodeId wide = graph.Add({.name = "wide", .threads = 2}, [&](NodeContext& ctx) {
    std::atomic<int> pieces{0};
    ctx.ParallelFor(8, 1, [&](size_t, size_t) {
      ++pieces;
      for (int i = 0; i < 20000; ++i) asm volatile("");
    });
    ++(pieces == 1 ? alone : together);
  });
  graph.Order(wide, graph.Add({.name = "after"}, [] {}));
  graph.Add({.name = "aside"}, [] {});
  const Plan plan = graph.Compile(eng);
  eng.SetPolicy(Policy::kCostModel, {.start_step = 0, .stop_step = 10});
  for (int i = 0; i < 10; ++i) plan.Start().Wait();
  EXPECT_EQ(alone, 5);
  EXPECT_EQ(together, 5);
  std::vector<std::string> keys;
  for (const NodeCost& c : plan.cost_model()->Costs()) {
    keys.push_back(c.key);
    EXPECT_EQ(c.samples, keys.back().starts_with("wide") ? 5u : 10u) << c.key;
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"wide", "wide with 2 threads", "after", "aside"}));
  RunUntilDecided(plan);
  const Explanation told = Explain(plan);
  EXPECT_LE(told.nodes[0].threads, 2u);
  EXPECT_EQ(told.nodes[1].threads, 1u);
  EXPECT_EQ(told.nodes[0].cost.key, told.nodes[0].threads == 2 ? "wide with 2 threads" : "wide");
}

// Whether its steps are measured, compared or scheduled: the pool's threads are no schedule's.
TEST_F(CostModelTest, ALoopOverThePoolsThreadsStaysOne) {
  if (kUnderTsan) GTEST_SKIP() << "oneTBB is not instrumented";
  EngineOptions options = Quiet(2);
  options.intra_op_threads = 3;
  Engine own(options);
  std::atomic<int> alone{0};
  Graph graph;
  const NodeId loop = graph.Add({.name = "loop"}, [&](NodeContext& ctx) {
    std::atomic<int> pieces{0};
    ctx.ParallelFor(8, 1, [&](size_t, size_t) { ++pieces; });
    alone += pieces == 1;
  });
  for (int i = 0; i < 3; ++i)
    graph.Order(loop, graph.Add({.name = "long"}, [] {
      for (int k = 0; k < 20000; ++k) asm volatile("");
    }));
  const Plan plan = graph.Compile(own);
  own.SetPolicy(Policy::kCostModel, {.start_step = 0, .stop_step = 2});
  EXPECT_GT(RunUntilDecided(plan), 2);
  EXPECT_EQ(alone, 0);
}

TEST_F(CostModelTest, ExplainsInTextAndDot) {
  const Plan plan = Fan();
  EXPECT_TRUE(Has(Explain(plan).Text(), "nothing was measured"));
  eng.SetPolicy(Policy::kCostModel, {.start_step = 0, .stop_step = 2});
  RunUntilDecided(plan);
  const Explanation told = Explain(plan);
  EXPECT_EQ(told.bound, std::max(told.work / 2, told.critical));
  EXPECT_EQ(told.path.size(), 3u);
  double along = 0;
  for (const uint32_t n : told.path) along += told.nodes[n].cost.nanos;
  EXPECT_DOUBLE_EQ(along, told.critical);
  EXPECT_DOUBLE_EQ(told.nodes[0].rank, told.critical);
  EXPECT_TRUE(Has(told.Text(), "makespan / bound"));
  EXPECT_TRUE(Has(told.Text(), "run as under threaded"));
  EXPECT_TRUE(Has(told.Text(), "part#4"));
  EXPECT_TRUE(Has(told.Dot(), "n0 -> n2"));
  EXPECT_TRUE(Has(told.Dot(), "color=red"));
}

TEST_F(CostModelTest, ExplainsOneTimedRun) {
  const Plan plan = Fan();
  std::vector<NodeTime> times(plan.graph().nodes().size());
  RunOptions timed;
  timed.times = times;
  plan.Start({}, timed).Wait();
  const Explanation told = Explain(plan, 0, times);
  int64_t begin = INT64_MAX, end = 0;
  for (size_t n = 0; n < times.size(); ++n) {
    EXPECT_EQ(told.nodes[n].cost.nanos, static_cast<double>(times[n].end - times[n].begin));
    begin = std::min(begin, times[n].begin);
    end = std::max(end, times[n].end);
  }
  EXPECT_EQ(told.state, State::kNotUsed);
  EXPECT_EQ(told.makespan(), static_cast<double>(end - begin));
  EXPECT_EQ(told.bound, std::max(told.work / 2, told.critical));
  EXPECT_TRUE(Has(told.Text(), "costs of one run"));
}

TEST_F(CostModelTest, ARunOfAnotherPlanExplainsNothing) {
  const std::vector<NodeTime> times(2);
  EXPECT_TRUE(Has(RefusalOf([&] { Explain(Fan(), 0, times); }), "a run of 2 nodes explains no plan of 6"));
}

TEST(ExplanationTest, IsUtf8AndTheSameInEveryLocale) {
  Explanation told;
  Explanation::Node node;
  node.cost = {.key = "a", .nanos = 1'234'567};
  for (int i = 0; i < 25; ++i) node.cost.key += "\xd0\xb6";
  told.nodes.push_back(node);
  told.work = 1;
  const std::string text = told.Text();
  EXPECT_TRUE(Has(text, "\xd0\xb6 ")) << text;
  EXPECT_TRUE(Has(text, "1234.57 us")) << text;
  const OddLocale odd;
  EXPECT_EQ(told.Text(), text);
}

// --- the ranked replay itself

TEST(RankedReplayTest, ReadyNodesComeByRankAndAUsersPriorityComesFirst) {
  Engine eng(Quiet(1));
  Graph graph;
  std::vector<int> order, expected{0, 1, 2, 3, 4, 5, 6, 7};
  Schedule schedule;
  for (int i = 0; i < 8; ++i) {
    graph.Add({.name = "n", .priority = i == 5 ? 1 : 0}, [&order, i] { order.push_back(i); });
    schedule.rank.push_back(i * 3 % 8);
  }
  graph.Compile(eng).With(schedule).Start().Wait();
  std::sort(expected.begin(), expected.end(),
            [](int a, int b) { return (a == 5) != (b == 5) ? a == 5 : a * 3 % 8 > b * 3 % 8; });
  EXPECT_EQ(order, expected);
}

// Many runs at once, waits inside nodes, asynchronous nodes, other placements: nothing is lost, whatever the ranks.
TEST(RankedReplayTest, EveryNodeRunsOnceInEachRun) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed());
  for (const int workers : {0, 1, 2, 4}) {
    EngineOptions options = Quiet(workers);
    options.spin = 20us;
    Engine eng(options);
    Graph graph;
    Schedule schedule;
    constexpr uint32_t kNodes = 120;
    std::vector<std::atomic<int>> ran(kNodes);
    std::vector<std::vector<uint32_t>> before(kNodes);
    for (uint32_t n = 0; n < kNodes; ++n) {
      for (uint64_t k = random.Below(4); n != 0 && k > 0; --k)
        before[n].push_back(static_cast<uint32_t>(random.Below(n)));
      const bool waits = workers > 0 && random.OneIn(15);
      const auto body = [&, n, waits] {
        if (waits) {
          Var own = eng.NewVar("own");
          eng.Push({.name = "nested", .writes = {own}}, [] {});
          eng.Wait(own);
        }
        ran[n].fetch_add(1);
      };
      const NodeDesc desc{.name = "n", .place = random.OneIn(10) ? Io() : Cpu()};
      const NodeId id = random.OneIn(8) ? graph.AddAsync(desc,
                                                         [body](RunContext&, Completion done) {
                                                           body();
                                                           done();
                                                         })
                                        : graph.Add(desc, body);
      for (const uint32_t p : before[n]) graph.Order({p, 0, 0}, id);
      schedule.rank.push_back(static_cast<double>(random.Below(1000)));
    }
    const Plan plan = graph.Compile(eng).With(schedule);
    std::vector<NodeTime> times(kNodes);
    plan.Start({}, {.times = times}).Wait();
    for (uint32_t n = 0; n < kNodes; ++n)
      for (const uint32_t p : before[n]) EXPECT_LE(times[p].end, times[n].begin);
    constexpr int kRuns = kSanitized ? 10 : 40;
    for (int i = 1; i <= kRuns; ++i) {
      plan.Start();
      if (i % 4 == 0 || i == kRuns) eng.WaitAll();  // so that waits inside bodies find stand-ins
    }
    for (uint32_t n = 0; n < kNodes; ++n) EXPECT_EQ(ran[n].load(), kRuns + 1);
  }
}

TEST_F(CostModelTest, CostsOfAnUnnamedNodeAreSavedAndLoaded) {
  const auto path = std::filesystem::temp_directory_path() / "engine_cost_model_unnamed.txt";
  Graph graph;
  graph.Add({}, [] {});
  const Plan plan = graph.Compile(eng);
  eng.SetPolicy(Policy::kCostModel, {.start_step = 0, .stop_step = 3});
  for (int i = 0; i < 3; ++i) plan.Start().Wait();
  plan.cost_model()->Save(path);
  plan.cost_model()->Load(path);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace engine::test
