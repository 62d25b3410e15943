// Contract 6: handles are counted, deletion waits for pending ops, memory does not grow with the ops pushed.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(LifetimeTest);

TEST_P(LifetimeTest, HandleMayGoWhileOpsAreStillPending) {
  Engine eng(Quiet(workers()));
  Var out = eng.NewVar("out");
  int x = 0;
  HeldOp held;
  {
    Var a = eng.NewVar("a");
    held = eng.PushHeld({.writes = {a}}, [&] { x = 1; });
    eng.Push({.updates = {a}}, [&] { x += 1; });
    eng.Push({.reads = {a}, .writes = {out}}, [&] { x *= 10; });
  }
  EXPECT_FALSE(Done(eng, out));
  held.Release();
  eng.Wait(out);
  EXPECT_EQ(x, 20);
}

TEST_P(LifetimeTest, DeleteEndsAVarBehindItsPendingOps) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), other = a;
  int ran = 0;
  HeldOp held = eng.PushHeld({.writes = {a}}, [&] { ++ran; });
  eng.Push({.updates = {a}}, [&] { ++ran; });
  eng.Delete(a);
  EXPECT_THROW(eng.Push({.reads = {other}}, [] {}), UsageError);
  held.Release();
  eng.WaitAll();
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(other.version(), 2u);
}

TEST_P(LifetimeTest, HandlesMayBeCopiedAndDroppedOnManyThreads) {
  Engine eng(Quiet(workers()));
  for (int round = 0; round < 20; ++round) {
    Var a = eng.NewVar("shared");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&eng, a] {
        for (int i = 0; i < 20; ++i) {
          Var copy = a;
          eng.Push({.updates = {copy}}, [] {});
        }
      });
    a = Var();
    for (auto& t : threads) t.join();
  }
  eng.WaitAll();
  EXPECT_EQ(eng.stats().completed, 20u * 4u * 20u);
}

TEST_P(LifetimeTest, OpsAndVarsAreRecycled) {
  EngineOptions o = Quiet(workers());
  o.max_pending = 256;
  Engine eng(o);
  const auto round = [&] {
    for (int i = 0; i < 50; ++i) {
      Var a = eng.NewVar(), b = eng.NewVar();
      eng.Push({.writes = {a}}, [] {});
      eng.Push({.reads = {a}, .writes = {b}}, [] {});
      eng.PushAsync({.updates = {b}}, [](RunContext&, Completion done) { done(); });
    }
    eng.WaitAll();
  };
  for (int i = 0; i < 20; ++i) round();
  const uint64_t bytes = eng.stats().slab_bytes;
  for (int i = 0; i < 100; ++i) round();
  // A thread more that takes part, or an order not met before, may cost a magazine each; not more.
  EXPECT_LE(eng.stats().slab_bytes, bytes + (512u << 10));
}

TEST_P(LifetimeTest, ClosureIsDestroyedBeforeAWaitReturns) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  auto held = std::make_shared<int>(3);
  std::weak_ptr<int> watch = held;
  eng.Push({.writes = {a}}, [held = std::move(held)] {});
  eng.Wait(a);
  EXPECT_TRUE(watch.expired());
}

TEST_P(LifetimeTest, LargeAndOveralignedClosuresAreKeptWhole) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  struct Big {
    std::array<int, 2000> values;
  } big;
  struct alignas(64) Aligned {
    double x[8];
  } aligned{{1, 2, 3, 4, 5, 6, 7, 8}};
  for (size_t i = 0; i < big.values.size(); ++i) big.values[i] = static_cast<int>(i);
  double sum = 0;
  bool on_line = false;
  eng.Push({.updates = {a}}, [big, &sum] {
    for (int v : big.values) sum += v;
  });
  eng.Push({.updates = {a}}, [aligned, &sum, &on_line] {
    on_line = reinterpret_cast<uintptr_t>(&aligned) % 64 == 0;
    sum += aligned.x[7];
  });
  eng.Wait(a);
  EXPECT_EQ(sum, 1999000 + 8);
  EXPECT_TRUE(on_line);
}

TEST_P(LifetimeTest, VarAndOperatorOutliveTheirEngine) {
  Var a;
  Operator op;
  {
    Engine eng(Quiet(workers()));
    a = eng.NewVar("survivor");
    op = eng.NewOperator({.writes = {a}}, [] {});
    eng.Push(op);
  }
  EXPECT_EQ(a.version(), 1u);
  EXPECT_STREQ(a.name(), "survivor");
  Var copy = a;
  a = Var();
  op = Operator();
}

TEST_P(LifetimeTest, ThreadsThatEndGiveBackWhatTheyHeld) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  const auto round = [&] {
    std::thread([&] {
      for (int i = 0; i < 50; ++i) eng.Push({.updates = {a}}, [] {});
      eng.Wait(a);
    }).join();
  };
  for (int i = 0; i < 10; ++i) round();
  const uint64_t bytes = eng.stats().slab_bytes;
  for (int i = 0; i < 50; ++i) round();
  EXPECT_LE(eng.stats().slab_bytes, bytes + (128u << 10));
  EXPECT_EQ(a.version(), 60u * 50u);
}

TEST_P(LifetimeTest, VarsAreDeletedByTheOpsThatHoldThem) {
  Engine eng(Quiet(workers()));
  Var out = eng.NewVar("out");
  for (int i = 0; i < 50; ++i) {
    Var temp = eng.NewVar("temp");
    eng.Push({.writes = {temp}}, [] {});
    // The closure holds the last handle, which goes while its own op still has the access.
    eng.Push({.reads = {temp}, .updates = {out}}, [temp] {});
  }
  eng.Wait(out);
  eng.WaitAll();
  EXPECT_EQ(out.version(), 50u);
}

}  // namespace
}  // namespace engine::test
