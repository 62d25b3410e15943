// How runs end that started although some of their Vars were not free: errors, cancels, deadlines, a shutdown, a fork.
#include <stdexcept>
#include <thread>

#include "support/child.h"
#include "support/sanitizers.h"
#include "support/threads.h"
#include "two_nodes.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(GatedEndsTest);

TEST_P(GatedEndsTest, AnErrorSkipsWhatReadsItAndNothingElse) {
  Engine eng(Quiet(workers()));
  for (int i = 0; i < 10; ++i) {
    const Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c"), d = eng.NewVar("d");
    std::atomic<int> free{0}, skipped{0}, always{0}, overwrites{0};
    Graph graph;
    graph.Add({.name = "free", .updates = {a}}, [&] { ++free; });
    graph.Add({.name = "reads", .reads = {b}, .writes = {c}}, [&] { ++skipped; });
    graph.Add({.name = "always", .reads = {b}, .run_always = true}, [&] { ++always; });
    graph.Add({.name = "overwrites", .writes = {d}}, [&] { ++overwrites; });
    const Plan plan = graph.Compile(eng);
    HeldOp on_b = HoldWrite(eng, b), on_d = HoldWrite(eng, d);
    Fail(eng, b);
    Fail(eng, d);
    engine::Run run = plan.Start();
    eng.Wait(a);
    on_b.Release();
    on_d.Release();
    EXPECT_TRUE(Has(ErrorOf([&] { run.Wait(); }).what(), "broken"));
    EXPECT_THROW(eng.Wait(c), OpError);
    EXPECT_THROW(eng.Wait(b), OpError);
    eng.Wait(a);
    eng.Wait(d);  // the run has overwritten it
    EXPECT_EQ(free + 10 * skipped + 100 * always + 1000 * overwrites, 1101);
  }
}

TEST_P(GatedEndsTest, AFailingNodePoisonsItsLateVar) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Graph graph;
  graph.Add({.name = "free", .updates = {a}}, [] {});
  graph.Add({.name = "fails", .updates = {b}}, [] { throw std::domain_error("no"); });
  const Plan plan = graph.Compile(eng);
  for (int i = 0; i < 5; ++i) {
    HeldOp held = HoldWrite(eng, b);
    engine::Run run = plan.Start();
    held.Release();
    EXPECT_TRUE(CausedBy<std::domain_error>(ErrorOf([&] { eng.Wait(b); })));
    EXPECT_TRUE(CausedBy<std::domain_error>(ErrorOf([&] { run.Wait(); })));
    eng.Wait(a);
  }
}

TEST_P(GatedEndsTest, ACancelReachesTheNodesThatWait) {
  Engine eng(Quiet(workers()));
  Two two(eng);
  CancelScope scope;
  HeldOp held = HoldWrite(eng, two.b);
  engine::Run run = two.plan.Start({}, {.cancel = &scope});
  eng.Wait(two.a);
  scope.Cancel();
  EXPECT_FALSE(run.done());  // it still has its place on b
  held.Release();
  EXPECT_TRUE(CausedBy<CancelledError>(ErrorOf([&] { run.Wait(); })));
  EXPECT_EQ(two.ran_free, 1);
  EXPECT_EQ(two.ran_late, 0);
  EXPECT_EQ(two.b.version(), 2u);
}

TEST_P(GatedEndsTest, ADeadlineReachesTheNodesThatWait) {
  Engine eng(Quiet(workers()));
  Two two(eng);
  HeldOp held = HoldWrite(eng, two.b);
  const auto deadline = std::chrono::steady_clock::now() + 300ms;
  engine::Run run = two.plan.Start({}, {.deadline = deadline});
  eng.WaitToWrite(two.a);
  while (std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  held.Release();
  EXPECT_TRUE(CausedBy<DeadlineError>(ErrorOf([&] { run.Wait(); })));
  EXPECT_EQ(two.ran_late, 0);
}

// A thread may have nothing but a task that stops. While it leaves the run, another one opens the gate and ends the run, and
// the frame begins the next one. (A build with ENGINE_ASSERTS sees it without that meeting: EndTasks.)
TEST_P(GatedEndsTest, AThreadWhoseOnlyTaskStoppedLeavesTheRunAlone) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b");
  int ran_late = 0;  // guarded by b
  Graph graph;
  graph.Add({.name = "free", .updates = {a}}, [] {});
  graph.Add({.name = "late", .updates = {b}, .place = Io()}, [&] { ++ran_late; });
  const Plan plan = graph.Compile(eng);
  const int runs = kSanitized ? 4'000 : 20'000;
  for (int i = 1; i <= runs; ++i) {
    HeldOp held = HoldWrite(eng, b);
    engine::Run run = plan.Start();
    held.Release();
    run.Wait();
    ASSERT_EQ(ran_late, i);
  }
}

