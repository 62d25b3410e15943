// Contract 3, first half: what is caught, what is poisoned, how errors travel and are shown.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(ErrorsTest);

struct NotAnException {
  int code;
};

TEST_P(ErrorsTest, ExceptionOfAnyTypeFailsItsOpOnly) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c"), d = eng.NewVar("d"), good = eng.NewVar("good");
  eng.Push({.writes = {a}}, [] { throw 42; });
  eng.Push({.writes = {b}}, [] { throw "text"; });
  eng.Push({.writes = {c}}, [] { throw std::string("a string"); });
  eng.Push({.writes = {d}}, [] { throw NotAnException{7}; });
  eng.Push({.writes = {good}}, [] {});
  EXPECT_TRUE(CausedBy<int>(ErrorOf([&] { eng.Wait(a); })));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(a); }).what(), "int"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(b); }).what(), "text"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(c); }).what(), "a string"));
  try {
    ErrorOf([&] { eng.Wait(d); }).RethrowCause();
  } catch (const NotAnException& e) {
    EXPECT_EQ(e.code, 7);
  }
  eng.Wait(good);
}

struct Textless : std::exception {
  const char* what() const noexcept override { return nullptr; }
};

TEST_P(ErrorsTest, WhatIsThrownAlwaysHasAText) {
  Log log;
  {
    Engine eng(Reporting(workers(), log));
    const auto text = [&](auto body) {
      Var a = eng.NewVar("a");
      eng.Push({.name = "odd", .writes = {a}}, body);
      eng.Push({.name = "unseen"}, body);  // told at shutdown
      return std::string(ErrorOf([&] { eng.Wait(a); }).what());
    };
    EXPECT_TRUE(Has(text([] { throw nullptr; }), "a null pointer was thrown"));
    EXPECT_TRUE(Has(text([] { throw static_cast<const char*>(nullptr); }), "a null pointer was thrown"));
    EXPECT_TRUE(Has(text([] { throw Textless(); }), "Textless without a text"));
    Var b = eng.NewVar("b");
    eng.PushAsync({.writes = {b}}, [](RunContext&, Completion done) {
      done.Fail(Textless());
      done.Fail(Textless());
    });
    EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(b); }).what(), "Textless without a text"));
  }
  EXPECT_EQ(log.size(), 4u);
}

TEST_P(ErrorsTest, FailedOpPoisonsWhatItWouldHaveWritten) {
  Engine eng(Quiet(workers()));
  Var r = eng.NewVar("r"), u = eng.NewVar("u"), w = eng.NewVar("w");
  eng.Push({.reads = {r}, .updates = {u}, .writes = {w}}, [] { throw std::runtime_error("broken"); });
  EXPECT_THROW(eng.Wait(u), OpError);
  EXPECT_THROW(eng.Wait(w), OpError);
  eng.Wait(r);
  EXPECT_EQ(u.version(), 1u);  // a failed write is a place in the order, too
  EXPECT_EQ(r.version(), 0u);
}

TEST_P(ErrorsTest, DependentsAreSkippedAndPassTheSameErrorOn) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  int ran = 0;
  const uint32_t line = __LINE__ + 1;
  eng.Push({.name = "load", .writes = {a}}, [] { throw std::runtime_error("no such file"); });
  eng.Push({.name = "scale", .reads = {a}, .writes = {b}}, [&] { ++ran; });
  eng.Push({.name = "sum", .updates = {b}, .writes = {c}}, [&] { ++ran; });
  const OpError e = ErrorOf([&] { eng.Wait(c); });
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(e.op(), "load");
  EXPECT_EQ(e.site().line, line);
  EXPECT_TRUE(Has(e.site().file, "errors_test.cc"));
  ASSERT_EQ(e.path().size(), 2u);
  EXPECT_EQ(e.path()[0].op, "scale");
  EXPECT_EQ(e.path()[1].op, "sum");
  EXPECT_EQ(e.path()[1].site.line, line + 2);
  EXPECT_TRUE(Has(e.what(), "'load'"));
  EXPECT_TRUE(Has(e.what(), "no such file"));
  EXPECT_TRUE(Has(e.what(), "passed on by op 'sum'"));
  EXPECT_TRUE(CausedBy<std::runtime_error>(e));
  eng.WaitAll();
  EXPECT_EQ(eng.stats().skipped, 2u);
}

