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
