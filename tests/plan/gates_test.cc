// Runs that start although some of their Vars are not free: each node waits for its own Vars, and all that a run promises
// besides stays (src/engine/graph/gates.h). How such runs end: gated_ends_test.cc.
#include "engine/policy.h"
#include "support/random.h"
#include "two_nodes.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(GatesTest);

TEST_P(GatesTest, ANodeWhoseVarIsFreeRunsWhileAnotherIsHeld) {
  Engine eng(Quiet(workers()));
  Two two(eng);
  for (int i = 1; i <= 20; ++i) {
    HeldOp held = HoldWrite(eng, two.b);
    engine::Run run = two.plan.Start();
    eng.Wait(two.a);  // which the run has given back
    EXPECT_EQ(two.ran_free, i);
    EXPECT_EQ(two.ran_late, i - 1);
    EXPECT_FALSE(run.done());
    held.Release();
    run.Wait();
    EXPECT_EQ(two.ran_late, i);
  }
}

TEST_P(GatesTest, ATaskStopsInFrontOfTheNodeThatMustWait) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  std::vector<int> seen;
  Graph graph;
  const NodeId first = graph.Add({.name = "first", .outputs = 1, .updates = {a}}, [&](NodeContext& ctx) {
    seen.push_back(1);
    ctx.Return(0, 1);
  });
  const NodeId second =
      graph.Add({.name = "second", .inputs = {first[0]}, .outputs = 1, .reads = {b}}, [&](NodeContext& ctx) {
        seen.push_back(2);
        ctx.Return(0, ctx.In<int>(0) + 1);
      });
  graph.Output(graph.Add({.name = "third", .inputs = {second[0]}, .outputs = 1, .writes = {c}}, [&](NodeContext& ctx) {
    seen.push_back(3);
    ctx.Return(0, ctx.In<int>(0) + 1);
  })[0]);
  const Plan plan = graph.Compile(eng);
  ASSERT_EQ(plan.tasks().size(), 1u);
  HeldOp on_b = HoldWrite(eng, b), on_c = HoldWrite(eng, c);
  engine::Run run = plan.Start();
  eng.Wait(a);
  EXPECT_EQ(seen, (std::vector<int>{1}));
  on_c.Release();
  EXPECT_FALSE(run.done());
  EXPECT_EQ(seen, (std::vector<int>{1}));
  on_b.Release();
  EXPECT_EQ(run.Take<int>(0), 3);
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
}

// Readers between writes, as ops are.
TEST_P(GatesTest, RunsThatReadALateVarStartTogether) {
  if (workers() < 2) GTEST_SKIP() << "two nodes have to run at once";
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Counter met;
  Graph graph;
  graph.Add({.name = "free", .reads = {a}}, [] {});
  graph.Add({.name = "late", .reads = {b}}, [&] {
    met.Add();
    met.WaitFor(2);
  });
  const Plan plan = graph.Compile(eng);
  HeldOp held = HoldWrite(eng, b);
  engine::Run one = plan.Start(), two = plan.Start();
  held.Release();
  one.Wait();
  two.Wait();
  EXPECT_EQ(met.count(), 2);
}

TEST_P(GatesTest, VersionsAreThoseOfOneOp) {
  Engine eng(Quiet(workers()));
  Two two(eng);
  for (uint64_t i = 1; i <= 5; ++i) {
    HeldOp held = HoldWrite(eng, two.b);
    engine::Run run = two.plan.Start();
    eng.Push({.name = "behind", .updates = {two.a, two.b}}, [&](RunContext& ctx) {
      EXPECT_EQ(ctx.version(two.a), 2 * i);
      EXPECT_EQ(ctx.version(two.b), 3 * i);
    });
    held.Release();
    eng.WaitAll();
    EXPECT_EQ(two.version_of_a, 2 * i - 1);
    EXPECT_EQ(two.version_of_b, 3 * i - 1);
    EXPECT_EQ(two.a.version(), 2 * i);
    EXPECT_EQ(two.b.version(), 3 * i);
  }
}

// Two plans with the same Vars in opposite order, started by two threads while now one Var and now the other is not free.
TEST_P(GatesTest, RunsInOppositeDirectionsAreOrderedOneWay) {
  if (workers() == 0) GTEST_SKIP() << "two threads would run nodes of one run at once";
  Engine eng(Quiet(workers()));
  const Var x = eng.NewVar("x"), y = eng.NewVar("y");
  std::vector<int> on_x, on_y;  // guarded by x and y
  Graph forth, back;
  const ValueId number = forth.Input<int>("number"), same = back.Input<int>("number");
  const auto note = [](std::vector<int>& list) {
    return [&list](NodeContext& ctx) { list.push_back(ctx.In<int>(0)); };
  };
  forth.Add({.name = "x", .inputs = {number}, .updates = {x}}, note(on_x));
  forth.Add({.name = "y", .inputs = {number}, .updates = {y}}, note(on_y));
  back.Add({.name = "y", .inputs = {same}, .updates = {y}}, note(on_y));
  back.Add({.name = "x", .inputs = {same}, .updates = {x}}, note(on_x));
  const Plan plans[] = {forth.Compile(eng), back.Compile(eng)};
  constexpr int kRuns = 400;
  const auto start = [&](int which) {
    Random random(static_cast<uint64_t>(which) + 7);
    for (int i = 0; i < kRuns; ++i) {
      if (random.OneIn(3))
        eng.Push({.name = "hold", .updates = {random.OneIn(2) ? x : y}}, [] { std::this_thread::yield(); });
      Value inputs[] = {2 * i + which};
      engine::Run run = plans[which].Start(inputs);
      if (random.OneIn(8)) run.Wait();
    }
  };
  std::thread other([&] { start(1); });
  start(0);
  other.join();
  eng.WaitAll();
  ASSERT_EQ(on_x.size(), 2u * kRuns);
  EXPECT_EQ(on_x, on_y);
}