TEST_P(ErrorsTest, LongChainsKeepTheirFirstHops) {
  Engine eng(Quiet(workers()));
  std::vector<Var> v;
  for (int i = 0; i <= 100; ++i) v.push_back(eng.NewVar());
  Fail(eng, v[0]);
  for (size_t i = 1; i <= 100; ++i) eng.Push({.name = "hop", .reads = {v[i - 1]}, .writes = {v[i]}}, [] {});
  const OpError e = ErrorOf([&] { eng.Wait(v[100]); });
  EXPECT_EQ(e.op(), "fail");
  EXPECT_EQ(e.path().size(), 16u);
}

TEST_P(ErrorsTest, OfSeveralPoisonedInputsTheFirstListedCounts) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), x = eng.NewVar("x"), y = eng.NewVar("y"), z = eng.NewVar("z");
  Fail(eng, a, "of a");
  Fail(eng, b, "of b");
  eng.Push({.reads = {a, b}, .writes = {x}}, [] {});
  eng.Push({.reads = {b, a}, .writes = {y}}, [] {});
  eng.Push({.reads = {b}, .updates = {a}, .writes = {z}}, [] {});
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(x); }).what(), "of a"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(y); }).what(), "of b"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(z); }).what(), "of b"));
}

TEST_P(ErrorsTest, WriteClearsAndUpdateIsSkipped) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), seen = eng.NewVar("seen");
  bool updated = false, wrote = false, read = false;
  Fail(eng, a);
  eng.Push({.updates = {a}}, [&] { updated = true; });
  eng.Push({.writes = {a}}, [&] { wrote = true; });
  eng.Push({.reads = {a}, .writes = {seen}}, [&] { read = true; });
  eng.Wait(seen);
  eng.Wait(a);
  EXPECT_FALSE(updated);
  EXPECT_TRUE(wrote);
  EXPECT_TRUE(read);
}

TEST_P(ErrorsTest, RunAlwaysClearsItsWritesAndLeavesItsUpdatesPoisoned) {
  Engine eng(Quiet(workers()));
  Var in = eng.NewVar("in"), u = eng.NewVar("u"), w = eng.NewVar("w");
  bool ran = false;
  for (const Var& v : {in, u, w}) Fail(eng, v);
  eng.Push({.reads = {in}, .updates = {u}, .writes = {w}, .run_always = true}, [&] { ran = true; });
  eng.Wait(w);
  EXPECT_TRUE(ran);
  EXPECT_THROW(eng.Wait(in), OpError);
  EXPECT_THROW(eng.Wait(u), OpError);
}

TEST_P(ErrorsTest, RunAlwaysChainsItsOwnErrorToTheFirst) {
  Engine eng(Quiet(workers()));
  Var in = eng.NewVar("in"), out = eng.NewVar("out");
  Fail(eng, in, "the cause");
  eng.Push({.name = "cleanup", .reads = {in}, .writes = {out}, .run_always = true},
           [] { throw std::runtime_error("and the consequence"); });
  const OpError e = ErrorOf([&] { eng.Wait(out); });
  EXPECT_EQ(e.op(), "cleanup");
  EXPECT_TRUE(Has(e.what(), "and the consequence"));
  EXPECT_TRUE(Has(e.what(), "the cause"));
}

