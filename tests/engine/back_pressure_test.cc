// Contract 7: the soft bound makes outside pushes wait, the hard one refuses, TryPush says no.
#include "engine/room_watch.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(BackPressureTest);

EngineOptions Bounded(int workers, size_t soft, size_t hard = 1 << 20) {
  EngineOptions o = Quiet(workers);
  o.max_pending = soft;
  o.hard_max_pending = hard;
  return o;
}

TEST_P(BackPressureTest, PendingOpsStayNearTheSoftBound) {
  Engine eng(Bounded(workers(), 64));
  Var a = eng.NewVar("a");
  uint64_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    eng.Push({.updates = {a}}, [] {});
    if (i % 16) continue;
    const EngineStats s = eng.stats();
    most = std::max(most, s.pushed - s.completed);
  }
  eng.Wait(a);
  EXPECT_LE(most, 64u + 64u);  // a magazine a thread may be beyond it
  EXPECT_LT(eng.stats().slab_bytes, 2u << 20);
}

TEST_P(BackPressureTest, PendingOpsStayNearTheSoftBoundWhileAnotherThreadRunsThem) {
  Engine eng(Bounded(workers(), 64));
  Var a = eng.NewVar("a");
  std::atomic<bool> over{false};
  eng.Push({.updates = {a}}, [] { std::this_thread::sleep_for(50ms); });  // time to push all, if nothing stops it
  std::thread waiter([&] {
    while (!over) eng.Wait(a);
  });
  uint64_t most = 0;
  for (int i = 0; i < 2000; ++i) {
    eng.Push({.updates = {a}}, [] {});
    const EngineStats s = eng.stats();
    most = std::max(most, s.pushed - s.completed);
  }
  over = true;
  waiter.join();
  eng.Wait(a);
  EXPECT_LE(most, 64u + 64u);  // as above
}

// As above, where that op waits for another op, and goes on.
TEST_P(BackPressureTest, PendingOpsStayNearTheSoftBoundWhileAnotherThreadsOpWaits) {
  Engine eng(Bounded(workers(), 64));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::atomic<bool> begun{false};
  eng.Push({.updates = {a}}, [&] {
    eng.Push({.updates = {b}}, [] {});
    eng.Wait(b);
    begun = true;
    std::this_thread::sleep_for(50ms);
  });
  std::thread waiter([&] { eng.Wait(a); });
  while (!begun) std::this_thread::yield();
  uint64_t most = 0;
  for (int i = 0; i < 500; ++i) {
    eng.Push({.updates = {a}}, [] {});
    const EngineStats s = eng.stats();
    most = std::max(most, s.pushed - s.completed);
  }
  waiter.join();
  eng.Wait(a);
  EXPECT_LE(most, 64u + 64u);
}

// The op that another thread runs ends, and all others wait for one that is held.
TEST_P(BackPressureTest, PushGoesOnWhenTheLastOpEndsOnAnotherThread) {
  Engine eng(Bounded(workers(), 16));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp held = HoldWrite(eng, a);
  const uint64_t waits = eng.stats().backpressure_waits;
  std::atomic<bool> begun{false};
  eng.Push({.updates = {b}}, [&] {
    begun = true;
    while (eng.stats().backpressure_waits == waits) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);  // the push goes to sleep
  });
  std::thread waiter([&] { eng.Wait(b); });
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 200; ++i) eng.Push({.updates = {a}}, [] {});
  waiter.join();
  held.Release();
  eng.Wait(a);
  EXPECT_EQ(a.version(), 201u);
}

