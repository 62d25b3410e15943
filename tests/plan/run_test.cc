// Runs of plans: values, Vars, overlapping runs, asynchronous nodes, other placements, nested plans, cancels, deadlines.
#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(RunTest);

NodeId AddSum(Graph& graph, ValueId a, ValueId b) {
  return graph.Add({.name = "sum", .inputs = {a, b}, .outputs = 1},
                   [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + ctx.In<int>(1)); });
}

TEST_P(RunTest, ValuesFlowFromInputsToOutputs) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const ValueId x = graph.Input<int>("x"), y = graph.Input<int>("y");
  const NodeId sum = AddSum(graph, x, y), twice = AddSum(graph, sum[0], sum[0]);
  graph.Output(twice[0]);
  graph.Output(x);
  const Plan plan = graph.Compile(eng);
  for (int i = 0; i < 20; ++i) {
    Value inputs[] = {i, 100};
    engine::Run run = plan.Start(inputs);
    EXPECT_EQ(run.Take<int>(0), 2 * (i + 100));
    EXPECT_EQ(run.Output<int>(1), i);
  }
}

TEST_P(RunTest, EmptyGraphRuns) {
  Engine eng(Quiet(workers()));
  const Plan plan = Graph().Compile(eng);
  plan.Start().Wait();
  engine::Run run = plan.Start();
  run.Wait();
  EXPECT_TRUE(run.done());
}

// 1: with several pushers the accesses of a run on few Vars were sorted anew, and its end took one of them for its own Var.
TEST_P(RunTest, AFailedRunPoisonsItsOwnVarAndNoOther) {
  Engine eng(Quiet(workers()));
  std::thread([&] { eng.Push({.name = "another pusher"}, [] {}); }).join();
  for (int i = 0; i < 20; ++i) {
    // The run's own Var is made when it starts: behind the table, or in the place of one that is gone.
    Var gone = i % 2 ? eng.NewVar("gone") : Var();
    const Var table = eng.NewVar("table");
    gone = Var();
    Graph graph;
    graph.Add({.name = "look up", .reads = {table}}, [] { throw std::domain_error("bad row"); });
    engine::Run run = graph.Compile(eng).Start();
    EXPECT_THROW(run.Wait(), OpError);
    eng.Wait(table);
  }
}

TEST_P(RunTest, RunsTakeTheirPlaceInTheOrderOfTheirVars) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::vector<int> on_a, on_b;  // guarded by a and b
  Graph graph;
  Capture capture(graph);
  capture.Push({.name = "first", .updates = {a}}, [&] { on_a.push_back(1); });
  capture.Push({.name = "second", .reads = {a}, .writes = {b}}, [&] { on_b.push_back(2); });
  const Plan plan = graph.Compile(eng);
  EXPECT_TRUE(on_a.empty() && on_b.empty());  // recorded, not run
  HeldOp held = HoldWrite(eng, a);
  engine::Run one = plan.Start();
  eng.Push({.updates = {b}}, [&] { on_b.push_back(3); });
  engine::Run two = plan.Start();
  EXPECT_FALSE(one.WaitFor(0ns));
  held.Release();
  two.Wait();
  eng.WaitAll();
  EXPECT_EQ(on_a, (std::vector<int>{1, 1}));
  EXPECT_EQ(on_b, (std::vector<int>{2, 3, 2}));
  EXPECT_EQ(a.version(), 3u);  // the held op, and one a run
}

TEST_P(RunTest, ReleasesEachVarAfterItsLastNode) {
  if (workers() < 2) GTEST_SKIP() << "the second op needs a worker while a node of the first blocks one";
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Gate gate;
  Graph graph;
  Capture capture(graph);
  capture.Push({.name = "early", .updates = {a}}, [] {});
  capture.Push({.name = "late", .updates = {b}, .place = Io()}, [&] { gate.Wait(); });
  graph.Order({0, 0, 0}, {1, 0, 0});
  const Plan plan = graph.Compile(eng);
  engine::Run run = plan.Start();
  eng.Wait(a);  // although the run still holds b
  EXPECT_FALSE(run.done());
  gate.Open();
  run.Wait();
}

