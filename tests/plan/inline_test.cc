// The policy inline on plans: one thread, whatever the nodes are; many threads at once.
#include <algorithm>
#include <set>

#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(InlineTest);

TEST_P(InlineTest, EveryNodeRunsOnTheCallingThreadAlsoAfterAsynchronousOnes) {
  Engine eng(Quiet(workers()));
  Graph graph;
  std::vector<std::thread::id> threads;
  std::thread completer;
  const auto note = [&] { threads.push_back(std::this_thread::get_id()); };
  const NodeId a = graph.Add({.name = "a"}, note);
  const NodeId b = graph.AddAsync({.name = "b"}, [&](NodeContext&, Completion done) {
    note();
    completer = std::thread([done]() mutable { done(); });
  });
  const NodeId c = graph.Add({.name = "c"}, note);
  const NodeId d = graph.Add({.name = "d"}, [&] {
    note();
    completer.join();
  });
  graph.Order(a, b);
  graph.Order(b, d);
  graph.Order(c, d);
  const Plan plan = graph.Compile(eng);
  for (int i = 0; i < 5; ++i) {
    threads.clear();
    engine::Run run = plan.Start({}, {.policy = Policy::kInline});
    EXPECT_TRUE(run.done());  // nothing held it up, so it ran inside the call
    EXPECT_EQ(threads, std::vector<std::thread::id>(4, std::this_thread::get_id()));
  }
}

// The node has completed, and its body runs on in another placement. The run and its plan wait for it; what comes behind does not.
TEST_P(InlineTest, ABodyMayGoOnWhenItsNodeHasCompleted) {
  Engine eng(Quiet(workers()));
  const Var other = eng.NewVar("other");
  for (int i = 0; i < 20; ++i) {
    std::atomic<bool> behind{false};
    std::atomic<int> seen{0};
    {
      Graph graph;
      const NodeId async = graph.AddAsync({.name = "async", .place = Io()}, [&](NodeContext& ctx, Completion done) {
        done();
        while (!behind) std::this_thread::yield();
        for (int k = 0; k < 10; ++k) {
          eng.Push({.updates = {other}}, [] {});
          eng.Wait(other);  // asks which Vars the op that waits names
          seen += std::string_view(ctx.name()) == "async";
        }
      });
      graph.Order(async, graph.Add({.name = "behind"}, [&] { behind = true; }));
      graph.Compile(eng).Start({}, {.policy = Policy::kInline});
    }
    eng.WaitAll();
    EXPECT_EQ(seen, 10);
  }
}

TEST_P(InlineTest, ARunThatMustWaitIsRunByTheWaiter) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::thread::id ran;
  Graph graph;
  Capture(graph).Push({.updates = {a}}, [&] { ran = std::this_thread::get_id(); });
  const Plan plan = graph.Compile(eng);
  HeldOp held = HoldWrite(eng, a);
  engine::Run run = plan.Start({}, {.policy = Policy::kInline});
  EXPECT_FALSE(run.done());
  std::thread([&] { held.Release(); }).join();
  run.Wait();
  EXPECT_EQ(ran, std::this_thread::get_id());
}

TEST_P(InlineTest, ManyThreadsRunOnePlanEachOnItsOwn) {
  Engine eng(Quiet(workers()));
  Var weights = eng.NewVar("weights");
  Graph graph;
  const ValueId x = graph.Input<int>("x");
  ValueId value = x;
  for (int i = 0; i < 30; ++i)
    value = graph.Add({.name = "n", .inputs = {value}, .outputs = 1, .reads = {weights}},
                      [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + 1); })[0];
  const NodeId who =
      graph.Add({.name = "who", .outputs = 1}, [](NodeContext& ctx) { ctx.Return(0, std::this_thread::get_id()); });
  graph.Output(value);
  graph.Output(who[0]);
  const Plan plan = graph.Compile(eng);
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 8; ++c)
    clients.emplace_back([&, c] {
      const PolicyScope scope = eng.EnterPolicy({Policy::kInline});
      for (int i = 0; i < 100; ++i) {
        Value inputs[] = {1000 * c + i};
        engine::Run run = plan.Start(inputs);
        wrong += !run.done();
        wrong += run.Take<int>(0) != 1000 * c + i + 30;
        wrong += run.Take<std::thread::id>(1) != std::this_thread::get_id();
      }
    });
  for (auto& c : clients) c.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(plan.frames(), 8u);
}

TEST_P(InlineTest, RunsInTheOrderInWhichItWasRecorded) {
  Engine eng(Quiet(workers()));
  std::vector<int> seen;
  Graph graph;
  for (int i = 0; i < 10; ++i) graph.Add({.name = "n"}, [&seen, i] { seen.push_back(i); });
  graph.Compile(eng).Start({}, {.policy = Policy::kInline}).Wait();
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.size(), 10u);
}

TEST_P(InlineTest, AsynchronousNodesOverlapEachOther) {
  Engine eng(Quiet(workers()));
  Graph graph;
  Counter started;
  std::vector<std::thread> completers(2);
  for (auto& completer : completers)
    graph.AddAsync({.name = "meet"}, [&](NodeContext&, Completion done) {
      completer = std::thread([&started, done]() mutable {
        started.Add();
        started.WaitFor(2);
        done();
      });
    });
  graph.Compile(eng).Start({}, {.policy = Policy::kInline}).Wait();
  for (auto& c : completers) c.join();
}

