// HeldOps: members start together, one after another; nobody is ever kept waiting by ops that are still held.
#include <latch>

#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(HeldChainTest);

// A thread that pushes behind, waits, or does anything else that must not be kept waiting.
template <class F>
void Elsewhere(F&& f) {
  std::thread thread(std::forward<F>(f));
  thread.join();
}

TEST_P(HeldChainTest, StartsNothingUntilReleased) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::vector<int> seen;
  HeldOps held(eng);
  EXPECT_EQ(held.Push({.updates = {a}}, [&] { seen.push_back(1); }), 1u);
  EXPECT_EQ(held.Push({.updates = {a}}, [&] { seen.push_back(2); }), 2u);
  EXPECT_EQ(eng.stats().completed, 0u);
  held.Release();
  held.Release();
  eng.Wait(a);
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
  EXPECT_EQ(held.Push({.updates = {a}}, [&] { seen.push_back(3); }), 1u) << "a chain of its own";
  held.Release();
  eng.Wait(a);
  EXPECT_EQ(seen.size(), 3u);
}

TEST_P(HeldChainTest, AWaitOfAnyThreadReleasesWhatItNeeds) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps held(eng);
  bool ran = false;
  held.Push({.writes = {a}}, [&] { ran = true; });
  held.Push({.reads = {a}, .writes = {b}}, [] {});
  Elsewhere([&] { eng.Wait(b); });
  EXPECT_TRUE(ran);
}

TEST_P(HeldChainTest, AWaitForSomethingElseReleasesNothing) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps held(eng);
  held.Push({.writes = {a}}, [] {});
  eng.Push({.writes = {b}}, [] {});
  eng.Wait(b);
  EXPECT_EQ(held.Push({.writes = {a}}, [] {}), 2u);
}

TEST_P(HeldChainTest, WaitToWriteReleasesHeldReaders) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  HeldOps held(eng);
  bool ran = false;
  held.Push({.reads = {a}}, [&] { ran = true; });
  Elsewhere([&] { eng.WaitToWrite(a); });
  EXPECT_TRUE(ran);
}

TEST_P(HeldChainTest, APushBehindReleases) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOps held(eng);
  held.Push({.writes = {a}}, [] {});
  held.Push({.reads = {a}, .writes = {b}}, [] {});
  // The readers of a Var are behind its held writer; a wait for c comes through an op that is not held.
  Elsewhere([&] { eng.Push({.reads = {b}, .writes = {c}}, [] {}); });
  Elsewhere([&] { eng.Wait(c); });
}

TEST_P(HeldChainTest, ChainsOfTwoThreadsReleaseEachOther) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps first(eng), second(eng);
  first.Push({.writes = {a}}, [] {});
  Elsewhere([&] {
    second.Push({.reads = {a}, .writes = {b}}, [] {});
    EXPECT_EQ(second.Push({.updates = {b}}, [] {}), 2u) << "its own members do not release it";
  });
  Elsewhere([&] { eng.Wait(b); });
}

TEST_P(HeldChainTest, HeldReadersOfSeveralChainsAreAllReleased) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::vector<std::unique_ptr<HeldOps>> readers;
  std::atomic<int> ran{0};
  for (int i = 0; i < 3; ++i) {
    readers.push_back(std::make_unique<HeldOps>(eng));
    readers.back()->Push({.reads = {a}}, [&] { ++ran; });
  }
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
  EXPECT_EQ(ran, 3);
}

TEST_P(HeldChainTest, WaitAllReleasesAll) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps first(eng), second(eng);
  first.Push({.writes = {a}}, [] {});
  second.Push({.writes = {b}}, [] {});
  Elsewhere([&] { eng.WaitAll(); });
  EXPECT_EQ(eng.stats().completed, 2u);
}

