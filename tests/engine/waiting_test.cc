// Contract 5: waits from outside. Waits inside ops are in nested_wait_test.cc.
#include <unistd.h>

#include "support/engine_test.h"
#include "support/threads.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(WaitingTest);

TEST_P(WaitingTest, VarNeverWrittenIsReady) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Wait(a);
  eng.WaitToWrite(a);
  EXPECT_TRUE(eng.WaitFor(a, 0ns));
  eng.WaitAll();
}

TEST_P(WaitingTest, WaitIgnoresReadersAndWaitToWriteDoesNot) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Push({.writes = {a}}, [] {});
  bool read = false;
  HeldOp reader = eng.PushHeld({.reads = {a}}, [&] { read = true; });
  eng.Wait(a);
  EXPECT_FALSE(read);
  std::thread opener([&] { reader.Release(); });
  eng.WaitToWrite(a);
  EXPECT_TRUE(read);
  opener.join();
}

TEST_P(WaitingTest, WaitForSaysNoAtItsTimeAndYesLater) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  HeldOp op = HoldWrite(eng, a);
  EXPECT_FALSE(eng.WaitFor(a, 1ms));
  EXPECT_FALSE(eng.WaitFor(a, 0ns));
  EXPECT_FALSE(eng.WaitFor(a, -1s));
  op.Release();
  EXPECT_TRUE(eng.WaitFor(a, std::chrono::nanoseconds::max()));
}

TEST_P(WaitingTest, TryWaitSaysWhatIsThereAndRunsNothing) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  EXPECT_TRUE(eng.TryWait(a));
  HeldOp op = HoldWrite(eng, a);
  EXPECT_FALSE(eng.TryWait(a));
  op.Release();
  eng.Wait(a);
  EXPECT_TRUE(eng.TryWait(a));
  eng.Push({.writes = {b}}, [] { throw std::runtime_error("late"); });
  EXPECT_TRUE(eng.Drain(60s));
  EXPECT_THROW(eng.TryWait(b), OpError);
}

TEST(TryWaitTest, LeavesTheOpsOfWaitingThreadsAlone) {
  Engine eng(Quiet(0));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  bool ran = false;
  eng.Push({.writes = {a}}, [] { throw std::runtime_error("so that a look has to ask for errors"); });
  EXPECT_THROW(eng.Wait(a), OpError);
  eng.Push({.writes = {b}}, [&] { ran = true; });
  EXPECT_THROW(eng.TryWait(a), OpError);
  EXPECT_FALSE(eng.TryWait(b));
  EXPECT_FALSE(ran);
  eng.Wait(b);
  EXPECT_TRUE(ran && eng.TryWait(b));
}

TEST_P(WaitingTest, AbandonedWaitLeavesNothingBehind) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  const auto round = [&] {
    HeldOp op = HoldWrite(eng, a);
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(eng.WaitFor(a, 0ns));
    op.Release();
    eng.WaitToWrite(a);
  };
  for (int i = 0; i < 3; ++i) round();
  const uint64_t bytes = eng.stats().slab_bytes;
  for (int i = 0; i < 20; ++i) round();
  EXPECT_EQ(eng.stats().slab_bytes, bytes);
  EXPECT_TRUE(Has(eng.DescribePending(), "0 ops are pending"));
}

TEST_P(WaitingTest, AbandonedWaitDoesNotTakeItsErrorAlong) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  HeldOp op = eng.PushHeld({.writes = {a}}, [] { throw std::runtime_error("late"); });
  EXPECT_FALSE(eng.WaitFor(a, 0ns));
  op.Release();
  EXPECT_THROW(eng.Wait(a), OpError);
}

TEST_P(WaitingTest, ManyWaitersOfOneVarAllWake) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  HeldOp op = HoldWrite(eng, a);
  std::vector<std::thread> threads;
  Counter started;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      started.Add();
      t % 2 ? eng.Wait(a) : eng.WaitToWrite(a);
    });
  started.WaitFor(8);
  op.Release();
  for (auto& t : threads) t.join();
}

TEST_P(WaitingTest, WaitAllCoversEveryPushThatReturned) {
  Engine eng(Quiet(workers()));
  std::vector<Var> vars;
  for (int i = 0; i < 10; ++i) vars.push_back(eng.NewVar());
  std::atomic<int> ran{0};
  for (int round = 1; round <= 20; ++round) {
    for (int i = 0; i < 100; ++i) eng.Push({.updates = {vars[static_cast<size_t>(i % 10)]}}, [&] { ++ran; });
    eng.WaitAll();
    ASSERT_EQ(ran, round * 100);
  }
}

