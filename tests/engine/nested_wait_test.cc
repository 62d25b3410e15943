// Contract 5: waits inside ops. The thread parks, a stand-in takes its worker, and nothing runs on its stack.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(NestedWaitTest);

TEST_P(NestedWaitTest, OpMayWaitForAnotherOp) {
  Engine eng(Quiet(workers()));
  Var in = eng.NewVar("in"), out = eng.NewVar("out");
  int x = 0, y = 0;
  HeldOp first = eng.PushHeld({.writes = {in}}, [&] { x = 3; });
  eng.Push({.writes = {out}}, [&] {
    first.Release();
    eng.Wait(in);
    y = x;
  });
  eng.Wait(out);
  EXPECT_EQ(y, 3);
}

TEST_P(NestedWaitTest, OpMayPushAndWaitForWhatItPushed) {
  Engine eng(Quiet(workers()));
  Var out = eng.NewVar("out");
  int sum = 0;
  eng.Push({.writes = {out}}, [&] {
    for (int i = 0; i < 10; ++i) {
      Var v = eng.NewVar();
      int x = 0;
      eng.Push({.writes = {v}}, [&x, i] { x = i; });
      eng.Wait(v);
      sum += x;
    }
  });
  eng.Wait(out);
  EXPECT_EQ(sum, 45);
}

// Each level waits for the next: as many threads park as there are levels.
TEST_P(NestedWaitTest, WaitsMayBeNested) {
  Engine eng(Quiet(workers()));
  constexpr int kDepth = 20;
  std::function<int(int)> level = [&](int n) {
    if (n == 0) return 0;
    Var v = eng.NewVar();
    int x = 0;
    eng.Push({.writes = {v}}, [&] { x = level(n - 1); });
    eng.Wait(v);
    return x + 1;
  };
  EXPECT_EQ(level(kDepth), kDepth);
  eng.WaitAll();
}

TEST_P(NestedWaitTest, NoOpRunsOnAWaitingOpsStack) {
  Engine eng(Quiet(workers()));
  Var gate = eng.NewVar("gate");
  std::vector<Var> outs;
  HeldOp opener = HoldWrite(eng, gate);
  static thread_local int depth = 0;
  std::atomic<int> deepest{0};
  Counter others;
  const auto body = [&](bool waits) {
    deepest = std::max<int>(deepest, ++depth);
    if (waits) eng.Wait(gate);
    --depth;
  };
  for (int i = 0; i < 6; ++i) {
    outs.push_back(eng.NewVar());
    eng.Push({.writes = {outs.back()}}, [&] { body(true); });
  }
  for (int i = 0; i < 100; ++i) {
    outs.push_back(eng.NewVar());
    eng.Push({.writes = {outs.back()}}, [&] {
      body(false);
      others.Add();
    });
  }
  // A thread of its own: with no workers it is this thread's wait that runs the first of the waiting ops.
  std::thread opens([&] {
    others.WaitFor(100);
    opener.Release();
  });
  eng.WaitAll();
  opens.join();
  EXPECT_EQ(deepest, 1);
}

TEST_P(NestedWaitTest, WaitBeyondTheStandInsIsRefused) {
  EngineOptions o = Quiet(workers());
  o.max_spare_threads = 1;
  Engine eng(o);
  Var gate = eng.NewVar("gate");
  HeldOp opener = HoldWrite(eng, gate);
  std::atomic<int> refused{0}, waited{0};
  Counter ended;
  const auto body = [&] {
    try {
      eng.Wait(gate);
      ++waited;
    } catch (const UsageError& e) {
      EXPECT_TRUE(Has(e.what(), "max_spare_threads"));
      ++refused;
    }
    ended.Add();
  };
  constexpr int kOps = 4;
  for (int i = 0; i < kOps; ++i) eng.Push({}, body);
  std::thread driver([&] {  // with no workers somebody has to run them
    if (!workers()) eng.WaitAll();
  });
  ended.WaitFor(kOps - (workers() ? 1 : 2));
  opener.Release();
  driver.join();
  eng.WaitAll();
  EXPECT_EQ(waited + refused, kOps);
  EXPECT_GE(refused, 1);
  EXPECT_GE(waited, 1);
}

TEST_P(NestedWaitTest, StandInsEndWithTheWaits) {
  Engine eng(Quiet(workers()));
  // More waits than the cap on stand-ins: if these did not come back, a wait would be refused. How many are alive at one
  // moment depends on when each is scheduled again.
  for (int round = 0; round < 300; ++round) {
    Var in = eng.NewVar("in"), out = eng.NewVar("out");
    HeldOp held = HoldWrite(eng, in);
    eng.Push({.writes = {out}}, [&] {
      held.Release();
      eng.Wait(in);
    });
    eng.Wait(out);
  }
  EXPECT_LE(eng.stats().spare_threads, 64u);
}

