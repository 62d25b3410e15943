// Contract 8: a fork while other threads are inside calls that take locks, or hold what is pending. Neither is left locked in
// the child, nor does anything pending in the parent settle there.
#include "engine/plan.h"
#include "engine/spi/cost_model.h"
#include "support/child.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

class ForkLocksTest : public WorkersTest {
 protected:
  void SetUp() override {
    if (const char* why = WhyNoForks()) GTEST_SKIP() << why;
  }
  // Forks while two other threads do `busy` over and over.
  void ForkWhile(const std::function<void()>& busy, const std::function<bool()>& child) {
    std::atomic<bool> stop{false};
    std::atomic<int> began{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t)
      threads.emplace_back([&] {
        ++began;
        while (!stop) busy();
      });
    while (began < 2) std::this_thread::yield();
    for (int i = 0; i < 40 && !HasFailure(); ++i) EXPECT_TRUE(InChild(child)) << "fork " << i;
    stop = true;
    for (std::thread& t : threads) t.join();
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, ForkLocksTest, testing::Values(0, 2),
                         [](const auto& instance) { return std::to_string(instance.param); });

TEST_P(ForkLocksTest, OfInternedNames) {
  Engine eng(Quiet(workers()));
  ForkWhile([&] { Name::Intern("a name that is looked up again and again"); },
            [&] {
              Var mine = eng.NewVar("child");
              eng.Push({.name = Name::Intern("child"), .writes = {mine}}, [] {});
              eng.Wait(mine);
              return true;
            });
}

TEST_P(ForkLocksTest, OfCostModels) {
  EngineOptions o = Quiet(workers());
  o.policy = Policy::kCostModel;
  o.start_step = 1;
  o.stop_step = 3;
  Engine eng(o);
  Graph g;
  for (int i = 0; i < 100; ++i) g.Add({.name = "node", .writes = {eng.NewVar()}}, [] {});
  Plan plan = g.Compile(eng);
  for (int i = 0; i < 2; ++i) plan.Start().Wait();
  ForkWhile([&] { (void)plan.cost_model()->Costs(); },
            [&] {
              plan.cost_model()->Remeasure();
              for (int i = 0; i < 8; ++i) plan.Start().Wait();
              return Explain(plan).state != Explanation::State::kMeasuring;  // nothing waits for runs of the parent
            });
}

TEST_P(ForkLocksTest, OfPlans) {
  Engine eng(Quiet(workers()));
  Graph g;
  g.Add({.name = "node"}, [] {});
  Plan plan = g.Compile(eng);
  ForkWhile([&] { (void)plan.frames(); },
            [&] {
              engine::Run one = plan.Start(), two = plan.Start();
              one.Wait();
              two.Wait();
              return plan.frames() >= 2;
            });
}

// What its thread held when it forked: a Completion, a HeldOp, a run.
class ForkInertTest : public ForkLocksTest {
 protected:
  void SetUp() override {
    ForkLocksTest::SetUp();
    if (IsSkipped()) return;
    eng.emplace(Quiet(workers()));
    a = eng->NewVar("a");
    b = eng->NewVar("b");
    std::atomic<bool> has{false};
    eng->PushAsync({.name = "async", .writes = {a}}, [&](RunContext&, Completion done) {
      completion = std::move(done);
      has = true;
    });
    while (!has)
      if (!workers()) (void)Done(*eng, a);
    held = eng->PushHeld({.name = "held", .writes = {b}}, [this] { ran_in_child = getpid() != parent; });
  }
  void TearDown() override {
    if (!eng) return;
    if (completion) completion();
    held.Release();
    eng->WaitAll();  // the parent has lost nothing
    EXPECT_EQ(a.version(), a_in_the_end);
    EXPECT_EQ(b.version(), 1u);
  }
  std::optional<Engine> eng;
  Var a, b;
  Completion completion;
  HeldOp held;
  uint64_t a_in_the_end = 1;
  const pid_t parent = getpid();
  bool ran_in_child = false;
};
INSTANTIATE_TEST_SUITE_P(Workers, ForkInertTest, testing::Values(0, 2),
                         [](const auto& instance) { return std::to_string(instance.param); });

TEST_P(ForkInertTest, CompletionsThatAreCalledFailedOrDropped) {
  const std::function<void()> ends[] = {[&] { completion(); }, [&] { completion.Fail(std::runtime_error("stale")); },
                                        [&] { completion = Completion(); },
                                        [&] {
                                          completion();
                                          completion();
                                        }};
  for (const auto& end : ends) {
    EXPECT_TRUE(InChild([&] {
      end();
      eng->WaitAll();
      return CausedBy<ForkedWhilePending>(ErrorOf([&] { eng->Wait(a); })) && a.version() == 1;
    }));
    EXPECT_TRUE(InChild([&] {  // a Var that the child has written since
      for (int i = 0; i < 3; ++i) eng->Push({.writes = {a}}, [] {});
      eng->Wait(a);
      end();
      eng->Wait(a);
      eng->WaitAll();
      return a.version() == 4;
    }));
  }
}

TEST_P(ForkInertTest, HeldOpsThatAreReleasedOrDropped) {
  EXPECT_TRUE(InChild([&] {
    held.Release();
    eng->WaitAll();
    eng->Push({.writes = {b}}, [] {});
    eng->Wait(b);
    return !ran_in_child && b.version() == 2;
  }));
  EXPECT_TRUE(InChild([&] {
    { HeldOp dropped = std::move(held); }
    eng->Shutdown();
    return !ran_in_child;
  }));
}

TEST_P(ForkInertTest, AlsoAfterTheEnginesEndInTheChild) {
  EXPECT_TRUE(InChild([&] {
    eng.reset();
    completion = Completion();
    held.Release();
    a = b = Var();
    return !ran_in_child;
  }));
}

TEST_P(ForkInertTest, RunsOfThePlan) {
  Graph g;
  g.Add({.name = "node", .updates = {a}}, [] {});
  Plan plan = g.Compile(*eng);
  {
    engine::Run run = plan.Start();
    EXPECT_TRUE(InChild([&] {
      const bool told = CausedBy<ForkedWhilePending>(ErrorOf([&] { run.Wait(); }));
      run = engine::Run();
      eng->Push({.writes = {a}}, [] {});
      plan.Start().Wait();
      return told;
    }));
    completion();
    run.Wait();
  }
  completion = Completion();
  a_in_the_end = 2;
}

TEST_P(ForkLocksTest, ParallelForRunsInTheChild) {
  EngineOptions o = Quiet(workers());
  o.intra_op_threads = 2;
  Engine eng(o);
  const auto sum = [&] {
    Var v = eng.NewVar();
    std::atomic<size_t> covered{0};
    eng.Push({.writes = {v}}, [&](RunContext& ctx) {
      ctx.ParallelFor(64, 1, [&](size_t begin, size_t end) { covered += end - begin; });
    });
    eng.Wait(v);
    return covered.load();
  };
  ForkWhile([&] { sum(); }, [&] { return sum() == 64; });
}

}  // namespace
}  // namespace engine::test