// An op that waits is not running: what it waits for may come behind this very push. Before its wait it ran, and behind it again.
TEST_P(BackPressureTest, PushGoesOnWhenTheOpOnAnotherThreadWaits) {
  Engine eng(Bounded(workers(), 16));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOp held = HoldWrite(eng, a), awaited = HoldWrite(eng, c);
  const uint64_t waits = eng.stats().backpressure_waits;
  std::atomic<bool> begun{false};
  eng.Push({.updates = {b}}, [&] {
    begun = true;
    while (eng.stats().backpressure_waits == waits) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    eng.Wait(c);
  });
  std::thread waiter([&] { eng.Wait(b); });
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 200; ++i) eng.Push({.updates = {a}}, [] {});
  awaited.Release();
  waiter.join();
  held.Release();
  eng.WaitAll();
  EXPECT_EQ(a.version(), 201u);
}

// The thread that sleeps in its push is the only one that can run what is pushed meanwhile.
TEST_P(BackPressureTest, APushThatWaitsRunsWhatAnotherThreadsOpPushes) {
  Engine eng(Bounded(workers(), 16));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOp held = HoldWrite(eng, a);
  const uint64_t waits = eng.stats().backpressure_waits;
  std::atomic<bool> begun{false}, ran{false};
  eng.Push({.updates = {b}}, [&] {
    begun = true;
    while (eng.stats().backpressure_waits == waits) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    eng.Push({.updates = {c}}, [&] { ran = true; });
    while (workers() == 0 && !ran) std::this_thread::yield();
  });
  std::thread waiter([&] { eng.Wait(b); });
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 200; ++i) eng.Push({.updates = {a}}, [] {});
  waiter.join();
  held.Release();
  eng.WaitAll();
  EXPECT_TRUE(ran);
}

TEST_P(BackPressureTest, PushGoesOnWhenNothingElseCouldProgress) {
  Engine eng(Bounded(workers(), 16));
  Var a = eng.NewVar("a");
  HeldOp held = HoldWrite(eng, a);
  for (int i = 0; i < 200; ++i) eng.Push({.updates = {a}}, [] {});  // waiting here would be for ever
  held.Release();
  eng.Wait(a);
  EXPECT_EQ(a.version(), 201u);
}

TEST_P(BackPressureTest, TryPushSaysNoAtTheBoundAndYesAfterwards) {
  Engine eng(Bounded(workers(), 16));
  Var a = eng.NewVar("a");
  HeldOp held = HoldWrite(eng, a);
  int accepted = 0, ran = 0;
  auto kept = std::make_shared<int>(1);
  while (accepted < 1000 && eng.TryPush({.updates = {a}}, [&ran, kept] { ++ran; })) ++accepted;
  EXPECT_GE(accepted, 15);
  EXPECT_LE(accepted, 64);
  EXPECT_EQ(kept.use_count(), accepted + 1);
  EXPECT_FALSE(eng.TryPushAsync({.updates = {a}}, [](RunContext&, Completion done) { done(); }));
  held.Release();
  eng.Wait(a);
  EXPECT_EQ(ran, accepted);
  EXPECT_TRUE(eng.TryPush({.updates = {a}}, [&ran] { ++ran; }));
  eng.Wait(a);
  EXPECT_EQ(ran, accepted + 1);
}

TEST_P(BackPressureTest, AWatchLooksWhileAPushWaitsAndMayEndIt) {
  if (workers() == 0) GTEST_SKIP() << "a push runs the ops that it waits for";
  Engine eng(Bounded(workers(), 16));
  Var a = eng.NewVar("a");
  std::atomic<bool> go{false};
  eng.Push({.updates = {a}}, [&] { go.wait(false); });
  while (eng.TryPush({.updates = {a}}, [] {})) {
  }
  const uint64_t pushed = eng.stats().pushed;
  int looks = 0;
  {
    const RoomWatch outer(1h, [] { FAIL() << "only the innermost looks"; });
    const RoomWatch watch(1ms, [&] {
      if (++looks % 3 == 0) throw std::runtime_error("enough");
    });
    EXPECT_THROW(eng.Push({.updates = {a}}, [] {}), std::runtime_error);
    EXPECT_THROW(eng.PushHeld({.updates = {a}}, [] {}), std::runtime_error) << "it looks for each push anew";
  }
  EXPECT_EQ(eng.stats().pushed, pushed);
  {
    const RoomWatch watch(1ms, [&] {
      if (go.exchange(true)) return;
      go.notify_all();
    });
    eng.Push({.updates = {a}}, [] {});
  }
  eng.Wait(a);
  EXPECT_EQ(a.version(), pushed + 1);
}

