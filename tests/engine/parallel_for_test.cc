// ParallelFor: the pieces of one op, on the pool's arena, isolated from other ops.
#include "support/engine_test.h"

namespace engine::test {
namespace {

// oneTBB of the system is not built for ThreadSanitizer, which then cannot see what it orders.
class ParallelForTest : public WorkersTest {
 protected:
  void SetUp() override {
    if (kUnderTsan) GTEST_SKIP() << "oneTBB is not instrumented";
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, ParallelForTest, testing::Values(0, 1, 2, 4, 8),
                         [](const auto& instance) { return std::to_string(instance.param); });

TEST_P(ParallelForTest, CoversEachIndexOnce) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::vector<std::atomic<int>> hits(10'007);
  eng.Push({.writes = {a}}, [&](RunContext& ctx) {
    ctx.ParallelFor(hits.size(), 16, [&](size_t begin, size_t end) {
      EXPECT_LT(begin, end);
      for (size_t i = begin; i < end; ++i) ++hits[i];
    });
    ctx.ParallelFor(0, 1, [](size_t, size_t) { FAIL() << "nothing to do"; });
    ctx.ParallelFor(1, 0, [&](size_t begin, size_t end) { EXPECT_EQ(end - begin, 1u); });
  });
  eng.Wait(a);
  for (auto& h : hits) ASSERT_EQ(h, 1);
}

TEST_P(ParallelForTest, ExceptionOfAPieceFailsTheOp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Push({.name = "kernel", .writes = {a}}, [](RunContext& ctx) {
    ctx.ParallelFor(100, 1, [](size_t begin, size_t end) {
      if (begin <= 50 && 50 < end) throw std::out_of_range("row 50");
    });
  });
  const OpError e = ErrorOf([&] { eng.Wait(a); });
  EXPECT_EQ(e.op(), "kernel");
  EXPECT_TRUE(CausedBy<std::out_of_range>(e));
}

TEST_P(ParallelForTest, NoOtherOpRunsOnItsStack) {
  EngineOptions o = Quiet(workers());
  o.intra_op_threads = 4;
  Engine eng(o);
  static thread_local int depth = 0;
  std::atomic<int> deepest{0}, pieces{0};
  std::vector<Var> vars;
  for (int i = 0; i < 8; ++i) {
    vars.push_back(eng.NewVar());
    eng.Push({.writes = {vars.back()}}, [&](RunContext& ctx) {
      deepest = std::max<int>(deepest, ++depth);
      ctx.ParallelFor(64, 1, [&](size_t, size_t) { ++pieces; });
      --depth;
    });
  }
  eng.WaitAll();
  EXPECT_EQ(deepest, 1);
  EXPECT_GT(pieces, 0);
}

TEST_P(ParallelForTest, MayBeNestedAndUsedOnEveryPool) {
  EngineOptions o = Quiet(workers());
  o.pools = {{.name = "other", .threads = 2}};
  Engine eng(o);
  std::atomic<int> sum{0};
  for (const Placement& place : {Cpu(), Io(), CopyIn(), eng.Pool("other")})
    eng.Push({.place = place}, [&](RunContext& ctx) {
      ctx.ParallelFor(4, 1, [&](size_t b, size_t e) {
        for (size_t i = b; i < e; ++i)
          ctx.ParallelFor(4, 1, [&](size_t bb, size_t ee) { sum += static_cast<int>(ee - bb); });
      });
    });
  eng.WaitAll();
  EXPECT_EQ(sum, 4 * 16);
}

// Pieces that run on oneTBB's threads are inside their op all the same.
class PiecesTest : public ParallelForTest {
 protected:
  static EngineOptions Options(int workers) {
    EngineOptions o = Quiet(workers);
    o.intra_op_threads = 4;
    o.max_pending = 8;
    return o;
  }
  // ParallelFor over many pieces, the first of which wait for another thread to come, as long as one may be expected.
  static void ForPieces(RunContext& ctx, const std::function<void()>& piece) {
    const auto caller = std::this_thread::get_id();
    std::atomic<bool> others{false};
    ctx.ParallelFor(64, 1, [&](size_t begin, size_t end) {
      if (std::this_thread::get_id() != caller) others = true;
      for (int i = 0; i < 20'000 && !others; ++i) std::this_thread::yield();
      for (; begin < end; ++begin) piece();
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, PiecesTest, testing::Values(0, 1, 2),
                         [](const auto& instance) { return std::to_string(instance.param); });

TEST_P(PiecesTest, PushWithoutWaitingForRoom) {
  Engine eng(Options(workers()));
  Var a = eng.NewVar("a");
  std::atomic<int> ran{0}, refused{0};
  eng.Push({.writes = {a}}, [&](RunContext& ctx) {
    ForPieces(ctx, [&] {
      for (int i = 0; i < 20; ++i) refused += !eng.TryPush({.updates = {a}}, [&] { ++ran; });
    });
  });
  eng.Wait(a);
  eng.Wait(a);
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(ran, 64 * 20);
}

// Under naive it would run inside the piece, whose thread has no role to lend.
TEST_P(PiecesTest, PushOpsThatMayWaitUnderAnyPolicy) {
  Engine eng(Options(workers()));
  for (const Policy policy : {Policy::kThreaded, Policy::kNaive, Policy::kInline}) {
    eng.SetPolicy(policy);
    Var a = eng.NewVar("a");
    std::atomic<int> waited{0};
    eng.Push({.name = "outer", .writes = {a}}, [&](RunContext& ctx) {
      ForPieces(ctx, [&] {
        eng.Push({.name = "waits"}, [&] {
          Var inner = eng.NewVar("inner");
          eng.Push({.writes = {inner}}, [] {});
          eng.Wait(inner);
          ++waited;
        });
      });
    });
    eng.WaitAll();
    eng.WaitAll();  // what bodies pushed, too
    EXPECT_EQ(waited, 64);
  }
}

TEST_P(PiecesTest, MayNotWaitForOpsOfTheirEngine) {
  Engine eng(Options(workers()));
  Var a = eng.NewVar("a"), other = eng.NewVar("other");
  std::atomic<int> own{0}, others{0}, all{0}, ends{0};
  eng.Push({.name = "outer", .writes = {a}}, [&](RunContext& ctx) {
    ForPieces(ctx, [&] {
      own += Has(RefusalOf([&] { eng.WaitFor(a, 0ns); }), "names itself");
      others += Has(RefusalOf([&] { eng.WaitFor(other, 0ns); }), "piece of ParallelFor of op 'outer'");
      all += Has(RefusalOf([&] { eng.WaitAllFor(0ns); }), "would wait for itself");
      ends += Has(RefusalOf([&] { eng.Shutdown(); }), "would wait for itself");
    });
    eng.Wait(other);  // the op itself may
  });
  eng.Wait(a);
  EXPECT_EQ(own, 64);
  EXPECT_EQ(others, 64);
  EXPECT_EQ(all, 64);
  EXPECT_EQ(ends, 64);
}

TEST_P(PiecesTest, PushWhileTheEngineDrains) {
  std::atomic<int> ran{0};
  {
    Engine eng(Options(workers()));
    Var hold = eng.NewVar("hold");
    HeldOp held = HoldWrite(eng, hold);  // released by the shutdown
    eng.Push({.reads = {hold}}, [&](RunContext& ctx) { ForPieces(ctx, [&] { eng.Push({}, [&] { ++ran; }); }); });
    eng.Shutdown();
  }
  EXPECT_EQ(ran, 64);
}

TEST_P(PiecesTest, PushUnderTheScopesOfTheirOp) {
  Engine eng(Options(workers()));
  Var a = eng.NewVar("a");
  std::atomic<int> ran{0}, naive{0};
  eng.Push({.writes = {a}}, [&](RunContext& ctx) {
    CancelScope scope;
    const auto under = scope.Enter();
    ForPieces(ctx, [&] { eng.Push({.updates = {a}}, [&] { ++ran; }); });
    scope.Cancel();
  });
  Var b = eng.NewVar("b");
  eng.Push({.writes = {b}}, [&](RunContext& ctx) {
    const PolicyScope under = eng.EnterPolicy({Policy::kNaive, {}});
    ForPieces(ctx, [&] { naive += eng.policy() == Policy::kNaive; });
  });
  eng.WaitAll();
  EXPECT_TRUE(CausedBy<CancelledError>(ErrorOf([&] { eng.Wait(a); })));
  EXPECT_EQ(ran, 0);
  eng.Wait(b);
  EXPECT_EQ(naive, 64);
}

TEST_P(PiecesTest, MayWaitForAnotherEnginesOps) {
  Engine eng(Options(workers())), inner(Options(1));
  Var a = eng.NewVar("a"), b = inner.NewVar("b");
  inner.Push({.writes = {b}}, [] {});
  std::atomic<int> waited{0};
  eng.Push({.writes = {a}}, [&](RunContext& ctx) {
    ForPieces(ctx, [&] {
      inner.Wait(b);  // of another engine: its ops need nothing of ours
      ++waited;
    });
  });
  eng.Wait(a);
  EXPECT_EQ(waited, 64);
}

}  // namespace
}  // namespace engine::test