TEST_P(GatedEndsTest, AShutdownEndsARunThatWaits) {
  EngineOptions options = Quiet(workers());
  options.drain_timeout = std::chrono::milliseconds(20);
  Engine eng(options);
  Two two(eng);
  Slot<Completion> kept;
  eng.PushAsync({.name = "never", .writes = {two.b}}, [&](RunContext&, Completion done) { kept.Put(std::move(done)); });
  engine::Run run = two.plan.Start();
  eng.Wait(two.a);
  eng.Shutdown();
  EXPECT_TRUE(CausedBy<ShutdownError>(ErrorOf([&] { run.Wait(); })));
  EXPECT_EQ(two.ran_free, 1);
  EXPECT_EQ(two.ran_late, 0);
  kept.Take();
}

TEST_P(GatedEndsTest, AStoppedEngineGoesOnWithARunThatWaits) {
  Engine eng(Quiet(workers()));
  Two two(eng);
  HeldOp held = HoldWrite(eng, two.b);
  engine::Run run = two.plan.Start();
  eng.Wait(two.a);
  eng.Stop();
  held.Release();
  engine::Run next = two.plan.Start();
  EXPECT_FALSE(run.done());
  EXPECT_EQ(two.ran_late, 0);
  eng.Start();
  run.Wait();
  next.Wait();
  EXPECT_EQ(two.ran_late, 2);
}

TEST_P(GatedEndsTest, ARefusedStartLeavesTheVarsAlone) {
  Engine eng(Quiet(workers()));
  Two two(eng);
  Var gone = eng.NewVar("gone");
  std::atomic<int> ran{0};
  Graph graph;
  graph.Add({.name = "free", .updates = {two.a}}, [] {});
  graph.Add({.name = "late", .updates = {two.b}}, [&] { ++ran; });
  graph.Add({.name = "gone", .reads = {gone}}, [&] { ++ran; });
  const Plan plan = graph.Compile(eng);
  eng.Delete(gone);
  HeldOp held = HoldWrite(eng, two.b);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Has(RefusalOf([&] { plan.Start(); }), "deleted"));
  held.Release();
  eng.Wait(two.a);
  eng.Wait(two.b);
  two.plan.Start().Wait();
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(two.ran_late, 1);
  EXPECT_EQ(two.b.version(), 2u);
}

TEST_P(GatedEndsTest, AForkLeavesARunThatWaitsToItsParent) {
  if (const char* why = WhyNoForks()) GTEST_SKIP() << why;
  Engine eng(Quiet(workers()));
  Two two(eng);
  HeldOp held = HoldWrite(eng, two.b);
  engine::Run run = two.plan.Start();
  eng.Wait(two.a);
  EXPECT_TRUE(InChild([&] {
    const bool poisoned = CausedBy<ForkedWhilePending>(ErrorOf([&] { eng.Wait(two.b); }));
    eng.Push({.name = "repair", .writes = {two.b}}, [] {});
    HeldOp again = HoldWrite(eng, two.b);
    engine::Run own = two.plan.Start();
    eng.Wait(two.a);
    again.Release();
    own.Wait();
    return poisoned && two.ran_free == 2 && two.ran_late == 1;
  }));
  held.Release();
  run.Wait();
  EXPECT_EQ(two.ran_late, 1);
}

// WaitAll waits for what was pushed before it. What opens the gate of a run that was started later is the last of that.
TEST(GatedEndsEpochTest, ARunThatWasStartedLaterDelaysNoWaitAll) {
  Engine eng(Quiet(2));
  for (int i = 0; i < 3; ++i) {
    const Var v = eng.NewVar("v");
    HeldOp held = HoldWrite(eng, v);
    std::atomic<int> waiting{0};
    std::atomic<bool> returned{false}, in_time{false}, started{false};
    std::thread waits([&] {
      waiting = static_cast<int>(gettid());
      eng.WaitAll();
      returned = true;
    });
    AwaitAsleep(waiting);
    Graph graph;
    graph.Add({.name = "free"}, [&] { started = true; });
    graph.Add({.name = "late", .updates = {v}}, [&] {
      for (int n = 0; n < 5000 && !returned; ++n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      in_time = returned.load();
    });
    const Plan plan = graph.Compile(eng);
    engine::Run run = plan.Start();
    while (!started) std::this_thread::yield();
    held.Release();
    run.Wait();
    waits.join();
    EXPECT_TRUE(in_time);
  }
}

}  // namespace
}  // namespace engine::test