// What the run waits for may need the only thread of a pool, which starts the run: without a stand-in it would hang.
TEST_P(InlineTest, WhatAwaitsInsideAnOpFailsWithoutAStandIn) {
  for (const bool one : {false, true}) {
    EngineOptions options = Quiet(workers());
    options.pools = {{.name = "p"}};
    options.max_spare_threads = one;
    Engine eng(options);
    const Var a = eng.NewVar("a");
    Graph graph;
    int ran = 0;
    const NodeId here = graph.Add({.name = "here"}, [&] { ++ran; });
    const NodeId same = graph.Add({.name = "same pool", .place = eng.Pool("p")}, [&] { ++ran; });
    const NodeId later = graph.AddAsync({.name = "later"}, [&](NodeContext&, Completion done) {
      eng.Push({.name = "completes", .place = eng.Pool("p")}, [&ran, done]() mutable {
        ++ran;
        done();
      });
    });
    graph.Order(here, same);
    graph.Order(same, later);
    const Plan plan = graph.Compile(eng);
    std::string told;
    eng.Push({.name = "starts", .updates = {a}, .place = eng.Pool("p")}, [&] {
      try {
        plan.Start({}, {.policy = Policy::kInline}).Wait();
      } catch (const OpError& error) {
        told = error.what();
      }
    });
    eng.Wait(a);
    EXPECT_EQ(ran, one ? 3 : 1);
    EXPECT_EQ(told.empty(), one);
    EXPECT_EQ(Has(told, "raise the option max_spare_threads"), !one) << told;
  }
}

// A run in a worker's hook may not await what that worker is to run, as a wait there may not.
TEST_P(InlineTest, WhatAwaitsInsideAHookFails) {
  if (!workers()) GTEST_SKIP() << "no worker, no hook";
  std::atomic<const Plan*> ready{nullptr};
  std::atomic<int> hooks{0};
  Counter started, here, elsewhere;
  EngineOptions options = Quiet(workers());
  options.pools = {{.name = "p"}};
  options.on_start = [&](int) {
    if (hooks.fetch_add(1) > 0) return;
    const Plan* plan = nullptr;
    while (!(plan = ready)) std::this_thread::yield();
    plan->Start({}, {.policy = Policy::kInline});
    started.Add();
  };
  Engine eng(options);
  Graph graph;
  const NodeId first = graph.Add({.name = "here"}, [&] { here.Add(); });
  const NodeId second = graph.Add({.name = "elsewhere", .place = eng.Pool("p")}, [&] { elsewhere.Add(); });
  graph.Order(first, second);
  const Plan plan = graph.Compile(eng);
  ready = &plan;
  started.WaitFor(1);
  const std::string told = Caught<OpError>([&] { eng.WaitAll(); }, "the failed node").what();
  EXPECT_TRUE(Has(told, "elsewhere")) << told;
  EXPECT_TRUE(Has(told, "a wait in on_start or on_end")) << told;
  EXPECT_EQ(here.count(), 1);
  EXPECT_EQ(elsewhere.count(), 0);
}

TEST_P(InlineTest, NodesHaveTheThreadsThatThePolicySays) {
  Engine eng(Quiet(workers()));
  Graph graph;
  size_t pieces = 0;
  std::set<std::thread::id> threads;
  graph.Add({.name = "wide"}, [&](RunContext& ctx) {
    ctx.ParallelFor(1000, 1, [&](size_t, size_t) {
      ++pieces;
      threads.insert(std::this_thread::get_id());
    });
  });
  const Plan plan = graph.Compile(eng);
  plan.Start({}, {.policy = Policy::kInline}).Wait();
  EXPECT_EQ(pieces, 1u);
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
}

// DeepRec's inline executor runs the partitions of several devices one after the other.
TEST_P(InlineTest, DeepRecRunsOtherPlacementsInTurn) {
  Engine eng(Quiet(workers()));
  Graph graph;
  Counter started;
  const auto meet = [&] {
    started.Add();
    started.WaitFor(2);
  };
  graph.Add({.name = "elsewhere", .place = Io()}, meet);
  graph.Add({.name = "here"}, meet);
  graph.Compile(eng).Start({}, {.policy = Policy::kInline}).Wait();
}

// DeepRec's keeps the first failure and loses the others.
TEST_P(InlineTest, DeepRecLosesAllFailuresButTheFirst) {
  Engine eng(Quiet(workers()));
  Graph graph;
  for (const char* what : {"one", "two"})
    graph.Add({.name = Name::Intern(what)}, [what] { throw std::runtime_error(what); });
  const Plan plan = graph.Compile(eng);
  engine::Run run = plan.Start({}, {.policy = Policy::kInline});
  EXPECT_TRUE(Has(ErrorOf([&] { run.Wait(); }).what(), "one"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "two"));
  eng.WaitAll();
}

}  // namespace
}  // namespace engine::test
