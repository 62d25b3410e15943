// HeldOps: ops for a device start together, one after another; nobody is ever kept waiting by ops that are still held, and
// ops for the host are not held at all.
#include <latch>
#include <optional>

#include "engine/plan.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(OpChainTest);

// A thread that pushes behind, waits, or does anything else that must not be kept waiting.
template <class F>
void Elsewhere(F&& f) {
  std::thread thread(std::forward<F>(f));
  thread.join();
}

TEST_P(OpChainTest, StartsNothingUntilReleased) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  std::vector<int> seen;
  HeldOps held(eng);
  EXPECT_EQ(held.Push({.updates = {a}, .place = Gpu(0)}, [&] { seen.push_back(1); }), 1u);
  EXPECT_EQ(held.Push({.updates = {a}, .place = Gpu(0)}, [&] { seen.push_back(2); }), 2u);
  EXPECT_EQ(eng.stats().completed, 0u);
  held.Release();
  held.Release();
  eng.Wait(a);
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
  EXPECT_EQ(held.Push({.updates = {a}, .place = Gpu(0)}, [&] { seen.push_back(3); }), 1u) << "a chain of its own";
  held.Release();
  eng.Wait(a);
  EXPECT_EQ(seen.size(), 3u);
}

TEST_P(OpChainTest, AWaitOfAnyThreadReleasesWhatItNeeds) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps held(eng);
  bool ran = false;
  held.Push({.writes = {a}, .place = Gpu(0)}, [&] { ran = true; });
  held.Push({.reads = {a}, .writes = {b}, .place = Gpu(0)}, [] {});
  Elsewhere([&] { eng.Wait(b); });
  EXPECT_TRUE(ran);
}

TEST_P(OpChainTest, AWaitForSomethingElseReleasesNothing) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps held(eng);
  held.Push({.writes = {a}, .place = Gpu(0)}, [] {});
  eng.Push({.writes = {b}}, [] {});
  eng.Wait(b);
  EXPECT_EQ(held.Push({.writes = {a}, .place = Gpu(0)}, [] {}), 2u);
}

TEST_P(OpChainTest, OpsForTheHostPassByWhatIsHeld) {
  bool ran = false;  // outlives what is held
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps held(eng);
  EXPECT_TRUE(held.Holds(Gpu(0)));
  EXPECT_TRUE(held.Holds(Gpu(0, 3)));
  EXPECT_TRUE(held.Holds(CopyIn(0))) << "a lane of the device";
  for (const Placement& place : {Cpu(), Io(), CopyIn(1)}) EXPECT_FALSE(held.Holds(place)) << "a thread of the host";
  EXPECT_EQ(held.Push({.updates = {a}, .place = Gpu(0)}, [&] { ran = true; }), 1u);
  for (const Placement& place : {Cpu(), Io(), CopyIn(1)})
    EXPECT_EQ(held.Push({.updates = {b}, .place = place}, [] {}), 0u);
  EXPECT_EQ(held.TryPushErased({.updates = {b}}, detail::RefClosure([] {}), std::source_location::current()), 0u);
  eng.Wait(b);
  EXPECT_EQ(b.version(), 4u);
  EXPECT_EQ(held.Push({.updates = {a}, .place = Gpu(0)}, [] {}), 2u) << "still held";
  EXPECT_FALSE(ran);
}

TEST_P(OpChainTest, AnOpForTheHostThatNeedsAHeldOneReleasesIt) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps held(eng);
  int made = 0, seen = 0;
  held.Push({.writes = {a}, .place = Gpu(0)}, [&] { made = 7; });
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] { made *= 2; });
  EXPECT_EQ(held.Push({.reads = {a}, .writes = {b}}, [&] { seen = made; }), 0u);
  EXPECT_EQ(held.Push({.updates = {b}, .place = Gpu(0)}, [] {}), 1u) << "the two before have been released";
  eng.Wait(b);
  EXPECT_EQ(seen, 14);
}

TEST_P(OpChainTest, AnAsynchronousOpIsNotHeldAndReleasesNothing) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps held(eng);
  held.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  const auto body = [](RunContext&, Completion done) { done(); };
  held.PushPast({.writes = {b}, .place = Gpu(0)}, detail::RefClosure<true>(body), std::source_location::current());
  eng.Wait(b);
  EXPECT_EQ(held.Push({.updates = {a}, .place = Gpu(0)}, [] {}), 2u);
}

