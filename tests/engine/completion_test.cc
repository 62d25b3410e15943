// Contract 4: asynchronous ops end by their Completion, exactly once.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(CompletionTest);

// What a body does after its op has completed may come after a WaitAll that saw the op complete: look until it is there.
OpError NextUnseen(Engine& eng) {
  for (;;) {
    try {
      eng.WaitAll();
      std::this_thread::yield();
    } catch (const OpError& e) {
      return e;
    }
  }
}

TEST_P(CompletionTest, CalledBeforeTheBodyReturns) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  for (int i = 0; i < 100; ++i) eng.PushAsync({.writes = {a}}, [](RunContext&, Completion done) { done(); });
  eng.Wait(a);
  EXPECT_EQ(a.version(), 100u);
}

TEST_P(CompletionTest, CalledLongAfterTheBodyReturned) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), out = eng.NewVar("out");
  Slot<Completion> slot;
  eng.PushAsync({.writes = {a}}, [&](RunContext&, Completion done) { slot.Put(std::move(done)); });
  bool ran = false;
  eng.Push({.reads = {a}, .writes = {out}}, [&] { ran = true; });
  Done(eng, out);  // with no workers this runs the body
  Completion done = slot.Take();
  EXPECT_FALSE(Done(eng, out));
  EXPECT_FALSE(ran);
  done();
  eng.Wait(out);
  EXPECT_TRUE(ran);
}

TEST_P(CompletionTest, CalledOnAForeignThreadWhichRunsNoOp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Slot<Completion> slot;
  std::thread::id foreign, ran_on;
  std::thread client([&] {
    foreign = std::this_thread::get_id();
    slot.Take()();
  });
  eng.PushAsync({.writes = {a}}, [&](RunContext&, Completion done) { slot.Put(std::move(done)); });
  eng.Push({.reads = {a}, .writes = {b}}, [&] { ran_on = std::this_thread::get_id(); });
  eng.Wait(b);
  client.join();
  EXPECT_NE(foreign, ran_on);
}

TEST_P(CompletionTest, FailureReachesWaitersAndDependents) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  eng.PushAsync({.name = "fetch", .writes = {a}},
                [](RunContext&, Completion done) { done.Fail(std::out_of_range("no reply")); });
  eng.Push({.reads = {a}, .writes = {b}}, [] { FAIL() << "must be skipped"; });
  const OpError e = ErrorOf([&] { eng.Wait(b); });
  EXPECT_EQ(e.op(), "fetch");
  EXPECT_TRUE(CausedBy<std::out_of_range>(e));
  eng.PushAsync({.writes = {a}}, [](RunContext&, Completion done) { done.Fail(std::exception_ptr()); });
  EXPECT_TRUE(CausedBy<CompletionError>(ErrorOf([&] { eng.Wait(a); })));
}

TEST_P(CompletionTest, CopiesShareOneEnd) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.PushAsync({.writes = {a}}, [](RunContext&, Completion done) {
    Completion copy = done, other;
    other = copy;
    other();
  });
  eng.Wait(a);
  eng.WaitAll();  // throws if a copy that was dropped, or a second call, had been reported
  EXPECT_EQ(a.version(), 1u);
}

TEST_P(CompletionTest, DroppingTheLastCopyFailsTheOp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.PushAsync({.name = "forgetful", .writes = {a}}, [](RunContext&, Completion done) { Completion copy = done; });
  const OpError e = ErrorOf([&] { eng.Wait(a); });
  EXPECT_EQ(e.op(), "forgetful");
  EXPECT_TRUE(Has(e.what(), "dropped"));
  EXPECT_TRUE(CausedBy<CompletionError>(e));
}

TEST_P(CompletionTest, SecondCallIsReportedAndChangesNothing) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.PushAsync({.name = "eager", .writes = {a}}, [](RunContext&, Completion done) {
    done();
    done();
  });
  eng.Wait(a);
  EXPECT_EQ(a.version(), 1u);
  const OpError e = NextUnseen(eng);
  EXPECT_EQ(e.op(), "eager");
  EXPECT_TRUE(Has(e.what(), "twice"));
  EXPECT_TRUE(CausedBy<CompletionError>(e));
}