TEST_P(HeldChainTest, ShutdownReleasesAllAndOutlivesTheEngine) {
  auto eng = std::make_unique<Engine>(Quiet(workers()));
  Var a = eng->NewVar("a");
  bool ran = false;
  HeldOps held(*eng);
  held.Push({.writes = {a}}, [&] { ran = true; });
  eng->Shutdown();
  EXPECT_TRUE(ran);
  EXPECT_THROW(held.Push({.writes = {a}}, [] {}), UsageError);
  eng.reset();
  held.Release();
}

TEST_P(HeldChainTest, AMemberThatWaitsForAnOpOutsideSplitsTheRun) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOp outside = HoldWrite(eng, b);
  HeldOps held(eng);
  bool last = false;
  held.Push({.writes = {a}}, [] {});
  held.Push({.reads = {b}, .writes = {c}}, [] {});
  held.Push({.updates = {c}}, [&] { last = true; });
  held.Release();
  eng.Wait(a);
  EXPECT_FALSE(Done(eng, c));
  outside.Release();
  eng.Wait(c);
  EXPECT_TRUE(last);
}

// What it waits for may itself wait for a member behind it.
TEST_P(HeldChainTest, AMemberThatWaitsOutsideHoldsBackOnlyWhatDependsOnIt) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOp outside = HoldWrite(eng, a);
  HeldOps held(eng);
  std::vector<int> after_a;
  held.Push({.updates = {a}}, [&] { after_a.push_back(1); });
  held.Push({.updates = {b}}, [] {});
  held.Push({.updates = {a}}, [&] { after_a.push_back(2); });
  held.Push({.reads = {b}, .writes = {c}}, [] {});
  held.Push({.reads = {a, c}}, [&] { after_a.push_back(3); });
  held.Release();
  eng.Wait(c);
  EXPECT_TRUE(after_a.empty());
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(after_a, (std::vector<int>{1, 2, 3}));
}

TEST_P(HeldChainTest, AMemberOfFewerVarsDoesNotWaitForOneOfMore) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), done = eng.NewVar("done");
  HeldOp outside = HoldWrite(eng, b);
  HeldOps held(eng);
  bool ran = false;
  held.Push({.reads = {a, b}}, [&] { ran = true; });
  held.Push({.reads = {a}, .writes = {done}}, [] {});
  held.Release();
  eng.Wait(done);
  EXPECT_FALSE(ran);
  outside.Release();
  eng.WaitAll();
  EXPECT_TRUE(ran);
}

TEST_P(HeldChainTest, AMembersBodyMayEndWhatAnEarlierMemberWaitsFor) {
  Engine eng(Quiet(workers()));
  Var received = eng.NewVar("received"), sent = eng.NewVar("sent");
  Completion arrived;
  Gate started;
  eng.PushAsync({.name = "receive", .writes = {received}}, [&](RunContext&, Completion done) {
    arrived = std::move(done);
    started.Open();
  });
  HeldOps held(eng);
  bool used = false;
  held.Push({.name = "use", .reads = {received}}, [&] { used = true; });
  held.Push({.name = "send", .writes = {sent}}, [&] {
    started.Wait();
    arrived();
  });
  held.Release();
  eng.WaitAll();
  EXPECT_TRUE(used);
}

TEST_P(HeldChainTest, ManyVarsOfABlockedMemberAreAllLookedAt) {
  Engine eng(Quiet(workers()));
  std::vector<Var> vars;
  for (int i = 0; i < 100; ++i) vars.push_back(eng.NewVar());
  Var free = eng.NewVar("free");
  HeldOp outside = HoldWrite(eng, vars[0]);
  HeldOps held(eng);
  std::vector<int> order;
  held.Push({.updates = vars}, [&] { order.push_back(0); });
  for (int i = 1; i < 100; ++i) held.Push({.updates = {vars[static_cast<size_t>(i)]}}, [&, i] { order.push_back(i); });
  held.Push({.writes = {free}}, [] {});
  held.Release();
  eng.Wait(free);
  EXPECT_TRUE(order.empty());
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(order.size(), 100u);
  EXPECT_EQ(order[0], 0);
}