TEST_P(NestedWaitTest, WaitForAVarOfItsOwnIsRefused) {
  Engine eng(Quiet(workers()));
  Var r = eng.NewVar("r"), u = eng.NewVar("u"), w = eng.NewVar("mine");
  eng.Push({.name = "selfish", .reads = {r}, .updates = {u}, .writes = {w}}, [&] {
    for (const Var& v : {r, u, w}) EXPECT_THROW(eng.Wait(v), UsageError);
    EXPECT_THROW(eng.WaitFor(w, 1s), UsageError);
    EXPECT_THROW(eng.WaitToWrite(r), UsageError);
    eng.Wait(w);
  });
  const OpError e = ErrorOf([&] { eng.Wait(w); });
  EXPECT_TRUE(CausedBy<UsageError>(e));
  EXPECT_TRUE(Has(e.what(), "'selfish'"));
  EXPECT_TRUE(Has(e.what(), "'mine'"));
  EXPECT_TRUE(Has(e.what(), "nested_wait_test.cc:"));
}

TEST_P(NestedWaitTest, WaitAllInsideAnOpIsRefused) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Push({.name = "greedy", .writes = {a}}, [&] { eng.WaitAll(); });
  const OpError e = ErrorOf([&] { eng.Wait(a); });
  EXPECT_TRUE(CausedBy<UsageError>(e));
  EXPECT_TRUE(Has(e.what(), "'greedy'"));
}

TEST_P(NestedWaitTest, OpMayWaitForAnotherEngine) {
  Engine eng(Quiet(workers())), other(Quiet(workers()));
  Var out = eng.NewVar("out"), theirs = other.NewVar("theirs");
  bool ran = false;
  eng.Push({.writes = {out}}, [&] {
    other.Push({.writes = {theirs}}, [&] { ran = true; });
    other.Wait(theirs);
    other.WaitAll();
  });
  eng.Wait(out);
  EXPECT_TRUE(ran);
}

TEST_P(NestedWaitTest, ErrorOfANestedWaitFailsTheWaitingOp) {
  Engine eng(Quiet(workers()));
  Var bad = eng.NewVar("bad"), out = eng.NewVar("out");
  Fail(eng, bad, "deep down");
  eng.Push({.name = "outer", .writes = {out}}, [&] { eng.Wait(bad); });
  const OpError e = ErrorOf([&] { eng.Wait(out); });
  EXPECT_EQ(e.op(), "outer");
  EXPECT_TRUE(Has(e.what(), "deep down"));
}

// A wait in one engine's op for another engine's Var.
TEST_P(NestedWaitTest, NoOpOfAnotherEngineRunsOnTheWaitingStack) {
  Engine x(Quiet(workers())), y(Quiet(0));
  Var a = x.NewVar("a"), b = y.NewVar("b");
  static thread_local int depth = 0;
  std::atomic<int> deepest{0};
  const auto body = [&](const std::function<void()>& inside) {
    deepest = std::max<int>(deepest, ++depth);
    inside();
    --depth;
  };
  y.Push({.writes = {b}}, [&] { body([] {}); });
  y.Push({.reads = {b}}, [&] { body([] {}); });
  x.Push({.writes = {a}}, [&] {
    body([&] {
      y.Wait(b);
      y.WaitAll();
    });
  });
  x.Wait(a);
  EXPECT_EQ(deepest, 1);
}

TEST_P(NestedWaitTest, EnginesWhoseOpsWaitForEachOthersOpsGoOn) {
  Engine x(Quiet(workers())), y(Quiet(workers()));
  Var a = x.NewVar("a"), b = y.NewVar("b"), c = x.NewVar("c");
  int ran = 0;
  x.Push({.writes = {a}}, [&] {
    y.Push({.writes = {b}}, [&] {
      x.Push({.writes = {c}}, [&] { ++ran; });
      x.Wait(c);
      ++ran;
    });
    y.Wait(b);
    ++ran;
  });
  x.Wait(a);
  EXPECT_EQ(ran, 3);
}

TEST_P(NestedWaitTest, WithoutStandInsTheWorkerWaitsForAnotherEngineItself) {
  EngineOptions o = Quiet(workers());
  o.max_spare_threads = 1;  // with no workers, who drives meanwhile
  Engine x(std::move(o)), y(Quiet(1));
  Gate gate;
  Var b = y.NewVar("b");
  y.Push({.writes = {b}}, [&] { gate.Wait(); });
  std::vector<Var> waiting;
  for (int i = 0; i < std::max(1, workers()); ++i) {
    waiting.push_back(x.NewVar());
    x.Push({.writes = {waiting.back()}}, [&] { y.Wait(b); });
  }
  EXPECT_TRUE(!workers() || !x.WaitFor(waiting[0], 0ns));
  gate.Open();
  x.WaitAll();
}

}  // namespace
}  // namespace engine::test
