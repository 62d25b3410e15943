// Defer: an op that finds out in its body that it ends later.
#include <mutex>

#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(DeferTest);

TEST_P(DeferTest, OpEndsWithItsCompletionAndNotWithItsBody) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Slot<Completion> slot;
  std::atomic<bool> behind = false;
  eng.Push({.name = "later", .writes = {a}}, [&](RunContext& ctx) { slot.Put(ctx.Defer()); });
  eng.Push({.name = "behind", .reads = {a}}, [&] { behind = true; });
  Done(eng, a);
  Completion done = slot.Take();
  EXPECT_FALSE(behind);
  EXPECT_TRUE(Has(eng.DescribePending(), "'later'"));
  std::thread([&] { done(); }).join();
  eng.Wait(a);
  eng.WaitAll();
  EXPECT_TRUE(behind);
  EXPECT_EQ(a.version(), 1u);
}

TEST_P(DeferTest, CompletionMayBeCalledInsideTheBody) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  for (int i = 0; i < 1000; ++i) eng.Push({.updates = {a}}, [](RunContext& ctx) { ctx.Defer()(); });
  eng.Wait(a);
  EXPECT_EQ(a.version(), 1000u);
}

TEST_P(DeferTest, CompletionBesideTheEndOfTheBody) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::vector<std::thread> threads;
  std::mutex mu;  // the next op starts before this one's body has ended
  for (int i = 0; i < 200; ++i) {
    eng.Push({.updates = {a}}, [&](RunContext& ctx) {
      const std::lock_guard lock(mu);
      threads.emplace_back([done = ctx.Defer()]() mutable { done(); });
    });
  }
  eng.Wait(a);
  const std::lock_guard lock(mu);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(a.version(), 200u);
}

TEST_P(DeferTest, FailureOfTheCompletionOrOfTheBodyFailsTheOp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  eng.Push({.name = "failed", .writes = {a}}, [](RunContext& ctx) { ctx.Defer().Fail(std::runtime_error("late")); });
  Slot<Completion> kept;
  eng.Push({.name = "thrown", .writes = {b}}, [&](RunContext& ctx) {
    kept.Put(ctx.Defer());
    throw std::runtime_error("after it");
  });
  eng.Push({.name = "dropped", .writes = {c}}, [](RunContext& ctx) { (void)ctx.Defer(); });
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(a); }).what(), "late"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(b); }).what(), "after it"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(c); }).what(), "dropped without being called"));
}

TEST_P(DeferTest, BodyThatThrowsBehindItsCompletionIsReported) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Push({.name = "ended", .writes = {a}}, [](RunContext& ctx) {
    ctx.Defer()();
    throw std::runtime_error("behind it");
  });
  eng.Wait(a);                                                       // the op has not failed
  while (eng.stats().unseen_errors == 0) std::this_thread::yield();  // the body may still be throwing
  const std::string said = ErrorOf([&] { eng.WaitAll(); }).what();
  EXPECT_TRUE(Has(said, "behind it") && Has(said, "'ended'")) << said;
}

TEST_P(DeferTest, WorksUnderATraceAScopeAndPoison) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), bad = eng.NewVar("bad");
  Fail(eng, bad);
  CancelScope scope;
  eng.StartTrace();
  Slot<Completion> slot;
  eng.Push({.name = "later", .writes = {a}, .cancel = &scope}, [&](RunContext& ctx) { slot.Put(ctx.Defer()); });
  Done(eng, a);
  slot.Take()();
  eng.Wait(a);
  EXPECT_EQ(a.version(), 1u);
  eng.StopTrace();
}

TEST_P(DeferTest, ShutdownFailsWhatNeverEnds) {
  Log log;
  EngineOptions options = Reporting(workers(), log);
  options.drain_timeout = 1ms;
  Completion kept;
  {
    Engine eng(options);
    Var a = eng.NewVar("a");
    Slot<Completion> slot;
    eng.Push({.name = "silent", .writes = {a}}, [&](RunContext& ctx) { slot.Put(ctx.Defer()); });
    Done(eng, a);
    kept = slot.Take();
  }
  kept();
}

TEST_P(DeferTest, SecondCallAndAsynchronousOpsAreRefused) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::string twice, async;
  eng.Push({.name = "twice", .writes = {a}}, [&](RunContext& ctx) {
    Completion done = ctx.Defer();
    twice = RefusalOf([&] { ctx.Defer(); });
    done();
  });
  eng.PushAsync({.name = "async", .updates = {a}}, [&](RunContext& ctx, Completion done) {
    async = RefusalOf([&] { ctx.Defer(); });
    done();
  });
  eng.Wait(a);
  EXPECT_TRUE(Has(twice, "op 'twice'"));
  EXPECT_TRUE(Has(async, "in the body of a synchronous op"));
}

TEST_P(DeferTest, RunsUnderNaive) {
  Engine eng(Quiet(workers()));
  eng.SetPolicy(Policy::kNaive);
  Var a = eng.NewVar("a");
  Completion kept;
  eng.Push({.writes = {a}}, [&](RunContext& ctx) { kept = ctx.Defer(); });
  EXPECT_EQ(a.version(), 0u);
  kept();
  eng.Wait(a);
  EXPECT_EQ(a.version(), 1u);
}

TEST_P(DeferTest, DrainWaitsAndShowsNoError) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Fail(eng, a);
  EXPECT_TRUE(eng.Drain(std::chrono::milliseconds::max()));
  EXPECT_EQ(eng.stats().unseen_errors, 1u);
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "broken"));
  Slot<Completion> slot;
  eng.Push({.writes = {a}}, [&](RunContext& ctx) { slot.Put(ctx.Defer()); });
  EXPECT_FALSE(eng.Drain(1ms));
  Done(eng, a);
  slot.Take()();
  EXPECT_TRUE(eng.Drain(std::chrono::milliseconds::max()));
}

// Under naive an op runs on the stack of the one whose body pushes it.
TEST_P(DeferTest, LeavesTheErrorOfTheOpAroundIt) {
  Engine eng(Quiet(workers()));
  eng.SetPolicy(Policy::kNaive);
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  Fail(eng, a);
  int errors = 0;
  eng.PushAsync({.name = "outer", .reads = {a}, .writes = {b}, .run_always = true},
                [&](RunContext& ctx, Completion done) {
                  errors += ctx.error() != nullptr;
                  done();
                  eng.Push({.name = "clears", .writes = {a}}, [] {});
                  eng.Push({.name = "inner", .writes = {c}, .run_always = true}, [&](RunContext& inner) {
                    Completion its = inner.Defer();
                    errors += inner.error() != nullptr;
                    its();
                  });
                  errors += ctx.error() != nullptr;
                });
  eng.Wait(c);
  EXPECT_EQ(errors, 2);
  eng.WaitAll();
}

}  // namespace
}  // namespace engine::test