TEST_P(HeldChainTest, AMemberMayWaitForALaterOne) {
  if (workers() == 0) GTEST_SKIP() << "nobody would run the later one while a caller's thread waits inside an op";
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::latch pushed(1);
  HeldOps held(eng);
  held.Push({.writes = {a}}, [&] {
    pushed.wait();
    eng.Wait(b);
  });
  held.Push({.writes = {b}}, [] {});
  held.Release();
  pushed.count_down();
  eng.Wait(a);
}

// Members that follow one another by a write need no grants, unless somebody starts them out of turn: here, where one leaves
// its chain to wait.
TEST_P(HeldChainTest, WhatIsBehindAMemberThatWaitsStartsAfterIt) {
  if (workers() == 0) GTEST_SKIP() << "nobody would run the later one while a caller's thread waits inside an op";
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::latch pushed(1);
  bool over = false;
  HeldOps held(eng);
  held.Push({.updates = {a}}, [&] {
    pushed.wait();
    eng.Wait(b);
    over = true;
  });
  held.Push({.updates = {a}}, [&] { EXPECT_TRUE(over); });
  held.Push({.writes = {b}}, [&] { EXPECT_FALSE(over); });
  held.Push({.updates = {a}}, [&] { EXPECT_TRUE(over); });
  held.Release();
  pushed.count_down();
  eng.WaitAll();
  EXPECT_EQ(a.version(), 3u);
}

// And here, where a split puts them into two chains: the last depends on the first, which waits, and on the second.
TEST_P(HeldChainTest, ASplitKeepsTheOrderBetweenItsParts) {
  if (workers() < 2) GTEST_SKIP() << "one thread runs them one after another";
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp outside = HoldWrite(eng, a);
  Gate running, finish;
  bool over = false;
  HeldOps held(eng);
  held.Push({.updates = {a}}, [] {});
  held.Push({.updates = {b}}, [&] {
    running.Open();
    finish.Wait();
    over = true;
  });
  held.Push({.updates = {a, b}}, [&] { EXPECT_TRUE(over); });
  held.Release();
  running.Wait();
  outside.Release();
  eng.Push({},
           [&] { finish.Open(); });  // of two workers, the other one comes to it when the first part has no more to run
  eng.WaitAll();
  EXPECT_EQ(b.version(), 2u);
}

// The chain's block is taken anew while its last member still waits for an op outside: the next member is another chain's.
TEST_P(HeldChainTest, AMemberOfAnotherChainIsNoPredecessorInTurn) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp outside = HoldWrite(eng, b);
  HeldOps held(eng);
  std::vector<int> order;
  held.Push({.reads = {b}, .updates = {a}}, [&] { order.push_back(1); });
  held.Release();
  held.Push({.updates = {a}}, [&] { order.push_back(2); });
  held.Release();
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST_P(HeldChainTest, AFailureSkipsOnlyWhatDependsOnIt) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOps held(eng);
  bool unrelated = false;
  held.Push({.name = "bad", .writes = {a}}, [] { throw std::runtime_error("planted"); });
  held.Push({.name = "after", .reads = {a}, .writes = {b}}, [] { FAIL() << "must be skipped"; });
  held.Push({.name = "other", .writes = {c}}, [&] { unrelated = true; });
  held.Release();
  eng.Wait(c);
  EXPECT_TRUE(unrelated);
  try {
    eng.Wait(b);
    FAIL() << "the error was lost";
  } catch (const OpError& e) {
    EXPECT_EQ(e.op(), "bad");
  }
}

TEST_P(HeldChainTest, CancelledMembersAreSkipped) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  CancelScope scope;
  HeldOps held(eng);
  held.Push({.writes = {a}, .cancel = &scope}, [] { FAIL() << "must be skipped"; });
  bool ran = false;
  held.Push({.writes = {b}}, [&] { ran = true; });
  scope.Cancel();
  eng.Wait(b);
  EXPECT_TRUE(ran);
}

TEST_P(HeldChainTest, DeletingAVarInBetweenCutsNothing) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  HeldOps held(eng);
  {
    Var temporary = eng.NewVar("temporary");
    held.Push({.writes = {temporary}}, [] {});
    held.Push({.reads = {temporary}, .writes = {a}}, [] {});
  }
  EXPECT_EQ(held.Push({.updates = {a}}, [] {}), 3u);
  eng.Wait(a);
}

