// Bulk: what it merges, what ends it, and that nobody can tell but by the number of dispatches.
#include "engine/bulk.h"

#include "engine/testing/bulk_clock.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(BulkTest);

template <class F>
void Elsewhere(F&& f) {
  std::thread thread(std::forward<F>(f));
  thread.join();
}

bool Started(const Engine& eng, uint64_t ops) { return eng.stats().completed >= ops; }

TEST_P(BulkTest, HoldsUntilTheScopeEnds) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  std::vector<int> seen;
  {
    Bulk bulk(eng);
    for (int i = 0; i < 5; ++i) eng.Push({.updates = {a}, .place = Gpu(0)}, [&seen, i] { seen.push_back(i); });
    bulk.Push({.updates = {a}, .place = Gpu(0)}, [&] { seen.push_back(5); });
    EXPECT_EQ(eng.stats().pushed, 6u);
    EXPECT_FALSE(Started(eng, 1));
  }
  eng.Wait(a);
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST(BulkCounters, AThousandOpsInBulksOf15Are67DispatchesAndAThousandNames) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(1));
  Var a = eng.NewVar("a");
  eng.StartTrace();
  {
    Bulk bulk(eng);
    for (int i = 0; i < 1000; ++i)
      eng.Push({.name = Name::Intern("op" + std::to_string(i)), .updates = {a}, .place = Gpu(0)}, [] {});
  }
  eng.Wait(a);
  const auto events = eng.StopTrace().events;
  ASSERT_EQ(events.size(), 1000u);
  for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(std::string(events[i].name), "op" + std::to_string(i));
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 67u);
  EXPECT_EQ(eng.stats().completed, 1000u);
}

TEST(BulkCounters, IndependentOpsOfABulkAreOneDispatchToo) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(4));
  {
    Bulk bulk(eng, 64);
    for (int i = 0; i < 64; ++i) eng.Push({.name = "free", .place = Gpu(0)}, [] {});
  }
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 1u);
}

TEST_P(BulkTest, OfOneOrNoneHoldsNothing) {
  const ManualBulkClock bulk_clock;
  for (int limit : {0, 1}) {
    Engine eng(OnDevice(workers()));
    Var a = eng.NewVar("a");
    const Bulk bulk(eng, limit);
    for (int i = 0; i < 10; ++i) eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
    EXPECT_FALSE(ManualBulkClock().Tick()) << "no bulk is open";
    eng.Wait(a);
    eng.WaitAll();
    EXPECT_EQ(eng.stats().dispatches, 10u);
  }
}

TEST_P(BulkTest, AnotherPlacementOrPriorityEndsIt) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  const OpDesc ends[] = {{.name = "lane", .place = CopyIn(0)}, {.name = "urgent", .place = Gpu(0), .priority = 1}};
  for (const OpDesc& other : ends) {
    const uint64_t before = eng.stats().dispatches;
    {
      Bulk bulk(eng);
      for (int i = 0; i < 3; ++i) eng.Push({.name = "first", .place = Gpu(0)}, [] {});
      for (int i = 0; i < 3; ++i) eng.Push(other, [] {});
      eng.Push({.name = "third", .place = Gpu(0)}, [] {});
    }
    eng.WaitAll();
    EXPECT_EQ(eng.stats().dispatches - before, 3u) << other.name.c_str();
  }
}

TEST_P(BulkTest, PriorityBeyondTheRangeIsRefusedAndTheBulkGoesOn) {
  Engine eng(OnDevice(workers()));
  int ran = 0;
  {
    Bulk bulk(eng);
    Var a = eng.NewVar("a");
    eng.Push({.updates = {a}, .place = Gpu(0)}, [&] { ++ran; });
    EXPECT_TRUE(Has(RefusalOf([&] {
                      eng.Push({.name = "late", .updates = {a}, .place = Gpu(0), .priority = 3}, [&] { ran += 100; });
                    }),
                    "priority is 3"));
    eng.Push({.updates = {a}, .place = Gpu(0)}, [&] { ++ran; });
  }
  eng.WaitAll();
  EXPECT_EQ(ran, 2);
}