// Whether an op for the host runs at its push or on a worker is nothing to what is held.
TEST_P(OpChainTest, AChangeOfPolicyKeepsTheOrder) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  std::vector<int> order;
  HeldOps held(eng);
  const auto on_device = [&](int i) {
    return held.Push({.updates = {a}, .place = Gpu(0)}, [&order, i] { order.push_back(i); });
  };
  on_device(0);
  eng.SetPolicy(Policy::kNaive);
  EXPECT_EQ(on_device(1), 2u) << "a change of policy releases nothing";
  held.Push({.updates = {a}}, [&] { order.push_back(2); });
  on_device(3);
  eng.SetPolicy(Policy::kThreaded);
  EXPECT_EQ(on_device(4), 2u);
  held.Push({.updates = {a}}, [&] { order.push_back(5); });
  eng.WaitAll();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST_P(OpChainTest, WaitToWriteReleasesHeldReaders) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  HeldOps held(eng);
  bool ran = false;
  held.Push({.reads = {a}, .place = Gpu(0)}, [&] { ran = true; });
  Elsewhere([&] { eng.WaitToWrite(a); });
  EXPECT_TRUE(ran);
}

TEST_P(OpChainTest, APushBehindReleases) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOps held(eng);
  held.Push({.writes = {a}, .place = Gpu(0)}, [] {});
  held.Push({.reads = {a}, .writes = {b}, .place = Gpu(0)}, [] {});
  // The readers of a Var are behind its held writer; a wait for c comes through an op that is not held.
  Elsewhere([&] { eng.Push({.reads = {b}, .writes = {c}}, [] {}); });
  Elsewhere([&] { eng.Wait(c); });
}

// In the first run the Var is not free, so it has a gate; the second run is one op, because all of it needs the Var.
TEST_P(OpChainTest, ARunBehindReleases) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  for (const bool has_more : {true, false}) {
    Graph graph;
    std::atomic<bool> ran{false};
    graph.Add({.reads = {a}, .updates = {b}}, [&] { ran = true; });
    if (has_more) graph.Add({.updates = {c}}, [] {});
    const Plan plan = graph.Compile(eng);
    HeldOps held(eng);
    held.Push({.updates = {a}, .place = Gpu(0)}, [] {});
    engine::Run run = plan.Start();
    if (workers() != 0) {
      while (!ran) std::this_thread::yield();
    }
    run.Wait();
    EXPECT_TRUE(ran);
  }
}

TEST_P(OpChainTest, ChainsOfTwoThreadsReleaseEachOther) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps first(eng), second(eng);
  first.Push({.writes = {a}, .place = Gpu(0)}, [] {});
  Elsewhere([&] {
    second.Push({.reads = {a}, .writes = {b}, .place = Gpu(0)}, [] {});
    EXPECT_EQ(second.Push({.updates = {b}, .place = Gpu(0)}, [] {}), 2u) << "its own members do not release it";
  });
  Elsewhere([&] { eng.Wait(b); });
}

TEST_P(OpChainTest, HeldReadersOfSeveralChainsAreAllReleased) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  std::vector<std::unique_ptr<HeldOps>> readers;
  std::atomic<int> ran{0};
  for (int i = 0; i < 3; ++i) {
    readers.push_back(std::make_unique<HeldOps>(eng));
    readers.back()->Push({.reads = {a}, .place = Gpu(0)}, [&] { ++ran; });
  }
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
  EXPECT_EQ(ran, 3);
}

TEST_P(OpChainTest, WaitAllReleasesAll) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps first(eng), second(eng);
  first.Push({.writes = {a}, .place = Gpu(0)}, [] {});
  second.Push({.writes = {b}, .place = Gpu(0)}, [] {});
  Elsewhere([&] { eng.WaitAll(); });
  EXPECT_EQ(eng.stats().completed, 2u);
}

TEST_P(OpChainTest, ShutdownReleasesAllAndOutlivesTheEngine) {
  auto eng = std::make_unique<Engine>(OnDevice(workers()));
  Var a = eng->NewVar("a");
  bool ran = false;
  HeldOps held(*eng);
  held.Push({.writes = {a}, .place = Gpu(0)}, [&] { ran = true; });
  eng->Shutdown();
  EXPECT_TRUE(ran);
  EXPECT_THROW(held.Push({.writes = {a}, .place = Gpu(0)}, [] {}), UsageError);
  eng.reset();
  held.Release();
}

