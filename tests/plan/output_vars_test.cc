// Outputs with Vars of their own: each is there as soon as its node has settled, with its own error, and ops may change it.
#include <stdexcept>

#include "engine/plan.h"
#include "support/engine_test.h"
#include "support/gate.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(OutputVarsTest);

TEST_P(OutputVarsTest, AnOutputIsThereBeforeTheRunHasEnded) {
  if (workers() == 0) GTEST_SKIP() << "without workers a wait runs everything";
  Engine eng(Quiet(workers()));
  Gate gate;
  Graph graph;
  graph.Output(graph.Add({.name = "soon", .outputs = 1}, [](NodeContext& ctx) { ctx.Return(0, 1); })[0]);
  graph.Output(graph.Add({.name = "late", .outputs = 1, .place = Io()}, [&](NodeContext& ctx) {
    gate.Wait();
    ctx.Return(0, 2);
  })[0]);
  const Var outputs[] = {eng.NewVar("soon"), eng.NewVar("late")};
  engine::Run run = graph.Compile(eng).Start({}, {.outputs = outputs});
  eng.Wait(outputs[0]);
  EXPECT_FALSE(run.done());
  EXPECT_EQ(run.Settled(0)->Get<int>(), 1);
  gate.Open();
  eng.Wait(outputs[1]);
  EXPECT_EQ(run.Settled(1)->Get<int>(), 2);
}

TEST_P(OutputVarsTest, VarsThatStandTwiceAreRefused) {
  Engine eng(Quiet(workers())), other(Quiet(0));
  const Var named = eng.NewVar("named"), a = eng.NewVar("a"), b = eng.NewVar("b"), foreign = other.NewVar("foreign");
  Graph graph;
  const ValueId x = graph.Input<int>("x"), y = graph.Input<int>("y");
  const NodeId sum =
      graph.Add({.name = "sum", .inputs = {x, y}, .outputs = 2, .updates = {named}}, [](NodeContext& ctx) {
        ctx.Return(0, ctx.In<int>(0) + ctx.In<int>(1));
        ctx.Return(1, 0);
      });
  graph.Output(sum[0]);
  graph.Output(sum[1]);
  const Plan plan = graph.Compile(eng);
  const auto refusal = [&](std::vector<Var> inputs, std::vector<Var> outputs) {
    Value given[] = {Value(1), Value(2)};
    const std::string text = RefusalOf([&] { plan.Start(given, {.outputs = outputs, .inputs = inputs}); });
    EXPECT_EQ(given[0].Get<int>(), 1);  // they are still the caller's
    return text;
  };
  EXPECT_TRUE(Has(refusal({a, a}, {}), "'a' twice"));
  EXPECT_TRUE(Has(refusal({}, {b, b}), "'b' twice"));
  EXPECT_TRUE(Has(refusal({a, {}}, {b, a}), "'a' twice"));
  EXPECT_TRUE(Has(refusal({a, named}, {}), "'named' twice, or the plan names it"));
  EXPECT_TRUE(Has(refusal({}, {b, named}), "'named' twice"));
  EXPECT_TRUE(Has(refusal({foreign, {}}, {}), "another engine"));
  Value given[] = {Value(1), Value(2)};
  const Var inputs[] = {a, {}}, outputs[] = {b, eng.NewVar("c")};
  plan.Start(given, {.outputs = outputs, .inputs = inputs});
  eng.Wait(b);
}

// Vars that several runs are given are locked in one order, whatever the order in which each run has them.
TEST_P(OutputVarsTest, RunsMayShareVarsInAnyOrder) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c"), d = eng.NewVar("d");
  Graph graph;
  const ValueId x = graph.Input<int>("x"), y = graph.Input<int>("y");
  const NodeId sum = graph.Add({.name = "sum", .inputs = {x, y}, .outputs = 2}, [](NodeContext& ctx) {
    ctx.Return(0, ctx.In<int>(0) + ctx.In<int>(1));
    ctx.Return(1, 0);
  });
  graph.Output(sum[0]);
  graph.Output(sum[1]);
  const Plan plan = graph.Compile(eng);
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        Value given[] = {Value(1), Value(2)};
        const Var inputs[] = {t ? a : b, t ? b : a}, outputs[] = {t ? c : d, t ? d : c};
        plan.Start(given, {.outputs = outputs, .inputs = inputs});
      }
    });
  for (auto& thread : threads) thread.join();
  eng.WaitAll();
  EXPECT_EQ(c.version(), 1000u);
}