TEST_P(BulkTest, AnAsynchronousOpForADeviceEndsItAndStartsByItself) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  const Bulk bulk(eng);
  eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  EXPECT_TRUE(bulk_clock.Tick());
  eng.PushAsync({.place = Gpu(0)}, [](RunContext&, Completion done) { done(); });
  EXPECT_FALSE(bulk_clock.Tick()) << "nothing is held any more";
}

TEST_P(BulkTest, AMillisecondWithoutAPushEndsIt) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  const Bulk bulk(eng);
  EXPECT_FALSE(bulk_clock.Tick());
  eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  EXPECT_TRUE(bulk_clock.Tick());  // seen for the first time
  eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  EXPECT_TRUE(bulk_clock.Tick());  // moved
  EXPECT_FALSE(Started(eng, 1));
  EXPECT_TRUE(bulk_clock.Tick());  // silent: released
  EXPECT_FALSE(bulk_clock.Tick()) << "the clock may sleep";
  while (!Started(eng, 2)) std::this_thread::yield();  // without anybody's wait
  eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  EXPECT_TRUE(bulk_clock.Tick()) << "open again";
  EXPECT_TRUE(bulk_clock.Tick());
  EXPECT_FALSE(bulk_clock.Tick());
  eng.Wait(a);
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 2u);
}

TEST(BulkClock, ReleasesByItselfAgainAndAgain) {
  Engine eng(OnDevice(2));
  Var a = eng.NewVar("a");
  const Bulk bulk(eng);
  for (uint64_t i = 1; i <= 3; ++i) {  // between two of them the clock goes to sleep
    eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
    while (!Started(eng, i)) std::this_thread::yield();
  }
}

TEST_P(BulkTest, ShutdownReleasesTheBulksOfAllThreads) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  const Bulk bulk(eng);
  eng.Push({.writes = {a}, .place = Gpu(0)}, [] {});
  Gate pushed, over;
  std::thread other([&] {
    const Bulk theirs(eng);
    eng.Push({.writes = {b}, .place = Gpu(0)}, [] {});
    pushed.Open();
    over.Wait();
  });
  pushed.Wait();
  eng.Shutdown();
  EXPECT_EQ(eng.stats().completed, 2u);
  over.Open();
  other.join();
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Push({.writes = {a}, .place = Gpu(0)}, [] {}); }), "after shutdown"));
}

TEST_P(BulkTest, MayOutliveItsEngineAndIsNotTakenForThatOfTheNextOne) {
  const ManualBulkClock bulk_clock;
  std::optional<Engine> eng(std::in_place, OnDevice(workers()));
  const Bulk bulk(*eng);
  eng->Push({.place = Gpu(0)}, [] {});
  eng.emplace(OnDevice(workers()));  // at the same address
  bool ran = false;
  eng->Push({.place = Gpu(0)}, [&] { ran = true; });
  eng->WaitAll();
  EXPECT_TRUE(ran);
}

// Workers that find nothing else leave it alone.
TEST(BulkClock, NoHungryWorkerReleases) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(2));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Bulk bulk(eng);
  eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  for (uint64_t i = 1; i <= 20; ++i) {
    Elsewhere([&] {
      eng.Push({.updates = {b}}, [] {});
      eng.Wait(b);
    });
    EXPECT_LE(eng.stats().completed, i) << "what is held has started";
  }
  bulk.Release();
  eng.Wait(a);
}

// --- nobody else can tell

TEST_P(BulkTest, EveryKindOfWaitOfAnyThreadSeesEverything) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  const Bulk bulk(eng, 1000);
  int x = 0;
  const std::function<void()> waits[] = {[&] { eng.Wait(a); }, [&] { eng.WaitToWrite(a); }, [&] { eng.WaitAll(); },
                                         [&] { EXPECT_TRUE(eng.WaitFor(a, 1h)); },
                                         [&] { EXPECT_TRUE(eng.WaitAllFor(1h)); }};
  int expected = 0;
  for (const auto& wait : waits) {
    for (const bool here : {true, false}) {
      eng.Push({.updates = {a}, .place = Gpu(0)}, [&] { ++x; });
      eng.Push({.updates = {a}, .place = Gpu(0)}, [&] { ++x; });
      expected += 2;
      here ? wait() : Elsewhere(wait);
      EXPECT_EQ(x, expected);
    }
  }
}