TEST_P(OpChainTest, AMemberMayWaitForALaterOne) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::latch pushed(1);
  HeldOps held(eng);
  held.Push({.writes = {a}, .place = Gpu(0)}, [&] {
    pushed.wait();
    eng.Wait(b);
  });
  held.Push({.writes = {b}, .place = Gpu(0)}, [] {});
  held.Release();
  pushed.count_down();
  eng.Wait(a);
}

TEST_P(OpChainTest, WhatIsBehindAMemberThatWaitsStartsAfterIt) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::latch pushed(1);
  bool over = false;
  HeldOps held(eng);
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] {
    pushed.wait();
    eng.Wait(b);
    over = true;
  });
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] { EXPECT_TRUE(over); });
  held.Push({.writes = {b}, .place = Gpu(0)}, [&] { EXPECT_FALSE(over); });
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] { EXPECT_TRUE(over); });
  held.Release();
  pushed.count_down();
  eng.WaitAll();
  EXPECT_EQ(a.version(), 3u);
}

TEST_P(OpChainTest, AFailureSkipsOnlyWhatDependsOnIt) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOps held(eng);
  bool unrelated = false;
  held.Push({.name = "bad", .writes = {a}, .place = Gpu(0)}, [] { throw std::runtime_error("planted"); });
  held.Push({.name = "after", .reads = {a}, .writes = {b}, .place = Gpu(0)}, [] { FAIL() << "must be skipped"; });
  held.Push({.name = "other", .writes = {c}, .place = Gpu(0)}, [&] { unrelated = true; });
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

TEST_P(OpChainTest, CancelledMembersAreSkipped) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  CancelScope scope;
  HeldOps held(eng);
  held.Push({.writes = {a}, .place = Gpu(0), .cancel = &scope}, [] { FAIL() << "must be skipped"; });
  bool ran = false;
  held.Push({.writes = {b}, .place = Gpu(0)}, [&] { ran = true; });
  scope.Cancel();
  eng.Wait(b);
  EXPECT_TRUE(ran);
}

TEST_P(OpChainTest, DeletingAVarInBetweenCutsNothing) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  HeldOps held(eng);
  {
    Var temporary = eng.NewVar("temporary");
    held.Push({.writes = {temporary}, .place = Gpu(0)}, [] {});
    held.Push({.reads = {temporary}, .writes = {a}, .place = Gpu(0)}, [] {});
  }
  EXPECT_EQ(held.Push({.updates = {a}, .place = Gpu(0)}, [] {}), 3u);
  eng.Wait(a);
}

TEST_P(OpChainTest, ARefusedPushLeavesTheOthersHeld) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), gone = eng.NewVar("gone");
  Var copy = gone;
  eng.Delete(gone);
  HeldOps held(eng);
  EXPECT_THROW(held.Push({.writes = {copy}, .place = Gpu(0)}, [] {}), UsageError);
  EXPECT_EQ(held.Push({.writes = {a}, .place = Gpu(0)}, [] {}), 1u);
  EXPECT_THROW(held.Push({.writes = {copy}, .place = Gpu(0)}, [] {}), UsageError);
  EXPECT_EQ(held.Push({.writes = {a}, .place = Gpu(0)}, [] {}), 2u);
}

// The refused op's closure goes where the chain is not locked: its destructor may push to the same chain.
TEST_P(OpChainTest, TheClosureOfARefusedPushMayPush) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), gone = eng.NewVar("gone");
  Var copy = gone;
  eng.Delete(gone);
  HeldOps held(eng);
  uint32_t count = 0;
  const auto push_at_the_end = [&] {
    return std::shared_ptr<int>(new int(0), [&](int* p) {
      delete p;
      count = held.Push({.updates = {a}, .place = Gpu(0)}, [] {});
    });
  };
  EXPECT_THROW(held.Push({.writes = {copy}, .place = Gpu(0)}, [kept = push_at_the_end()] {}), UsageError);
  EXPECT_EQ(count, 1u);
  EXPECT_THROW(held.Push({.writes = {copy}, .place = Gpu(0)}, [kept = push_at_the_end()] {}), UsageError);
  EXPECT_EQ(count, 2u);
  eng.Wait(a);
  EXPECT_EQ(a.version(), 2u);
}

TEST_P(OpChainTest, APushThatWaitsForRoomReleases) {
  EngineOptions options = OnDevice(workers());
  options.max_pending = 64;
  Engine eng(options);
  Var a = eng.NewVar("a");
  HeldOps held(eng);
  for (int i = 0; i < 1000; ++i) held.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  eng.Wait(a);
  EXPECT_EQ(a.version(), 1000u);
}