TEST_P(OutputVarsTest, AFailedNodeFailsItsOutputAndNoOther) {
  Engine eng(Quiet(workers()));
  for (int i = 0; i < 20; ++i) {
    Graph graph;
    const NodeId bad = graph.Add({.name = "bad", .outputs = 1}, [](NodeContext&) { throw std::domain_error("no"); });
    graph.Output(bad[0]);
    graph.Output(graph.Add({.name = "behind", .inputs = {bad[0]}, .outputs = 1}, [](NodeContext&) {})[0]);
    graph.Output(graph.Add({.name = "good", .outputs = 1}, [](NodeContext& ctx) { ctx.Return(0, 3); })[0]);
    const Var outputs[] = {eng.NewVar(), eng.NewVar(), eng.NewVar()};
    engine::Run run = graph.Compile(eng).Start({}, {.outputs = outputs});
    EXPECT_THROW(eng.Wait(outputs[0]), OpError);
    EXPECT_THROW(eng.Wait(outputs[1]), OpError);
    eng.Wait(outputs[2]);
    EXPECT_EQ(run.Settled(0), nullptr);
    EXPECT_EQ(run.Settled(2)->Get<int>(), 3);
  }
}

TEST_P(OutputVarsTest, AnOpThatChangesAnOutputComesAfterTheNodesThatUseIt) {
  Engine eng(Quiet(workers()));
  for (int i = 0; i < 50; ++i) {
    Graph graph;
    const NodeId made = graph.Add({.name = "make", .outputs = 1}, [](NodeContext& ctx) { ctx.Return(0, 1); });
    const NodeId used = graph.Add({.name = "use", .inputs = {made[0]}, .outputs = 1, .place = Io()},
                                  [](NodeContext& ctx) { ctx.Return(0, 10 * ctx.In<int>(0)); });
    graph.Output(made[0]);
    graph.Output(used[0]);
    const Var outputs[] = {eng.NewVar("made"), eng.NewVar("used")};
    engine::Run run = graph.Compile(eng).Start({}, {.outputs = outputs});
    eng.Push({.name = "change", .updates = outputs[0]}, [&] { ++run.Settled(0)->Get<int>(); });
    eng.Wait(outputs[0]);
    eng.Wait(outputs[1]);
    EXPECT_EQ(run.Settled(0)->Get<int>(), 2);
    EXPECT_EQ(run.Settled(1)->Get<int>(), 10);
  }
}

TEST_P(OutputVarsTest, AnInputIsAwaitedAndItsErrorSkipsWhatUsesIt) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const ValueId x = graph.Input("x"), y = graph.Input("y");
  graph.Output(graph.Add({.name = "twice", .inputs = {x}, .outputs = 1},
                         [](NodeContext& ctx) { ctx.Return(0, 2 * *ctx.In<int*>(0)); })[0]);
  graph.Output(graph.Add({.name = "same", .inputs = {y}, .outputs = 1},
                         [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0)); })[0]);
  const Plan plan = graph.Compile(eng);
  for (const bool fails : {false, true}) {
    int made = 0;
    const Var ready[] = {eng.NewVar("x"), Var()}, outputs[] = {eng.NewVar(), eng.NewVar()};
    eng.Push({.name = "make", .writes = ready[0]}, [&] {
      if (fails) throw std::domain_error("no");
      made = 21;
    });
    Value inputs[] = {&made, 5};
    engine::Run run = plan.Start(inputs, {.outputs = outputs, .inputs = ready});
    if (fails) {
      EXPECT_THROW(eng.Wait(outputs[0]), OpError);
    } else {
      eng.Wait(outputs[0]);
      EXPECT_EQ(run.Settled(0)->Get<int>(), 42);
    }
    eng.Wait(outputs[1]);
    EXPECT_EQ(run.Settled(1)->Get<int>(), 5);
  }
}

TEST_P(OutputVarsTest, AsManyVarsAsOutputsAreExpected) {
  Engine eng(Quiet(workers()));
  Graph graph;
  graph.Output(graph.Add({.name = "make", .outputs = 1}, [](NodeContext& ctx) { ctx.Return(0, 1); })[0]);
  const Plan plan = graph.Compile(eng);
  const Var two[] = {eng.NewVar(), eng.NewVar()}, none[] = {Var()};
  EXPECT_THROW(plan.Start({}, {.outputs = two}), UsageError);
  EXPECT_THROW(plan.Start({}, {.outputs = none}), UsageError);
}

}  // namespace
}  // namespace engine::test