TEST_P(GatesTest, ALateInputHoldsOnlyWhatTakesIt) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const ValueId x = graph.Input("x"), unused = graph.Input("unused");
  const NodeId soon = graph.Add({.name = "soon", .outputs = 1}, [](NodeContext& ctx) { ctx.Return(0, 1); });
  const NodeId late = graph.Add({.name = "late", .inputs = {x}, .outputs = 1},
                                [](NodeContext& ctx) { ctx.Return(0, 2 * *ctx.In<int*>(0)); });
  graph.Output(soon[0]);
  graph.Output(late[0]);
  static_cast<void>(unused);
  const Plan plan = graph.Compile(eng);
  for (const bool unused_is_last : {false, true}) {
    int made = 0;
    const Var inputs[] = {eng.NewVar("x"), eng.NewVar("unused")}, outputs[] = {eng.NewVar(), eng.NewVar()};
    HeldOp held = eng.PushHeld({.name = "make", .writes = {inputs[0]}}, [&] { made = 21; });
    HeldOp other = HoldWrite(eng, inputs[1]);
    Value values[] = {&made, 0};
    engine::Run run = plan.Start(values, {.outputs = outputs, .inputs = inputs});
    eng.Wait(outputs[0]);
    EXPECT_EQ(run.Settled(0)->Get<int>(), 1);
    EXPECT_FALSE(Done(eng, outputs[1]));
    (unused_is_last ? held : other).Release();
    if (unused_is_last) eng.Wait(outputs[1]);
    EXPECT_FALSE(run.done());  // it ends behind all its inputs
    (unused_is_last ? other : held).Release();
    run.Wait();
    EXPECT_EQ(run.Settled(1)->Get<int>(), 42);
    eng.WaitToWrite(inputs[0]);
    eng.WaitToWrite(inputs[1]);
  }
}

TEST_P(GatesTest, OtherPlacementsAndAsynchronousNodesWaitForTheirVars) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  std::atomic<int> ran{0};
  Graph graph;
  graph.Add({.name = "free", .updates = {a}, .place = Io()}, [&] { ran += 1; });
  graph.AddAsync({.name = "async", .updates = {b}}, [&](NodeContext&, Completion done) {
    ran += 10;
    done();
  });
  graph.Add({.name = "io", .updates = {c}, .place = Io()}, [&] { ran += 100; });
  graph.Add({.name = "both", .reads = {b, c}}, [&] { ran += 1000; });
  const Plan plan = graph.Compile(eng);
  for (int i = 0; i < 20; ++i) {
    ran = 0;
    HeldOp on_b = HoldWrite(eng, b), on_c = HoldWrite(eng, c);
    engine::Run run = plan.Start();
    eng.Wait(a);
    EXPECT_EQ(ran, 1);
    (i % 2 ? on_b : on_c).Release();
    (i % 2 ? on_c : on_b).Release();
    run.Wait();
    EXPECT_EQ(ran, 1111);
  }
}

// To statistics, reports and bounds the run is one op.
TEST_P(GatesTest, AGateIsNoOp) {
  EngineOptions options = Quiet(workers());
  options.max_pending = 8;
  Engine eng(options);
  std::vector<Var> held_vars;
  std::vector<HeldOp> held;
  Graph graph;
  const Var a = eng.NewVar("a");
  graph.Add({.name = "free", .reads = {a}}, [] {});
  for (int i = 0; i < 4; ++i) {
    held_vars.push_back(eng.NewVar("held"));
    graph.Add({.name = "late", .updates = {held_vars.back()}}, [] {});
  }
  const Plan plan = graph.Compile(eng, {.name = "many gates"});
  for (const Var& var : held_vars) held.push_back(HoldWrite(eng, var));
  const uint64_t pushed = eng.stats().pushed;
  std::vector<engine::Run> runs;
  for (int i = 0; i < 4; ++i) {
    runs.push_back(plan.TryStart());
    ASSERT_TRUE(runs.back()) << i;  // 5 to 8 ops are pending, and 4 to 16 gates
  }
  EXPECT_EQ(eng.stats().pushed, pushed + 4);
  const std::string pending = eng.DescribePending();
  EXPECT_TRUE(Has(pending, "8 ops are pending"));
  EXPECT_TRUE(Has(pending, "'held' ("));
  EXPECT_TRUE(Has(pending, ", 'many gates' ("));
  for (HeldOp& op : held) op.Release();
  for (engine::Run& run : runs) run.Wait();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().completed, eng.stats().pushed);
}