TEST_P(RunTest, IndependentRunsOverlap) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const ValueId x = graph.Input("counter");
  // A node that ends when the other run has come this far, too.
  graph.AddAsync({.name = "meet", .inputs = {x}, .place = Io()}, [](NodeContext& ctx, Completion done) {
    auto* counter = ctx.In<Counter*>(0);
    counter->Add();
    counter->WaitFor(2);
    done();
  });
  const Plan plan = graph.Compile(eng);
  Counter counter;
  Value first[] = {&counter}, second[] = {&counter};
  engine::Run one = plan.Start(first), two = plan.Start(second);
  one.Wait();
  two.Wait();
  EXPECT_EQ(plan.frames(), 2u);
}

TEST_P(RunTest, ValuesGoAfterTheirLastUse) {
  Engine eng(Quiet(workers()));
  std::weak_ptr<int> made;
  bool alive_in_user = false, alive_afterwards = true;
  Graph graph;
  const NodeId make = graph.Add({.name = "make", .outputs = 1}, [&](NodeContext& ctx) {
    auto object = std::make_shared<int>(7);
    made = object;
    ctx.Return(0, std::move(object));
  });
  const NodeId use = graph.Add({.name = "use", .inputs = {make[0]}}, [&] { alive_in_user = !made.expired(); });
  const NodeId also = graph.Add({.name = "use too", .inputs = {make[0]}}, [] {});
  const NodeId after = graph.Add({.name = "after"}, [&] { alive_afterwards = !made.expired(); });
  graph.Order(use, after);
  graph.Order(also, after);
  const Plan plan = graph.Compile(eng);
  for (int i = 0; i < 3; ++i) {
    plan.Start().Wait();
    EXPECT_TRUE(alive_in_user);
    EXPECT_FALSE(alive_afterwards);
  }
}

TEST_P(RunTest, TheOnlyUserMayTakeAValue) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const ValueId x = graph.Input<std::unique_ptr<int>>("x");
  const NodeId take = graph.Add({.name = "take", .inputs = {x}, .outputs = 1},
                                [](NodeContext& ctx) { ctx.Return(0, ctx.Take<std::unique_ptr<int>>(0)); });
  graph.Output(take[0]);
  const Plan plan = graph.Compile(eng);
  Value inputs[] = {std::make_unique<int>(5)};
  EXPECT_EQ(*plan.Start(inputs).Take<std::unique_ptr<int>>(0), 5);
}

TEST_P(RunTest, StaticAllocKeepsAddresses) {
  Engine eng(Quiet(workers()));
  using Buffer = std::vector<double>;
  Graph graph;
  const NodeId fill =
      graph.Add({.name = "fill", .outputs = 1}, [](NodeContext& ctx) { ctx.Reuse<Buffer>(0).assign(1000, 1.0); });
  const NodeId sum = graph.Add({.name = "address", .inputs = {fill[0]}, .outputs = 1}, [](NodeContext& ctx) {
    ctx.Return(0, static_cast<const void*>(ctx.In<Buffer>(0).data()));
  });
  graph.Output(sum[0]);
  const Plan plan = graph.Compile(eng, {.static_alloc = true});
  const void* first = plan.Start().Output<const void*>(0);
  for (int i = 0; i < 5; ++i) {
    eng.WaitAll();  // a worker gives the frame back a moment after the run's end, and another run would have another frame
    EXPECT_EQ(plan.Start().Output<const void*>(0), first);
  }
}