TEST(OpChainDispatches, AChainIsOne) {
  Engine eng(OnDevice(1));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOps held(eng);
  for (int bulk = 0; bulk < 10; ++bulk) {
    for (int i = 0; i < 99; ++i) held.Push({.updates = {i % 3 ? a : b}, .place = Gpu(0)}, [] {});
    held.Release();
    eng.WaitAll();
  }
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 10u);
  EXPECT_EQ(eng.stats().completed, 990u);
}

// The block of the first chain is taken anew while its last member still waits: who comes behind that one needs nothing of
// the chain that has the block now.
TEST(OpChainDispatches, AMemberThatWasLetGoIsNoMemberOfTheNextChain) {
  Engine eng(OnDevice(1));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOp outside = HoldWrite(eng, c);
  HeldOps held(eng);
  held.Push({.reads = {c}, .updates = {a}, .place = Gpu(0)}, [] {});
  held.Release();
  held.Push({.updates = {b}, .place = Gpu(0)}, [] {});
  eng.Push({.reads = {a}}, [] {});
  EXPECT_EQ(held.Push({.updates = {b}, .place = Gpu(0)}, [] {}), 2u);
  outside.Release();
}

TEST(OpChainDispatches, TakesNoMemoryInTheSteadyState) {
  Engine eng(OnDevice(1));
  Var a = eng.NewVar("a");
  HeldOps held(eng);
  const auto some = [&] {
    HeldOp first = HoldWrite(eng, a);  // all of them are pending at once, every time
    for (int i = 0; i < 3000; ++i)
      if (held.Push({.updates = {a}, .place = Gpu(0)}, [] {}) == 15) held.Release();
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
    EXPECT_EQ(Redirect::Of(eng, Cpu()), &recorder);
    EXPECT_EQ(Redirect::Of(other, Cpu()), nullptr);
  }
  eng.Push({.writes = {a}}, [] {});
  eng.WaitAll();
  EXPECT_EQ(recorder.seen, 1);
  EXPECT_EQ(a.version(), 2u);
}

// Those of a bulk and of ops that it would hold; what it is in front of comes before it.
TEST(Redirected, OneThatYieldsTakesOnlyWhatHasAPlacementOfItsOwn) {
  Engine eng(OnDevice(1));
  struct Recorder final : Submitter {
    int seen = 0;
    void Submit(const OpDesc&, detail::ClosureRef, Site) override { ++seen; }
  } first, yields;
  {
    const Redirect redirect(eng, yields, Redirect::Rank::kYields);
    bool ran = false;
    eng.Push({.name = "host"}, [&] { ran = true; });
    EXPECT_TRUE(eng.TryPush({.name = "host"}, [] {}));
    eng.WaitAll();
    EXPECT_TRUE(ran);
    eng.Push({.place = Gpu(0)}, [] { FAIL() << "recorded, not run"; });
    EXPECT_EQ(yields.seen, 1);
    EXPECT_EQ(Redirect::Of(eng, Cpu()), nullptr);
    const Redirect capture(eng, first);
    eng.Push({.name = "host"}, [] { FAIL() << "recorded, not run"; });
    eng.Push({.place = Gpu(0)}, [] { FAIL() << "recorded, not run"; });
  }
  EXPECT_EQ(first.seen, 2);
  EXPECT_EQ(yields.seen, 1);
}

// A yielding one notes whether one that takes every op lies outside of it. That one may be another engine's, or end first.
TEST(Redirected, OneThatYieldsPassesHostOpsBesideCapturesThatAreNotForThem) {
  Engine eng(OnDevice(1)), other({.workers = 0});
  struct Recorder final : Submitter {
    int seen = 0;
    void Submit(const OpDesc&, detail::ClosureRef, Site) override { ++seen; }
  } captured, yields;
  int ran = 0;
  const auto push = [&] { eng.Push({.name = "host"}, [&] { ++ran; }), eng.WaitAll(); };
  std::optional<Redirect> foreign(std::in_place, other, captured), ended(std::in_place, eng, captured);
  const Redirect inside(eng, yields, Redirect::Rank::kYields);
  push();
  EXPECT_EQ(captured.seen, 1);
  ended.reset();
  push();
  foreign.reset();
  push();
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(captured.seen, 1);
  EXPECT_EQ(yields.seen, 0);
}

}  // namespace
}  // namespace engine::test