TEST_P(ErrorsTest, ClearErrorKeepsValueAndVersion) {
  Engine eng(Quiet(workers()));
  Var weights = eng.NewVar("weights"), out = eng.NewVar("out");
  int w = 5, y = 0;
  eng.Push({.name = "step", .updates = {weights}}, [] { throw std::runtime_error("one bad batch"); });
  EXPECT_THROW(eng.Wait(weights), OpError);
  const uint64_t version = weights.version();
  eng.ClearError(weights);
  eng.Push({.reads = {weights}, .writes = {out}}, [&] { y = w; });
  eng.Wait(out);
  eng.Wait(weights);
  EXPECT_EQ(y, 5);
  EXPECT_EQ(weights.version(), version);
}

TEST_P(ErrorsTest, ClearErrorIsAnOrderedAccess) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), before = eng.NewVar("before"), after = eng.NewVar("after");
  HeldOp bad = eng.PushHeld({.writes = {a}}, [] { throw std::runtime_error("late"); });
  eng.Push({.reads = {a}, .writes = {before}}, [] {});
  eng.ClearError(a);
  eng.Push({.reads = {a}, .writes = {after}}, [] {});
  bad.Release();
  EXPECT_THROW(eng.Wait(before), OpError);
  eng.Wait(after);
}

TEST_P(ErrorsTest, EveryWaitThrowsAFreshWrapper) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Fail(eng, a);
  std::exception_ptr first, second;
  try {
    eng.Wait(a);
  } catch (...) {
    first = std::current_exception();
  }
  try {
    eng.Wait(a);
  } catch (...) {
    second = std::current_exception();
  }
  ASSERT_TRUE(first && second);
  EXPECT_NE(first, second);
  EXPECT_THROW(eng.WaitToWrite(a), OpError);
  EXPECT_THROW(eng.WaitFor(a, 1h), OpError);
}

TEST_P(ErrorsTest, ConcurrentWaitersAllSeeTheError) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  HeldOp bad = eng.PushHeld({.writes = {a}}, [] { throw std::runtime_error("seen by all"); });
  std::atomic<int> seen{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&] {
      try {
        eng.Wait(a);
      } catch (const OpError&) {
        ++seen;
      }
    });
  bad.Release();
  for (auto& t : threads) t.join();
  EXPECT_EQ(seen, 6);
}

TEST_P(ErrorsTest, ClosuresOfSkippedOpsAreDestroyed) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  Fail(eng, a);
  eng.Push({.updates = {a}}, [held] {});
  eng.PushAsync({.updates = {a}}, [held](RunContext&, Completion done) { done(); });
  held.reset();
  EXPECT_THROW(eng.Wait(a), OpError);
  EXPECT_TRUE(watch.expired());
}

TEST_P(ErrorsTest, AnOpThatRunsAlwaysMayAskWhyItWouldHaveBeenSkipped) {
  Engine eng(Quiet(workers()));
  Var good = eng.NewVar("good"), bad = eng.NewVar("bad");
  Fail(eng, bad);
  std::exception_ptr of_good, of_bad, of_written, of_cancelled;
  const auto ask = [](std::exception_ptr* into) { return [into](RunContext& ctx) { *into = ctx.error(); }; };
  eng.Push({.reads = {good}, .run_always = true}, ask(&of_good));
  eng.Push({.name = "cleanup", .reads = {good, bad}, .run_always = true}, ask(&of_bad));
  CancelScope scope;
  scope.Cancel();
  eng.Push({.reads = {bad}, .run_always = true, .cancel = &scope}, ask(&of_cancelled));
  eng.Push({.writes = {bad}, .run_always = true}, ask(&of_written));
  eng.WaitAll();  // seen: the ops above were told
  EXPECT_FALSE(of_good);
  EXPECT_FALSE(of_written);
  ASSERT_TRUE(of_bad);
  EXPECT_EQ(ErrorOf([&] { std::rethrow_exception(of_bad); }).op(), "fail");
  ASSERT_TRUE(of_cancelled);
  EXPECT_THROW(std::rethrow_exception(of_cancelled), CancelledError);
}

}  // namespace
}  // namespace engine::test