TEST_P(BulkTest, APushBehindAMemberByAnotherThreadReleases) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  const Bulk bulk(eng);
  int x = 0, y = 0;
  eng.Push({.writes = {a}, .place = Gpu(0)}, [&] { x = 7; });
  Elsewhere([&] { eng.Push({.reads = {a}, .writes = {b}}, [&] { y = x; }); });
  Elsewhere([&] { eng.Wait(b); });
  EXPECT_EQ(y, 7);
}

TEST_P(BulkTest, BulksOfManyThreadsOverSharedVarsFinishAndKeepPushOrder) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  int64_t x = 0, y = 0;
  constexpr int kEach = kSanitized ? 300 : 3000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const Bulk bulk(eng, 2 + 7 * t);
      for (int i = 0; i < kEach; ++i)
        eng.Push({.updates = {t % 2 ? a : b, t % 2 ? b : a}, .place = Gpu(0)}, [&] { ++x, ++y; });
    });
  for (auto& t : threads) t.join();
  eng.Wait(a);
  EXPECT_EQ(x, 4 * kEach);
  EXPECT_EQ(y, 4 * kEach);
}

TEST_P(BulkTest, AFailureSkipsOnlyWhatDependsOnIt) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  bool other = false;
  {
    const Bulk bulk(eng);
    eng.Push({.name = "bad", .writes = {a}, .place = Gpu(0)}, [] { throw std::runtime_error("planted"); });
    eng.Push({.name = "behind", .reads = {a}, .writes = {b}, .place = Gpu(0)}, [] { FAIL() << "must be skipped"; });
    eng.Push({.name = "other", .writes = {c}, .place = Gpu(0)}, [&] { other = true; });
  }
  eng.Wait(c);
  EXPECT_TRUE(other);
  const OpError error = ErrorOf([&] { eng.Wait(b); });
  EXPECT_EQ(error.op(), "bad");
  ASSERT_EQ(error.path().size(), 1u);
  EXPECT_EQ(error.path()[0].op, "behind");
}

TEST_P(BulkTest, DeletingATemporaryCutsNothing) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  {
    Bulk bulk(eng, 30);
    for (int i = 0; i < 10; ++i) {
      Var temporary = eng.NewVar("temporary");
      eng.Push({.writes = {temporary}, .place = Gpu(0)}, [] {});
      eng.Push({.reads = {temporary}, .updates = {a}, .place = Gpu(0)}, [] {});
      if (i % 2) eng.Delete(temporary);
    }
  }
  eng.Wait(a);
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 1u);
}

TEST_P(BulkTest, CancelScopesSkipMembersThatHaveNotStarted) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  CancelScope scope;
  bool ran = false;
  {
    const Bulk bulk(eng);
    {
      const auto guard = scope.Enter();
      eng.Push({.writes = {a}, .place = Gpu(0)}, [] { FAIL() << "cancelled"; });
    }
    eng.Push({.writes = {b}, .place = Gpu(0)}, [&] { ran = true; });
    scope.Cancel();
  }
  eng.Wait(b);
  EXPECT_TRUE(ran);
  EXPECT_TRUE(CausedBy<CancelledError>(ErrorOf([&] { eng.Wait(a); })));
}

TEST_P(BulkTest, AMemberMayWaitForALaterOneAndPushIntoABulkOfItsOwn) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  Gate pushed;
  {
    const Bulk bulk(eng);
    eng.Push({.writes = {a}, .place = Gpu(0)}, [&] {
      pushed.Wait();
      const Bulk inner(eng);
      eng.Push({.reads = {b}, .writes = {c}, .place = Gpu(0)}, [] {});
      eng.Wait(c);
    });
    eng.Push({.writes = {b}, .place = Gpu(0)}, [] {});
  }
  pushed.Open();
  eng.Wait(a);
}

// --- scopes, verbs, refusals