// And not the node that ran before.
TEST_P(GatesTest, AReportNamesThePlanThatWaits) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  Graph graph;  // a free node on each side of the late one, so that one of them ends last, in whatever order they run
  graph.Add({.name = "left", .updates = {a}}, [] {});
  graph.Add({.name = "late", .updates = {b}}, [] {});
  graph.Add({.name = "right", .updates = {c}}, [] {});
  const Plan plan = graph.Compile(eng, {.name = "two"});
  HeldOp held = HoldWrite(eng, b);
  engine::Run run = plan.Start();
  eng.Wait(a);
  eng.Wait(c);
  std::string told;
  do {
    std::this_thread::yield();
    told = eng.DescribePending();
  } while (!Has(told, "op 'two'") || Has(told, "op 'left'") || Has(told, "op 'right'"));
  held.Release();
  run.Wait();
}

TEST_P(GatesTest, InOrderPoliciesWaitForAllVars) {
  Engine eng(Quiet(workers()));
  Two two(eng);
  HeldOp held = HoldWrite(eng, two.b);
  engine::Run run = two.plan.Start({}, {.policy = Policy::kInline});
  EXPECT_FALSE(run.WaitFor(0ns));
  EXPECT_EQ(two.ran_free, 0);
  held.Release();
  run.Wait();
  EXPECT_EQ(two.ran_free + two.ran_late, 2);
}

// If nothing could start before all Vars are there, the run is one op that waits.
TEST_P(GatesTest, AreMadeOnlyWhereSomeNodeCouldStart) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Graph graph;
  graph.Add({.name = "first", .reads = {a}}, [] {});
  graph.Add({.name = "second", .reads = {a}, .updates = {b}}, [] {});
  const Plan plan = graph.Compile(eng, {.name = "all wait"});
  HeldOp held = HoldWrite(eng, a);
  engine::Run run = plan.Start();
  const std::string pending = eng.DescribePending();
  EXPECT_EQ(pending.find("op 'all wait'"), pending.npos) << pending;  // nobody has begun it
  EXPECT_TRUE(Has(pending, "awaited by 'all wait'"));
  held.Release();
  run.Wait();
}

TEST_P(GatesTest, FramesAreUsedAgain) {
  const EngineOptions options = Quiet(workers());
  Engine eng(options);
  Two two(eng);
  for (int i = 0; i < 30; ++i) {
    HeldOp on_a = i % 2 ? HoldWrite(eng, two.a) : HeldOp(), on_b = i % 3 ? HoldWrite(eng, two.b) : HeldOp();
    two.plan.Start();
    on_b.Release();
    on_a.Release();
    eng.WaitAll();
    EXPECT_EQ(two.ran_free, i + 1);
    EXPECT_EQ(two.ran_late, i + 1);
  }
  // A thread lets go of a frame a moment after the run has ended.
  EXPECT_LE(two.plan.frames(), 1u + options.workers + options.io_threads);
}

TEST_P(GatesTest, ATraceNamesNodesAndNoGates) {
  Engine eng(Quiet(workers()));
  Two two(eng);
  eng.StartTrace();
  HeldOp held = HoldWrite(eng, two.b);
  engine::Run run = two.plan.Start();
  eng.Wait(two.a);
  held.Release();
  run.Wait();
  eng.WaitAll();
  std::vector<std::string> names;
  for (const TraceEvent& event : eng.StopTrace().events) names.push_back(event.name);
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"free", "held", "late"}));
}

// The node that waits has its run's priority when its Var comes.
TEST_P(GatesTest, ALateNodeKeepsThePriorityOfItsRun) {
  if (workers() != 1) GTEST_SKIP() << "one worker takes one op after the other";
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::vector<std::string> seen;
  Graph graph;
  graph.Add({.name = "free", .updates = {a}}, [] {});
  graph.Add({.name = "late", .updates = {b}}, [&] { seen.push_back("late"); });
  const Plan plan = graph.Compile(eng);
  Gate begun, gate;
  HeldOp held = eng.PushHeld({.name = "held", .writes = {b}, .priority = 2}, [] {});
  engine::Run run = plan.Start({}, {.priority = 2});
  eng.WaitToWrite(a);
  eng.Push({.name = "blocks", .priority = 2}, [&] {
    begun.Open();
    gate.Wait();
  });
  begun.Wait();
  eng.Push({.name = "usual"}, [&] { seen.push_back("usual"); });
  eng.Push({.name = "releases", .priority = 2}, [&] { held.Release(); });
  gate.Open();
  eng.WaitAll();
  run.Wait();
  EXPECT_EQ(seen, (std::vector<std::string>{"late", "usual"}));
}

}  // namespace
}  // namespace engine::test