TEST_P(WaitingTest, WaitAllWaitsForHeldAndAsyncOps) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp held = HoldWrite(eng, a);
  Slot<Completion> slot;
  eng.PushAsync({.writes = {b}}, [&](RunContext&, Completion done) { slot.Put(std::move(done)); });
  EXPECT_FALSE(eng.WaitAllFor(1ms));
  held.Release();
  EXPECT_FALSE(eng.WaitAllFor(1ms));
  slot.Take()();
  EXPECT_TRUE(eng.WaitAllFor(1h));
}

// The epoch: what is pushed after the call cannot hold it up, not even an op that never ends.
TEST_P(WaitingTest, WaitAllDoesNotWaitForLaterPushes) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp before = HoldWrite(eng, a);
  EXPECT_FALSE(eng.WaitAllFor(0ns));  // begins the epoch that the next call waits for
  HeldOp after = HoldWrite(eng, b);
  before.Release();
  EXPECT_FALSE(Done(eng, b));
  // Only `after` is pending: a call that began before it was pushed would return. Its own call must not.
  EXPECT_FALSE(eng.WaitAllFor(1ms));
  after.Release();
  eng.WaitAll();
}

// The worker takes on `later` before it could find its queue empty.
TEST(WaitAllTest, IsToldByAWorkerThatGoesOnWithLaterOps) {
  Engine eng(Quiet(1));
  Gate first, later;
  eng.Push({.name = "first"}, [&] { first.Wait(); });
  std::atomic<int> waiting{0};
  std::thread waiter([&] {
    waiting = gettid();
    eng.WaitAll();
  });
  AwaitAsleep(waiting);
  eng.Push({.name = "later"}, [&] { later.Wait(); });
  first.Open();
  waiter.join();
  later.Open();
  eng.WaitAll();
}

// This WaitAll drives the caller pool. Its epoch ends while it runs an op of the next one, for which another WaitAll waits.
TEST(WaitAllTest, IsToldByADriverThatLeaves) {
  Engine eng(Quiet(0));
  Var a = eng.NewVar("a");
  Slot<Completion> slot;
  eng.PushAsync({.name = "async", .writes = {a}}, [&](RunContext&, Completion done) { slot.Put(std::move(done)); });
  std::atomic<int> driving{0};
  std::thread driver([&] {
    driving = gettid();
    eng.WaitAll();
  });
  AwaitAsleep(driving);
  Gate running, end;
  eng.Push({.name = "last"}, [&] {
    running.Open();
    end.Wait();
  });
  running.Wait();
  slot.Take()();
  std::atomic<int> waiting{0};
  std::thread waiter([&] {
    waiting = gettid();
    eng.WaitAll();
  });
  AwaitAsleep(waiting);
  end.Open();
  waiter.join();
  driver.join();
}

TEST_P(WaitingTest, SeveralThreadsWaitForAllAtOnce) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        std::atomic<bool> mine{false};
        eng.Push({.updates = {a}}, [&] { mine = true; });
        eng.WaitAll();
        ASSERT_TRUE(mine);
      }
    });
  for (auto& t : threads) t.join();
}

TEST_P(WaitingTest, WaitsMayRaceWithTheEndOfTheOp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  const int rounds = kSanitized ? 300 : 3000;
  for (int i = 0; i < rounds; ++i) {
    eng.Push({.writes = {a}}, [] {});
    if (i % 3 == 0) eng.WaitFor(a, std::chrono::nanoseconds(i));
    if (i % 3 == 1) eng.Wait(a);
    if (i % 3 == 2) eng.WaitToWrite(a);
  }
  eng.Wait(a);
  EXPECT_EQ(a.version(), static_cast<uint64_t>(rounds));
}

TEST_P(WaitingTest, NullAndDeletedVarsAreRefused) {
  Engine eng(Quiet(workers()));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Wait(Var()); }), "null Var"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Wait(Var()); }), "waiting_test.cc:"));
  EXPECT_THROW(eng.WaitFor(Var(), 1s), UsageError);
  EXPECT_THROW(eng.WaitToWrite(Var()), UsageError);
}

}  // namespace
}  // namespace engine::test