TEST_P(BulkTest, ScopesNestAndTheInnermostTakesTheOps) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  {
    Bulk outer(eng);
    eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
    {
      const Bulk inner(eng, 2);
      eng.Push({.updates = {b}, .place = Gpu(0)}, [] {});
      eng.Push({.updates = {b}, .place = Gpu(0)}, [] {});
      eng.Push({.updates = {b}, .place = Gpu(0)}, [] {});
    }
    eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
    eng.Wait(b);
    {
      const Bulk off(eng, 0);
      eng.Push({.updates = {b}, .place = Gpu(0)}, [] {});
    }
    eng.Wait(b);
    while (eng.stats().completed < 4) std::this_thread::yield();  // what has retired is counted after that
    EXPECT_EQ(eng.stats().dispatches, 3u);
  }
  eng.Wait(a);
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 4u);
}

TEST_P(BulkTest, TryPushIsBulkedAndStillRefusesToWait) {
  const ManualBulkClock bulk_clock;
  EngineOptions options = OnDevice(workers());
  options.max_pending = 1;
  Engine eng(options);
  Var a = eng.NewVar("a");
  HeldOp first = HoldWrite(eng, a);
  bool refused = false;
  {
    const Bulk bulk(eng);
    for (int i = 0; i < 1000 && !refused; ++i) refused = !eng.TryPush({.updates = {a}, .place = Gpu(0)}, [] {});
  }
  EXPECT_TRUE(refused);
  first.Release();
  eng.Wait(a);
  Engine wide(OnDevice(workers()));
  Var b = wide.NewVar("b");
  {
    const Bulk bulk(wide);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(wide.TryPush({.updates = {b}, .place = Gpu(0)}, [] {}));
  }
  wide.Wait(b);
  wide.WaitAll();
  EXPECT_EQ(wide.stats().dispatches, 1u);
}

TEST_P(BulkTest, OperatorsAndHeldOpsGoToTheEngineAndLeaveTheBulkAlone) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Operator op = eng.NewOperator({.updates = {b}, .place = Gpu(0)}, [] {});
  const Bulk bulk(eng);
  eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  eng.Push(op);
  eng.PushHeld({.updates = {b}, .place = Gpu(0)}, [] {}).Release();
  eng.Wait(b);
  EXPECT_TRUE(bulk_clock.Tick()) << "the bulk is still open";
  eng.Push({.updates = {b}, .place = Gpu(0)}, [] {});  // behind the operator, in the bulk
  eng.Wait(b);
  EXPECT_EQ(b.version(), 3u);
}

TEST_P(BulkTest, ACaptureTakesThePushesFirst) {
  Engine eng(OnDevice(workers()));
  struct Recorder final : Submitter {
    int seen = 0;
    void Submit(const OpDesc&, detail::ClosureRef, Site) override { ++seen; }
  } recorder;
  const Redirect capture(eng, recorder);
  const Bulk bulk(eng);
  eng.Push({}, [] { FAIL() << "recorded, not run"; });
  EXPECT_TRUE(eng.TryPush({.place = Gpu(0)}, [] { FAIL() << "recorded, not run"; }));
  EXPECT_EQ(recorder.seen, 2);
}

TEST_P(BulkTest, ARefusedPushLeavesTheBulkAsItWas) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers())), other(Quiet(1));
  Var a = eng.NewVar("a"), foreign = other.NewVar("foreign");
  {
    const Bulk bulk(eng);
    eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
    EXPECT_TRUE(Has(RefusalOf([&] { eng.Push({.name = "op", .updates = {foreign}, .place = Gpu(0)}, [] {}); }),
                    "another engine"));
    eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  }
  eng.Wait(a);
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 1u);
}

TEST_P(BulkTest, LimitsThatMakeNoSenseAreRefused) {
  Engine eng(OnDevice(workers()));
  for (const int limit : {-1, kMaxBulkSize + 1}) {
    const std::string refusal = RefusalOf([&] { Bulk bulk(eng, limit); });
    EXPECT_TRUE(Has(refusal, std::to_string(limit)));
    EXPECT_TRUE(Has(refusal, std::to_string(kMaxBulkSize)));
  }
}

TEST(BulkCounters, TakesNoMemoryInTheSteadyState) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(1));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  const auto some = [&] {
    HeldOp first = HoldWrite(eng, a);  // all of them are pending at once, every time
    {
      const Bulk bulk(eng);
      for (int i = 0; i < 3000; ++i) eng.Push({.reads = {b}, .updates = {a}, .place = Gpu(0)}, [] {});
    }
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

}  // namespace
}  // namespace engine::test
