// Named stage pools: how many producers run at once, and who gives a seat up.
#include <atomic>

#include "engine/stage.h"
#include "support/child.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

// Pools live as long as the process, and tests may be repeated in it.
std::string Fresh(const char* name) {
  static int made = 0;
  return std::string(name) + "-" + std::to_string(++made);
}
StagePool Pool(const char* name, int inter, int intra = 1) {
  return MakeStagePool({.global_name = Fresh(name), .inter_op_threads_num = inter, .intra_op_threads_num = intra});
}
StageOptions On(StagePool pool, int threads = 1, size_t capacity = 1) {
  return {.capacity = capacity, .num_threads = threads, .pool = pool};
}

TEST(StagePoolTest, AHandleNamesItsPoolAndANumberThatThereIsNotIsRefused) {
  const StagePool pool = Pool("present", 1);
  EXPECT_FALSE(StagePool());
  EXPECT_TRUE(pool);
  EXPECT_TRUE(pool != Pool("another", 1));
  EXPECT_TRUE(StagePool::Number(pool.number()) == pool);
  const std::string text = RefusalOf([] { StagePool::Number(1000); });
  EXPECT_TRUE(Has(text, "stage_subgraph_thread_pool_id is 1000; the stage pools are"));
  EXPECT_TRUE(Has(text, "('present-"));
  EXPECT_THROW(StagePool::Number(-1), UsageError);
}

TEST(StagePoolTest, PoolsAreRefusedWithoutANameTwiceOrWithoutThreads) {
  const std::string name = Fresh("twice");
  MakeStagePool({.global_name = name, .inter_op_threads_num = 2, .intra_op_threads_num = 3});
  EXPECT_TRUE(Has(RefusalOf([&] { MakeStagePool({.global_name = name}); }), "'" + name + "': the name is taken"));
  EXPECT_TRUE(Has(RefusalOf([] { MakeStagePool({.global_name = ""}); }), "global_name"));
  EXPECT_TRUE(Has(RefusalOf([] { Pool("none", 0); }), "inter_op_threads_num is 0"));
  EXPECT_TRUE(Has(RefusalOf([] { Pool("none", 1, 0); }), "intra_op_threads_num is 0"));
  EXPECT_EQ(StagePools().back().intra_op_threads_num, 3);
}

TEST(StagePoolTest, NoMoreThanItsThreadsRunAtOnceOverAllItsStages) {
  const StagePool pool = Pool("two", 2);
  std::atomic<int> running{0}, most{0};
  const auto make = [&] {
    const int now = ++running;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::yield();
    --running;
    return 1;
  };
  Stage<int> a(On(pool, 4, 4), make), b(On(pool, 4, 4), make);
  for (int i = 0; i < 500; ++i) {
    a.Take();
    b.Take();
  }
  EXPECT_LE(most, 2);
  EXPECT_GE(most, 1);
}

TEST(StagePoolTest, AProducerWithoutRoomGivesItsPlaceUp) {
  const StagePool pool = Pool("one", 1);
  Counter full;
  Stage<int> a(On(pool), [&] { return full.Add(), 1; }), b(On(pool), [] { return 2; });
  a.Start();
  full.WaitFor(2);  // nobody takes from it
  EXPECT_EQ(b.Take(), 2);
}

TEST(StagePoolTest, StagesThatFeedEachOtherOnOnePlaceGoOn) {
  const StagePool pool = Pool("chain", 1);
  Stage<int> rows(On(pool), [n = 0]() mutable { return n++; });
  Stage<int> parsed(
      On(pool, 2), [&] { return rows.Take(); }, [](int x) { return x; });
  Stage<int> ready(
      On(pool, 2), [&] { return parsed.Take(); }, [](int x) { return x; });
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ready.Take(), i);
  rows.Cancel();
}

TEST(StagePoolTest, CancelReachesWhoWaitsForAPlace) {
  const StagePool pool = Pool("held", 1);
  Gate gate;
  Counter inside;
  Stage<int> holder(On(pool), [&] { return inside.Add(), gate.Wait(), 1; });
  holder.Start();
  inside.WaitFor(1);
  Stage<int> waiter(On(pool), [] { return 2; });
  waiter.Start();
  waiter.Cancel();
  EXPECT_TRUE(waiter.JoinFor(20s));
  gate.Open();
}

TEST(StagePoolTest, ParallelForRunsOverAllOfItAndHandsErrorsOn) {
  if (kUnderTsan) GTEST_SKIP() << "oneTBB is not instrumented";
  const StagePool pool = Pool("intra", 1, 2);
  Stage<int> stage(On(pool), [] {
    std::atomic<int> sum{0};
    StageParallelFor(1000, 10, [&](size_t begin, size_t end) { sum += static_cast<int>(end - begin); });
    return sum.load();
  });
  EXPECT_EQ(stage.Take(), 1000);
  Stage<int> failing({}, [] {
    StageParallelFor(10, 3, [](size_t begin, size_t) {
      if (begin == 9) throw std::out_of_range("piece");
    });
    return 1;
  });
  EXPECT_THROW(failing.Take(), std::out_of_range);
}

TEST(StagePoolTest, ParallelForRunsInAForksChild) {
  if (const char* why = WhyNoForks()) GTEST_SKIP() << why;
  const StagePool pool = Pool("forked", 1, 2), busy = Pool("busy", 1, 2);
  const auto sum = [](StagePool on) {
    std::atomic<int> covered{0};
    Stage<int> stage(On(on), [&] {
      StageParallelFor(64, 1, [&](size_t begin, size_t end) { covered += static_cast<int>(end - begin); });
      return 1;
    });
    stage.Take();
    return covered.load();
  };
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) sum(busy);
  });
  for (int i = 0; i < 40 && !HasFailure(); ++i) EXPECT_TRUE(InChild([&] { return sum(pool) >= 64; })) << i;
  stop = true;
  other.join();
}

}  // namespace
}  // namespace engine::test