TEST_P(HeldChainTest, ARefusedPushLeavesTheOthersHeld) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), gone = eng.NewVar("gone");
  Var copy = gone;
  eng.Delete(gone);
  HeldOps held(eng);
  EXPECT_THROW(held.Push({.writes = {copy}}, [] {}), UsageError);
  EXPECT_EQ(held.Push({.writes = {a}}, [] {}), 1u);
  EXPECT_THROW(held.Push({.writes = {copy}}, [] {}), UsageError);
  EXPECT_EQ(held.Push({.writes = {a}}, [] {}), 2u);
}

TEST_P(HeldChainTest, APushThatWaitsForRoomReleases) {
  EngineOptions options = Quiet(workers());
  options.max_pending = 64;
  Engine eng(options);
  Var a = eng.NewVar("a");
  HeldOps held(eng);
  for (int i = 0; i < 1000; ++i) held.Push({.updates = {a}}, [] {});
  eng.Wait(a);
  EXPECT_EQ(a.version(), 1000u);
}

TEST(HeldChainDispatches, AChainIsOne) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps held(eng);
  for (int bulk = 0; bulk < 10; ++bulk) {
    for (int i = 0; i < 99; ++i) held.Push({.updates = {i % 3 ? a : b}}, [] {});
    held.Release();
    eng.Wait(a);
    eng.Wait(b);
  }
  EXPECT_EQ(eng.stats().dispatches, 10u);
  EXPECT_EQ(eng.stats().completed, 990u);
}

TEST(HeldChainDispatches, ReadersThatWaitForOneWriterAreOne) {
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp outside = HoldWrite(eng, a);
  HeldOps held(eng);
  std::vector<int> order;
  for (int i = 0; i < 10; ++i) held.Push({.reads = {a}}, [&order, i] { order.push_back(i); });
  held.Push({.reads = {a, b}}, [&] { order.push_back(10); });
  held.Release();
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 2u) << "the write, and the readers";
  for (int i = 0; i <= 10; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(HeldChainDispatches, TakesNoMemoryInTheSteadyState) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("a");
  HeldOps held(eng);
  const auto some = [&] {
    HeldOp first = HoldWrite(eng, a);  // all of them are pending at once, every time
    for (int i = 0; i < 3000; ++i)
      if (held.Push({.updates = {a}}, [] {}) == 15) held.Release();
    first.Release();
    eng.WaitAll();
  };
  uint64_t before = 0;
  for (int attempt = 0; attempt < 5 && before != eng.stats().slab_allocations; ++attempt) {
    some();  // what a worker still has in its cache, others may have to make: that ends once it has slept
    before = eng.stats().slab_allocations;
    some();
  }
  EXPECT_EQ(eng.stats().slab_allocations, before);
}

TEST(Redirected, PushesGoToTheDecoratorAndOnlyOfThisThread) {
  Engine eng(Quiet(1));
  Engine other(Quiet(1));
  Var a = eng.NewVar("a"), b = other.NewVar("b");
  struct Recorder final : Submitter {
    int seen = 0;
    void Submit(const OpDesc&, detail::ClosureRef, Site) override { ++seen; }
  } recorder;
  {
    Redirect redirect(eng, recorder);
    eng.Push({.writes = {a}}, [] { FAIL() << "recorded, not run"; });
    other.Push({.writes = {b}}, [] {});
    Elsewhere([&] { eng.Push({.writes = {a}}, [] {}); });
    EXPECT_EQ(Redirect::Of(eng), &recorder);
    EXPECT_EQ(Redirect::Of(other), nullptr);
  }
  eng.Push({.writes = {a}}, [] {});
  eng.WaitAll();
  EXPECT_EQ(recorder.seen, 1);
  EXPECT_EQ(a.version(), 2u);
}

}  // namespace
}  // namespace engine::test