TEST_P(RunTest, AsynchronousNodesEndByTheirCompletion) {
  Engine eng(Quiet(workers()));
  Graph graph;
  Slot<Completion> slot;
  std::atomic<int> independent{0};
  const NodeId fetch = graph.AddAsync({.name = "fetch", .outputs = 1}, [&](NodeContext& ctx, Completion done) {
    ctx.Return(0, 41);
    slot.Put(std::move(done));
  });
  graph.Add({.name = "independent"}, [&] { ++independent; });
  const NodeId next = graph.Add({.name = "next", .inputs = {fetch[0]}, .outputs = 1},
                                [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + 1); });
  graph.Output(next[0]);
  const Plan plan = graph.Compile(eng);
  for (int i = 0; i < 10; ++i) {
    engine::Run run = plan.Start();
    std::thread completer([&] { slot.Take()(); });
    EXPECT_EQ(run.Take<int>(0), 42);
    completer.join();
    EXPECT_EQ(independent, i + 1);
  }
}

TEST_P(RunTest, NodesKeepTheirPlacement) {
  EngineOptions options = Quiet(workers());
  options.pools = {{.name = "side"}};
  Engine eng(options);
  std::string side, io;
  Graph graph;
  const auto thread_name = [] {
    char name[16];
    pthread_getname_np(pthread_self(), name, sizeof(name));
    return std::string(name);
  };
  const NodeId one = graph.Add({.name = "a"}, [] {});
  const NodeId two = graph.Add({.name = "b", .place = eng.Pool("side")}, [&] { side = thread_name(); });
  const NodeId three = graph.Add({.name = "c", .place = Io()}, [&] { io = thread_name(); });
  const NodeId four = graph.Add({.name = "d"}, [] {});
  graph.Order(one, two);
  graph.Order(two, three);
  graph.Order(three, four);
  const Plan plan = graph.Compile(eng);
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive}) {
    side.clear(), io.clear();
    plan.Start({}, {.policy = policy}).Wait();
    EXPECT_TRUE(Has(side, "side/0"));
    EXPECT_TRUE(Has(io, "io/"));
  }
}

TEST_P(RunTest, GraphsNest) {
  Engine eng(Quiet(workers()));
  Graph inner;
  const ValueId x = inner.Input<int>("x");
  inner.Output(AddSum(inner, x, x)[0]);
  const Plan plan = inner.Compile(eng);
  Graph outer;
  const ValueId y = outer.Input<int>("y");
  const ValueId once = outer.AddGraph(plan.graph(), std::vector{y})[0];
  outer.Output(outer.AddGraph(plan.graph(), std::vector{once})[0]);
  Value inputs[] = {3};
  EXPECT_EQ(outer.Compile(eng).Start(inputs).Take<int>(0), 12);
}

TEST_P(RunTest, NodesMayRunOtherPlans) {
  Engine eng(Quiet(workers()));
  if (workers() == 0) GTEST_SKIP() << "a wait inside an op needs another thread that drives";
  Graph inner;
  const ValueId x = inner.Input<int>("x");
  inner.Output(AddSum(inner, x, x)[0]);
  const Plan plan = inner.Compile(eng);
  Graph outer;
  std::vector<NodeId> parts;
  std::atomic<int> sum{0};
  for (int i = 0; i < 20; ++i)
    outer.Add({.name = "outer"}, [&, i] {
      Value inputs[] = {i};
      sum += plan.Start(inputs).Take<int>(0);
    });
  outer.Compile(eng).Start().Wait();
  EXPECT_EQ(sum, 2 * 190);
}

TEST_P(RunTest, CancelSkipsWhatHasNotBegun) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  CancelScope scope;
  Graph graph;
  int ran = 0;
  Capture capture(graph);
  capture.Push({.name = "first", .updates = {a}}, [&] {
    ++ran;
    scope.Cancel();
  });
  capture.Push({.name = "second", .updates = {a}}, [&] { ++ran; });
  const Plan plan = graph.Compile(eng);
  for (const Policy policy : {Policy::kThreaded, Policy::kInline}) {
    scope = CancelScope();
    ran = 0;
    engine::Run run = plan.Start({}, {.policy = policy, .cancel = &scope});
    const OpError error = ErrorOf([&] { run.Wait(); });
    EXPECT_EQ(error.op(), "second");
    EXPECT_TRUE(CausedBy<CancelledError>(error));
    EXPECT_EQ(ran, 1);
    EXPECT_THROW(eng.Wait(a), OpError);
    eng.ClearError(a);
  }
  eng.WaitAll();  // a cancel that was asked for is nobody's news
  plan.Start().WaitFor(1h);
}

