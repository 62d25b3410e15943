// Contract 3 inside a run: what fails poisons, what needs it is skipped, the rest runs, and the plan may run again.
#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(PlanErrorsTest);

TEST_P(PlanErrorsTest, FailureSkipsWhatNeedsItAndNothingElse) {
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive}) {
    Engine eng(Quiet(workers()));
    Var a = eng.NewVar("a"), b = eng.NewVar("b");
    int independent = 0;
    bool fails = true;
    Graph graph;
    const ValueId x = graph.Input<int>("x");
    const NodeId bad = graph.Add({.name = "bad", .inputs = {x}, .outputs = 1, .updates = {a}}, [&](NodeContext& ctx) {
      if (fails) throw std::runtime_error("broken");
      ctx.Return(0, 1);
    });
    const NodeId mid = graph.Add({.name = "mid", .inputs = {bad[0]}, .outputs = 1, .writes = {b}},
                                 [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + 1); });
    graph.Add({.name = "independent", .inputs = {x}}, [&] { ++independent; });
    graph.Output(mid[0]);
    const Plan plan = graph.Compile(eng);

    Value inputs[] = {1};
    engine::Run run = plan.Start(inputs, {.policy = policy});
    for (int again = 0; again < 2; ++again) {
      const OpError error = ErrorOf([&] { run.Wait(); });
      EXPECT_EQ(error.op(), "bad");
      EXPECT_TRUE(Has(error.what(), "broken"));
      EXPECT_TRUE(Has(error.what(), "errors_test.cc"));
    }
    EXPECT_THROW(run.Output(0), OpError);
    EXPECT_EQ(independent, 1);
    EXPECT_EQ(ErrorOf([&] { eng.Wait(a); }).op(), "bad");
    const OpError passed = ErrorOf([&] { eng.Wait(b); });
    ASSERT_EQ(passed.path().size(), 1u);
    EXPECT_EQ(passed.path()[0].op, "mid");
    run = engine::Run();

    // a is poisoned now, so that the next run is skipped where it updates a, and says where that began.
    Value more[] = {1};
    EXPECT_EQ(ErrorOf([&] { plan.Start(more).Wait(); }).op(), "bad");
    fails = false;
    eng.ClearError(a);
    Value last[] = {1};
    EXPECT_EQ(plan.Start(last).Take<int>(0), 2);
    eng.Wait(b);  // written again: the error is gone
    eng.WaitAll();
  }
}

// The Var that the node poisons shows the error, too; WaitAll does not.
TEST_P(PlanErrorsTest, WhoeverSaidSoShowsTheErrorsOfARun) {
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive}) {
    Engine eng(Quiet(workers()));
    const Var a = eng.NewVar("a");
    Graph graph;
    graph.Add({.name = "bad", .updates = {a}}, [] { throw std::runtime_error("broken"); });
    graph.Add({.name = "also"}, [] { throw std::runtime_error("broken, too"); });
    const Plan plan = graph.Compile(eng);
    engine::Run run = plan.Start({}, {.policy = policy, .shows_errors = true});
    eng.WaitAll();
    EXPECT_EQ(eng.stats().unseen_errors, 0u);
    EXPECT_EQ(ErrorOf([&] { run.Wait(); }).op(), "bad");
    EXPECT_EQ(ErrorOf([&] { eng.Wait(a); }).op(), "bad");
    run = plan.Start({}, {.policy = policy});
    EXPECT_EQ(ErrorOf([&] { eng.WaitAll(); }).op(), "also");  // "bad" is skipped for what it did before
  }
}

TEST_P(PlanErrorsTest, PoisonedBeforeTheRunIsInherited) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  Graph graph;
  Capture capture(graph);
  bool cleaned = false;
  capture.Push({.name = "reader", .reads = {a}, .writes = {b}}, [] { FAIL() << "must be skipped"; });
  capture.Push({.name = "always", .reads = {a}, .updates = {c}, .run_always = true}, [&] { cleaned = true; });
  capture.Push({.name = "writer", .writes = {a}}, [] {});
  const Plan plan = graph.Compile(eng);
  Fail(eng, a, "first");
  engine::Run run = plan.Start();
  const OpError error = ErrorOf([&] { run.Wait(); });
  EXPECT_EQ(error.op(), "fail");
  EXPECT_TRUE(cleaned);
  eng.Wait(a);
  eng.Wait(c);
  EXPECT_THROW(eng.Wait(b), OpError);
}

