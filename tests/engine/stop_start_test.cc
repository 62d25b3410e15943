// Stop and Start: workers finish what they run and go; pushes queue up meanwhile.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(StopStartTest);

TEST_P(StopStartTest, PushesQueueUpWhileStopped) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Stop();
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) eng.Push({.updates = {a}}, [&] { ++ran; });
  if (workers()) {
    EXPECT_FALSE(eng.WaitFor(a, 1ms));
    EXPECT_EQ(ran, 0);
  }
  eng.Start();
  eng.Wait(a);
  EXPECT_EQ(ran, 100);
}

TEST_P(StopStartTest, BothMayBeRepeated) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  for (int i = 0; i < 10; ++i) {
    eng.Stop();
    eng.Stop();
    eng.Push({.updates = {a}}, [] {});
    eng.Push({.updates = {a}, .place = Io()}, [] {});
    eng.Start();
    eng.Start();
    eng.Wait(a);
  }
  EXPECT_EQ(a.version(), 20u);
}

TEST_P(StopStartTest, StopWaitsForRunningBodies) {
  if (!workers()) GTEST_SKIP() << "no worker runs anything";
  Engine eng(Quiet(workers()));
  std::atomic<bool> over{false};
  Gate started, gate;
  eng.Push({}, [&] {
    started.Open();
    gate.Wait();
    over = true;
  });
  started.Wait();
  std::thread opener([&] { gate.Open(); });
  eng.Stop();
  EXPECT_TRUE(over);
  opener.join();
  eng.Start();
}

TEST_P(StopStartTest, StopWhileAnOpWaitsForWhatOnlyStartWillRun) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), out = eng.NewVar("out");
  HeldOp held = HoldWrite(eng, a);
  if (!workers()) GTEST_SKIP() << "no worker runs anything";
  Gate waiting;
  eng.Push({.writes = {out}}, [&] {
    waiting.Open();
    eng.Wait(a);
  });
  waiting.Wait();
  eng.Stop();
  held.Release();
  eng.Start();
  eng.Wait(out);
}

TEST_P(StopStartTest, StopInsideAnOpIsRefused) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Push({.writes = {a}}, [&] { eng.Stop(); });
  EXPECT_TRUE(CausedBy<UsageError>(ErrorOf([&] { eng.Wait(a); })));
}

TEST_P(StopStartTest, PushersAndWaitersMayGoOnMeanwhile) {
  EngineOptions o = Quiet(workers());
  o.max_pending = 64;
  Engine eng(o);
  Var a = eng.NewVar("a");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000 && !stop; ++i) {
        eng.Push({.updates = {a}}, [] {});
        if (i % 50 == 0) eng.WaitFor(a, 1us);
      }
    });
  for (int i = 0; i < 20; ++i) {
    eng.Stop();
    eng.Start();
  }
  stop = true;
  for (auto& t : threads) t.join();
  eng.WaitAll();
}

TEST_P(StopStartTest, ThreadsAreGoneWhileStopped) {
  if (!workers()) GTEST_SKIP() << "there are none";
  std::atomic<int> started{0}, ended{0};
  EngineOptions o = Quiet(workers());
  o.on_start = [&](int) { ++started; };
  o.on_end = [&](int) { ++ended; };
  Engine eng(o);
  eng.Stop();
  EXPECT_EQ(started, workers());
  EXPECT_EQ(ended, workers());
  eng.Start();
  eng.Stop();
  EXPECT_EQ(started, 2 * workers());
  EXPECT_EQ(ended, 2 * workers());
}

}  // namespace
}  // namespace engine::test