TEST_P(CompletionTest, FailureAfterSuccessIsReportedWithItsText) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Gate late;
  eng.PushAsync({.writes = {a}}, [&](RunContext&, Completion done) {
    done();
    done.Fail(std::runtime_error("too late"));
    late.Open();
  });
  eng.Wait(a);
  late.Wait();  // the completion lets waiters go on before the body does
  EXPECT_TRUE(Has(NextUnseen(eng).what(), "too late"));
}

TEST_P(CompletionTest, ThrowAfterCompletionIsReportedNotFatal) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.PushAsync({.writes = {a}}, [](RunContext&, Completion done) {
    done();
    throw std::runtime_error("an afterthought");
  });
  eng.Wait(a);
  EXPECT_TRUE(Has(NextUnseen(eng).what(), "an afterthought"));
}

TEST_P(CompletionTest, ThrowBeforeCompletionFailsTheOp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.PushAsync({.writes = {a}}, [](RunContext&, Completion) { throw std::runtime_error("at once"); });
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(a); }).what(), "at once"));
  Slot<Completion> slot;  // the same with a copy that is called afterwards
  eng.PushAsync({.writes = {a}}, [&](RunContext&, Completion done) {
    slot.Put(done);
    throw std::runtime_error("with a copy out");
  });
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(a); }).what(), "with a copy out"));
  slot.Take()();
  EXPECT_TRUE(Has(NextUnseen(eng).what(), "twice"));
}

TEST_P(CompletionTest, SettlesOnceWhenManyThreadsCall) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  constexpr int kCallers = 4, kRounds = 50;
  for (int r = 0; r < kRounds; ++r) {
    Slot<Completion> slot;
    eng.PushAsync({.writes = {a}}, [&](RunContext&, Completion done) { slot.Put(std::move(done)); });
    Done(eng, a);
    Completion done = slot.Take();
    std::vector<std::thread> callers;
    for (int c = 0; c < kCallers; ++c) callers.emplace_back([copy = done]() mutable { copy(); });
    for (auto& t : callers) t.join();
    eng.Wait(a);
  }
  EXPECT_EQ(a.version(), static_cast<uint64_t>(kRounds));
  EXPECT_EQ(eng.stats().unseen_errors, static_cast<uint64_t>(std::min(64 + 86, kRounds * (kCallers - 1))));
}

TEST_P(CompletionTest, OutlivesTheEngine) {
  Completion kept;
  Log log;
  {
    EngineOptions o = Reporting(workers(), log);
    o.drain_timeout = 0ms;
    Engine eng(o);
    Var a = eng.NewVar("a");
    eng.PushAsync({.name = "never", .writes = {a}}, [&](RunContext&, Completion done) { kept = done; });
    if (!workers()) Done(eng, a);
  }
  EXPECT_TRUE(log.Contains("'never'"));
  EXPECT_TRUE(kept);
  kept();  // does nothing, and its drop frees what is left
  kept = Completion();
}

// Hooks refer to what may have gone with the engine.
TEST_P(CompletionTest, NobodyIsToldOnceTheEngineHasGone) {
  Completion kept;
  std::atomic<bool> over{false}, late{false};
  std::atomic<int> told{0};
  {
    EngineOptions o = Quiet(workers());
    o.drain_timeout = 0ms;
    o.on_unobserved = [&](const OpError&) { over ? void(late = true) : void(++told); };
    Engine eng(o);
    eng.PushAsync({.name = "never"}, [&](RunContext&, Completion done) { kept = done; });
  }
  over = true;
  kept();
  kept.Fail(std::runtime_error("too late"));
  kept = Completion();
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(late);
}

TEST_P(CompletionTest, SecondCallWhileTheThreadsEndIsReported) {
  if (!workers()) GTEST_SKIP() << "no thread that ends";
  Log log;
  {
    Engine eng(Reporting(workers() + 1, log));
    eng.PushAsync({.name = "eager"}, [&](RunContext&, Completion done) {
      done();
      try {  // inside an op this is refused only once all has settled
        for (;;) {
          eng.Push({}, [] {});
          Gate().WaitFor(1ms);
        }
      } catch (const UsageError&) {
      }
      done();
    });
  }
  EXPECT_TRUE(log.Contains("'eager'"));
  EXPECT_TRUE(log.Contains("twice"));
}

TEST(EmptyCompletionTest, CallIsRefused) {
  Completion empty;
  EXPECT_FALSE(empty);
  EXPECT_THROW(empty(), UsageError);
}

}  // namespace
}  // namespace engine::test