TEST_P(BackPressureTest, HardBoundThrowsAndChangesNothing) {
  Engine eng(Bounded(workers(), 16, 32));
  Var a = eng.NewVar("a");
  HeldOp held = HoldWrite(eng, a);
  int accepted = 0;
  std::string text;
  try {
    for (; accepted < 1000; ++accepted) eng.Push({.updates = {a}}, [] {});
  } catch (const BackPressureError& e) {
    text = e.what();
  }
  EXPECT_TRUE(Has(text, "32"));
  EXPECT_TRUE(Has(text, "hard_max_pending"));
  EXPECT_GE(accepted, 31);
  EXPECT_LE(accepted, 128);
  held.Release();
  eng.Wait(a);
  EXPECT_EQ(a.version(), static_cast<uint64_t>(accepted) + 1);
  eng.Push({.updates = {a}}, [] {});
  eng.Wait(a);
}

TEST_P(BackPressureTest, NestedPushesNeverWaitButMeetTheHardBound) {
  Engine eng(Bounded(workers(), 8, 64));
  Var a = eng.NewVar("a"), out = eng.NewVar("out");
  int accepted = 0;
  eng.Push({.name = "flood", .writes = {out}}, [&] {
    HeldOp held = HoldWrite(eng, a);
    for (; accepted < 1000; ++accepted) eng.Push({.updates = {a}}, [] {});
  });
  EXPECT_TRUE(CausedBy<BackPressureError>(ErrorOf([&] { eng.Wait(out); })));
  EXPECT_GE(accepted, 62);
  EXPECT_LE(accepted, 200);
  eng.Wait(a);
}

TEST_P(BackPressureTest, WaitsAndDeletionsAreExempt) {
  Engine eng(Bounded(workers(), 8, 16));
  Var a = eng.NewVar("a");
  HeldOp held = HoldWrite(eng, a);
  try {
    for (;;) eng.Push({.updates = {a}}, [] {});
  } catch (const BackPressureError&) {
  }
  std::vector<Var> vars;
  for (int i = 0; i < 100; ++i) vars.push_back(eng.NewVar());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(eng.WaitFor(a, 0ns));
  eng.ClearError(a);
  vars.clear();
  held.Release();
  eng.Wait(a);
}

TEST_P(BackPressureTest, CompletionThreadsMakeRoom) {
  Engine eng(Bounded(workers(), 16));
  Var a = eng.NewVar("a");
  constexpr int kOps = 2000;
  Log failures;
  for (int i = 0; i < kOps; ++i) {
    Slot<Completion> slot;
    if (i % 100) {
      eng.Push({.updates = {a}}, [] {});
      continue;
    }
    std::thread client([&slot] { slot.Take()(); });
    eng.PushAsync({.updates = {a}}, [&slot](RunContext&, Completion done) { slot.Put(std::move(done)); });
    eng.Wait(a);
    client.join();
  }
  eng.Wait(a);
  EXPECT_EQ(a.version(), static_cast<uint64_t>(kOps));
}

TEST_P(BackPressureTest, ManyPushersShareATinyBound) {
  Engine eng(Bounded(workers(), 1));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  const int ops = kSanitized ? 200 : 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < ops; ++i) {
        if (t % 2) {
          eng.Push({.reads = {a}, .updates = {b}}, [] {});
        } else {
          eng.Push({.reads = {b}, .updates = {a}}, [] {});
        }
      }
    });
  for (auto& t : threads) t.join();
  eng.WaitAll();
  EXPECT_EQ(a.version() + b.version(), static_cast<uint64_t>(4 * ops));
}

}  // namespace
}  // namespace engine::test
