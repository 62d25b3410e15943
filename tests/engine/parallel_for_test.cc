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

}  // namespace
}  // namespace engine::test