TEST_P(RunTest, DeadlineSkipsWhatComesTooLate) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Graph graph;
  Capture(graph).Push({.name = "late", .updates = {a}}, [] { FAIL() << "must be skipped"; });
  const Plan plan = graph.Compile(eng);
  engine::Run run = plan.Start({}, {.deadline = std::chrono::steady_clock::now()});
  EXPECT_TRUE(CausedBy<DeadlineError>(ErrorOf([&] { run.Wait(); })));
}

TEST_P(RunTest, DroppedRunsGoOnAndFramesAreUsedAgain) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  int ran = 0;
  Graph graph;
  Capture(graph).Push({.updates = {a}}, [&] { ++ran; });
  {
    const Plan plan = graph.Compile(eng);
    for (int i = 0; i < 50; ++i) plan.Start();
    eng.WaitAll();
    for (int i = 0; i < 50; ++i) plan.Start().Wait();
    EXPECT_LE(plan.frames(), 50u);
    plan.Start();
  }
  eng.WaitAll();  // the plan's handle has gone, its run has not
  EXPECT_EQ(ran, 101);
}

TEST_P(RunTest, WideGraphsAreSharedAndEveryNodeRunsOnce) {
  Engine eng(Quiet(workers()));
  constexpr int kNodes = 2000;
  std::vector<std::atomic<int>> ran(kNodes);
  Graph graph;
  const NodeId source = graph.Add({.name = "source"}, [] {});
  const NodeId sink = graph.Add({.name = "sink"}, [] {});
  for (int i = 0; i < kNodes; ++i) {
    const NodeId node = graph.Add({.name = "node"}, [&ran, i] {
      for (int k = 0; k < 200; ++k) ran[static_cast<size_t>(i)].fetch_add(k == 0, std::memory_order_relaxed);
    });
    graph.Order(source, node);
    graph.Order(node, sink);
  }
  const Plan plan = graph.Compile(eng);
  for (int run = 1; run <= 20; ++run) {
    plan.Start().Wait();
    for (const auto& n : ran) ASSERT_EQ(n, run);
  }
}

TEST_P(RunTest, TimesOfEachNode) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const NodeId a = graph.Add({.name = "a"}, [] {});
  const NodeId b = graph.Add({.name = "b"}, [] { throw 1; });
  const NodeId c = graph.Add({.name = "c", .outputs = 0}, [] {});
  graph.Order(a, b);
  graph.Order(b, c);
  std::vector<NodeTime> times(3);
  engine::Run run = graph.Compile(eng).Start({}, {.times = times});
  EXPECT_THROW(run.Wait(), OpError);
  EXPECT_GT(times[0].begin, 0);
  EXPECT_LE(times[0].begin, times[0].end);
  EXPECT_LE(times[0].end, times[1].begin);
  EXPECT_LE(times[1].end, times[2].begin);  // an order is no input: c runs although b failed
}

TEST_P(RunTest, ManyVars) {
  Engine eng(Quiet(workers()));
  std::vector<Var> vars;
  for (int i = 0; i < 200; ++i) vars.push_back(eng.NewVar());
  std::vector<int> x(200);
  Graph graph;
  Capture capture(graph);
  for (size_t i = 0; i < 200; ++i) capture.Push({.updates = {vars[i]}}, [&x, i] { ++x[i]; });
  const Plan plan = graph.Compile(eng);
  for (int i = 0; i < 10; ++i) plan.Start();
  eng.WaitAll();
  EXPECT_EQ(x, std::vector<int>(200, 10));
}

}  // namespace
}  // namespace engine::test
