// Cancel scopes: what has not started is skipped with CancelledError.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(CancelTest);

TEST_P(CancelTest, OpsThatHaveNotStartedAreSkipped) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  CancelScope scope;
  HeldOp held = HoldWrite(eng, a);
  bool ran = false;
  eng.Push({.name = "late", .reads = {a}, .writes = {b}, .cancel = &scope}, [&] { ran = true; });
  scope.Cancel();
  EXPECT_TRUE(scope.cancelled());
  held.Release();
  const OpError e = ErrorOf([&] { eng.Wait(b); });
  EXPECT_TRUE(CausedBy<CancelledError>(e));
  EXPECT_EQ(e.op(), "late");
  EXPECT_FALSE(ran);
  eng.WaitAll();  // asked for, so nothing to report
  EXPECT_EQ(eng.stats().unseen_errors, 0u);
}

TEST_P(CancelTest, CurrentScopeOfTheThreadCounts) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  CancelScope outer, inner;
  HeldOp held = HoldWrite(eng, a);
  {
    auto in_outer = outer.Enter();
    {
      auto in_inner = inner.Enter();
      eng.Push({.reads = {a}, .writes = {b}}, [] {});
    }
    eng.Push({.reads = {a}, .writes = {c}}, [] {});
  }
  inner.Cancel();
  held.Release();
  EXPECT_TRUE(CausedBy<CancelledError>(ErrorOf([&] { eng.Wait(b); })));
  eng.Wait(c);
}

TEST_P(CancelTest, RunningOpsMayLookAndGoOn) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  CancelScope scope;
  bool before = true, after = false;
  eng.Push({.writes = {a}, .cancel = &scope}, [&](RunContext& ctx) {
    before = ctx.cancelled();
    scope.Cancel();
    after = ctx.cancelled();
  });
  eng.Wait(a);  // it had started, so it ends as it ends
  EXPECT_FALSE(before);
  EXPECT_TRUE(after);
}

// The op has ended, and its scope may have gone with its last handle; the body goes on.
TEST_P(CancelTest, BodiesMayLookAfterTheirOpsHaveEnded) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b");
  auto scope = std::make_unique<CancelScope>();
  Gate gone;
  bool after = true, deferred = true;
  const auto ends = [&](RunContext& ctx, Completion& done, bool& seen) {
    done();
    if (workers() != 0) gone.Wait();
    seen = ctx.cancelled();
  };
  eng.PushAsync({.writes = {a}, .cancel = scope.get()},
                [&](RunContext& ctx, Completion done) { ends(ctx, done, after); });
  eng.Push({.writes = {b}, .cancel = scope.get()}, [&](RunContext& ctx) {
    Completion done = ctx.Defer();
    ends(ctx, done, deferred);
  });
  scope.reset();
  if (workers() > 1) {  // one worker is inside the first body
    eng.Wait(a);
    eng.Wait(b);
  }
  gone.Open();
  eng.Shutdown();  // behind the bodies
  EXPECT_FALSE(after);
  EXPECT_FALSE(deferred);
}

std::string TextOf(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

// What it says is from before: its Vars are those of other ops now.
TEST_P(CancelTest, BodiesMayAskForTheirErrorAfterTheirOpsHaveEnded) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a");
  for (const bool defers : {false, true}) {
    Fail(eng, a, "the reason");
    Gate next, answered;
    std::exception_ptr said;
    const OpDesc desc{.name = "asks", .updates = a, .run_always = true};
    const auto ends = [&](RunContext& ctx, Completion done) {
      done();
      if (workers() > 1) next.Wait();
      said = ctx.error();
      answered.Open();
    };
    if (defers) {
      eng.Push(desc, [&](RunContext& ctx) { ends(ctx, ctx.Defer()); });
    } else {
      eng.PushAsync(desc, ends);
    }
    eng.Push({.name = "writes", .writes = {a}}, [&] { next.Open(); });
    if (workers() > 1) next.Wait();
    while (eng.stats().completed < eng.stats().pushed) eng.WaitFor(a, 1ms);
    try {
      eng.WaitAll();
    } catch (const OpError&) {
    }
    Gate over;
    eng.Push({.updates = {a}}, [&] { over.Open(); });
    eng.Wait(a);
    answered.Wait();
    EXPECT_TRUE(Has(TextOf(said), "the reason"));
  }
}

TEST_P(CancelTest, RunAlwaysRunsThoughCancelled) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  CancelScope scope;
  scope.Cancel();
  bool ran = false;
  eng.Push({.writes = {a}, .run_always = true, .cancel = &scope}, [&] { ran = true; });
  eng.Wait(a);
  EXPECT_TRUE(ran);
}

TEST_P(CancelTest, ScopeMayGoBeforeItsOps) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  HeldOp held = HoldWrite(eng, a);
  {
    CancelScope scope, copy = scope;
    eng.Push({.updates = {a}, .cancel = &scope}, [] {});
    copy.Cancel();
  }
  held.Release();
  EXPECT_TRUE(CausedBy<CancelledError>(ErrorOf([&] { eng.Wait(a); })));
}

TEST_P(CancelTest, AsynchronousOpsAreSkippedWithoutACompletion) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  CancelScope scope;
  scope.Cancel();
  auto kept = std::make_shared<int>(0);
  eng.PushAsync({.writes = {a}, .cancel = &scope}, [kept](RunContext&, Completion done) { done(); });
  EXPECT_TRUE(CausedBy<CancelledError>(ErrorOf([&] { eng.Wait(a); })));
  EXPECT_EQ(kept.use_count(), 1);
}

TEST_P(CancelTest, CancelMayRaceWithTheRun) {
  Engine eng(Quiet(workers()));
  for (int round = 0; round < 50; ++round) {
    Var a = eng.NewVar("a");
    CancelScope scope;
    int ran = 0;
    std::thread cancels([&] { scope.Cancel(); });
    for (int i = 0; i < 20; ++i) eng.Push({.writes = {a}, .run_always = false, .cancel = &scope}, [&] { ++ran; });
    cancels.join();
    eng.WaitAll();
    EXPECT_EQ(a.version(), 20u);
    EXPECT_LE(ran, 20);
  }
  EXPECT_EQ(eng.stats().unseen_errors, 0u);
}

}  // namespace
}  // namespace engine::test