TEST_P(PlanErrorsTest, TheFirstRecordedFailureIsShown) {
  Engine eng(Quiet(workers()));
  Graph graph;
  for (const char* name : {"one", "two", "three"})
    graph.Add({.name = Name::Intern(name)}, [name] { throw std::runtime_error(name); });
  const Plan plan = graph.Compile(eng);
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive})
    for (int i = 0; i < 5; ++i) EXPECT_EQ(ErrorOf([&] { plan.Start({}, {.policy = policy}).Wait(); }).op(), "one");
}

TEST_P(PlanErrorsTest, ErrorsOfDroppedRunsAreReported) {
  Engine eng(Quiet(workers()));
  Graph graph;
  graph.Add({.name = "bad"}, [] { throw std::runtime_error("broken"); });
  graph.Compile(eng).Start();
  EXPECT_EQ(ErrorOf([&] { eng.WaitAll(); }).op(), "bad");
  eng.WaitAll();
}

TEST_P(PlanErrorsTest, AsynchronousNodesFail) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Graph graph;
  int how = 0;
  graph.AddAsync({.name = "async", .writes = {a}}, [&](NodeContext&, Completion done) {
    if (how == 0) throw std::runtime_error("in the body");
    if (how == 1) done.Fail(std::runtime_error("by its completion"));
    if (how == 2) return;  // dropped
    done();
  });
  const Plan plan = graph.Compile(eng);
  for (const Policy policy : {Policy::kThreaded, Policy::kInline}) {
    const char* texts[] = {"in the body", "by its completion", "dropped"};
    for (how = 0; how < 3; ++how)
      EXPECT_TRUE(Has(ErrorOf([&] { plan.Start({}, {.policy = policy}).Wait(); }).what(), texts[how]));
    plan.Start({}, {.policy = policy}).Wait();
    eng.Wait(a);
  }
}

TEST_P(PlanErrorsTest, NaiveMayRaiseAtTheStart) {
  Engine eng(Quiet(workers()));
  Graph graph;
  graph.Add({.name = "bad"}, [] { throw std::runtime_error("broken"); });
  const Plan plan = graph.Compile(eng);
  const PolicyScope scope = eng.EnterPolicy({Policy::kNaive, {.raise_at_push = true}});
  EXPECT_EQ(ErrorOf([&] { plan.Start(); }).op(), "bad");
}

TEST_P(PlanErrorsTest, AnOpBehindADroppedRunStillSeesItsError) {
  Engine eng(Quiet(workers()));
  bool fails = true;
  Graph graph;
  graph.Add({.name = "bad"}, [&] {
    if (fails) throw std::runtime_error("broken");
  });
  const Plan plan = graph.Compile(eng);
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive}) {
    Var held = eng.NewVar("held"), seen = eng.NewVar("seen");
    HeldOp first = eng.PushHeld({.name = "first", .writes = {held}}, [] {});
    fails = true;
    engine::Run run = plan.Start({}, {.policy = policy});
    eng.Push({.name = "behind", .reads = {run.var(), held}, .writes = {seen}}, [] { FAIL() << "must be skipped"; });
    EXPECT_THROW(run.Wait(), OpError);
    run = engine::Run();
    first.Release();
    EXPECT_EQ(ErrorOf([&] { eng.Wait(seen); }).op(), "bad");
    fails = false;
    plan.Start({}, {.policy = policy}).Wait();  // in a frame that had the error, if a thread has let go of it by now
  }
  eng.WaitAll();
}

// Sanitizers see here whether the error lives as long as somebody looks at it.
TEST_P(PlanErrorsTest, RunsMayGoWhileOpsLookAtTheirErrors) {
  Engine eng(Quiet(workers()));
  Graph graph;
  graph.Add({.name = "bad"}, [] { throw std::runtime_error("broken"); });
  const Plan plan = graph.Compile(eng);
  for (int i = 0; i < 100; ++i) {
    engine::Run run = plan.Start();
    for (int reader = 0; reader < 4; ++reader) eng.Push({.name = "behind", .reads = {run.var()}}, [] {});
    if (i % 2) {
      EXPECT_THROW(run.Wait(), OpError);
    }
  }
  EXPECT_THROW(eng.WaitAll(), OpError);
}

}  // namespace
}  // namespace engine::test
