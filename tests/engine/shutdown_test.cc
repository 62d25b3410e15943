// Contract 8: an engine that ends settles each op exactly once, whatever state it is in.
#include <signal.h>

#include "support/child.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(ShutdownTest);

TEST_P(ShutdownTest, EachOpSettlesExactlyOnce) {
  std::atomic<int> ran{0};
  auto kept = std::make_shared<int>(0);
  EngineStats at_end;
  {
    Engine eng(Quiet(workers()));
    Var a = eng.NewVar("a"), b = eng.NewVar("b");
    for (int i = 0; i < 300; ++i) {
      eng.Push({.reads = {a}, .updates = {b}}, [&ran, kept] { ++ran; });
      eng.PushAsync({.updates = {a}}, [&ran, kept](RunContext&, Completion done) {
        ++ran;
        done();
      });
    }
    eng.Shutdown();
    at_end = eng.stats();
  }
  EXPECT_EQ(ran, 600);
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(at_end.pushed, 600u);
  EXPECT_EQ(at_end.completed, 600u);
}

TEST_P(ShutdownTest, IsIdempotentAndRefusesLaterPushes) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Operator op = eng.NewOperator({.writes = {a}}, [] {});
  eng.Shutdown();
  eng.Shutdown();
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Push({.writes = {a}}, [] {}); }), "shutdown"));
  EXPECT_THROW(eng.Push(op), UsageError);
  EXPECT_THROW(eng.TryPush({}, [] {}), UsageError);
  EXPECT_THROW(eng.NewVar("late"), UsageError);
  EXPECT_THROW(eng.ClearError(a), UsageError);
  eng.Wait(a);
  eng.WaitAll();
}

TEST_P(ShutdownTest, VarsKeepTheirErrorsAfterwards) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Fail(eng, a, "still known");
  eng.Shutdown();
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(a); }).what(), "still known"));
}

TEST_P(ShutdownTest, OpsMayPushWhileTheEngineDrains) {
  std::atomic<int> ran{0};
  {
    Engine eng(Quiet(workers()));
    Var a = eng.NewVar("a");
    std::function<void(int)> chain = [&](int n) {
      ++ran;
      if (n > 0) eng.Push({.updates = {a}}, [&chain, n] { chain(n - 1); });
    };
    eng.Push({.updates = {a}}, [&] { chain(200); });
    eng.Shutdown();
  }
  EXPECT_EQ(ran, 201);
}

TEST_P(ShutdownTest, CompletionsThatNeverComeFailAfterTheTimeout) {
  Log log;
  std::vector<Completion> kept;
  bool ran = false;
  {
    EngineOptions o = Reporting(workers(), log);
    o.drain_timeout = 10ms;
    Engine eng(o);
    Var a = eng.NewVar("a"), b = eng.NewVar("b");
    eng.PushAsync({.name = "first", .writes = {a}}, [&](RunContext&, Completion done) { kept.push_back(done); });
    eng.PushAsync({.name = "second", .reads = {a}, .writes = {b}, .run_always = true},
                  [&](RunContext&, Completion done) { kept.push_back(done); });
    eng.Push({.reads = {b}}, [&] { ran = true; });
    eng.Shutdown();
    EXPECT_TRUE(CausedBy<ShutdownError>(ErrorOf([&] { eng.Wait(a); })));
    EXPECT_TRUE(CausedBy<ShutdownError>(ErrorOf([&] { eng.Wait(b); })));
  }
  EXPECT_EQ(kept.size(), 2u);
  EXPECT_FALSE(ran);
  for (Completion& done : kept) done();
  EXPECT_TRUE(log.Contains("shut down before the Completion"));
}

// What has completed earlier must not be failed, nor its memory touched, when the timeout fails the rest.
TEST_P(ShutdownTest, TimeoutTouchesNoOpThatHasCompleted) {
  Log log;
  Completion kept;
  EngineOptions o = Reporting(workers(), log);
  o.drain_timeout = 5ms;
  {
    Engine eng(o);
    std::vector<Var> vars;
    for (int i = 0; i < 200; ++i) {
      vars.push_back(eng.NewVar());
      eng.PushAsync({.writes = {vars.back()}}, [](RunContext&, Completion done) { done(); });
    }
    eng.WaitAll();
    for (const Var& v : vars) eng.Push({.reads = {v}}, [] {});  // reader groups take over the recycled blocks
    eng.PushAsync({.name = "stuck"}, [&](RunContext&, Completion done) { kept = done; });
    eng.Shutdown();
    for (const Var& v : vars) eng.Wait(v);
  }
  EXPECT_EQ(log.size(), 1u);
  EXPECT_TRUE(log.Contains("'stuck'"));
  kept();
}

// Failing a completion starts what waits for it: not while the body, which may be about to complete it, still runs.
TEST_P(ShutdownTest, TimeoutStartsNothingBesideARunningBody) {
  if (!workers()) GTEST_SKIP() << "one thread runs all bodies";
  std::atomic<bool> inside{false}, overlap{false}, ran{false};
  Gate next_started;
  Completion kept;
  {
    EngineOptions o = Quiet(workers() + 1);
    o.drain_timeout = 10ms;
    Engine eng(o);
    Var a = eng.NewVar("a");
    eng.PushAsync({.writes = {a}}, [&](RunContext&, Completion done) { kept = std::move(done); });
    eng.PushAsync({.writes = {a}}, [&](RunContext&, Completion done) {
      inside = true;
      next_started.WaitFor(100ms);  // several looks of the drain
      inside = false;
      done();
    });
    eng.Push({.writes = {a}}, [&] {
      overlap = inside.load();
      ran = true;
      next_started.Open();
    });
  }
  EXPECT_TRUE(ran);
  EXPECT_FALSE(overlap);
}

TEST_P(ShutdownTest, CompletionThatIsKeptFailsOnceItsBodyHasReturned) {
  Log log;
  Completion kept;
  {
    EngineOptions o = Reporting(workers(), log);
    o.drain_timeout = 0ms;
    Engine eng(o);
    eng.PushAsync({.name = "keeps"}, [&](RunContext&, Completion done) {
      kept = done;
      Gate().WaitFor(30ms);  // longer than the timeout
    });
  }
  EXPECT_TRUE(log.Contains("'keeps'"));
  EXPECT_FALSE(log.Contains("gave up"));
}

TEST_P(ShutdownTest, StopBesideItLeavesNoOpBehind) {
  for (int round = 0; round < 20; ++round) {
    Log log;
    std::atomic<int> ran{0};
    EngineOptions o = Reporting(workers(), log);
    o.drain_timeout = 500ms;
    Engine eng(o);
    Var a = eng.NewVar("a");
    for (int i = 0; i < 200; ++i) eng.Push({.updates = {a}}, [&] { ++ran; });
    std::thread stops([&] {
      eng.Stop();
      eng.Start();
      eng.Stop();
    });
    eng.Shutdown();
    stops.join();
    EXPECT_EQ(ran, 200);
    EXPECT_EQ(log.size(), 0u);
  }
}

// The machine may keep the processor from all threads of a process, for longer than a shutdown waits for progress.
TEST_P(ShutdownTest, TimeInWhichTheProcessWasStoppedIsNotWaitedFor) {
  if (WhyNoForks()) GTEST_SKIP() << WhyNoForks();
  if (workers() < 2) GTEST_SKIP() << "a body has to run beside another one";
  int drains[2];  // the child says that it fails completions, and that no op ends
  ASSERT_EQ(pipe(drains), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    Log log;
    EngineOptions o = Reporting(workers(), log);
    o.drain_timeout = 10ms;
    Engine eng(o);
    const Var a = eng.NewVar("a");
    Completion kept;
    std::atomic<bool> fails{false};
    eng.PushAsync({.name = "stuck", .writes = {a}}, [&](RunContext&, Completion done) { kept = std::move(done); });
    eng.Push({.reads = {a}, .run_always = true}, [&] { fails = true; });
    eng.Push({.name = "long"}, [&] {
      while (!fails) std::this_thread::yield();
      std::this_thread::sleep_for(100ms);  // some looks, at which no op has ended
      // Until some looks after the time in which nothing ran, which may begin as soon as the byte is written.
      auto now = std::chrono::steady_clock::now(), last = now;
      if (write(drains[1], "x", 1) != 1) _exit(3);
      while (now - last < 800ms) {
        std::this_thread::yield();
        last = std::exchange(now, std::chrono::steady_clock::now());
      }
      std::this_thread::sleep_for(200ms);
    });
    eng.Shutdown();
    kept();
    _exit(log.Contains("gave up") ? 1 : 0);
  }
  char byte;
  ASSERT_EQ(read(drains[0], &byte, 1), 1);
  kill(child, SIGSTOP);
  std::this_thread::sleep_for(1500ms);
  kill(child, SIGCONT);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  close(drains[0]);
  close(drains[1]);
}

TEST_P(ShutdownTest, StoppedEngineIsDrainedAsWell) {
  std::atomic<int> ran{0};
  {
    Engine eng(Quiet(workers()));
    eng.Stop();
    Var a = eng.NewVar("a");
    for (int i = 0; i < 50; ++i) eng.Push({.updates = {a}}, [&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

TEST_P(ShutdownTest, RefusedInsideAnOp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Push({.writes = {a}}, [&] { eng.Shutdown(); });
  EXPECT_TRUE(CausedBy<UsageError>(ErrorOf([&] { eng.Wait(a); })));
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
}

TEST_P(ShutdownTest, DestroyingOnItsOwnWorkerIsReportedAndFinishedElsewhere) {
  if (!workers()) GTEST_SKIP() << "the thread that runs the op is inside a wait of that engine";
  Log log;
  Gate reported;
  Counter ran;
  {
    EngineOptions o = Quiet(workers());
    o.on_unobserved = [&](const OpError& e) {
      log.Add(e.what());
      reported.Open();
    };
    auto eng = std::make_unique<Engine>(o);
    eng->Push({.name = "last"}, [&] {
      ran.Add();
      eng.reset();
    });
    reported.Wait();
  }
  EXPECT_EQ(ran.count(), 1);
  EXPECT_TRUE(log.Contains("destroyed on one of its own threads"));
}

TEST_P(ShutdownTest, ThreadsMayRaceWithTheEnd) {
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> accepted{0}, ran{0};
    Engine eng(Quiet(workers()));
    Var a = eng.NewVar("a");
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        try {
          for (;;) {
            eng.Push({.updates = {a}}, [&] { ++ran; });
            ++accepted;
          }
        } catch (const UsageError&) {
        }
      });
    while (accepted == 0) std::this_thread::yield();
    eng.Shutdown();
    for (auto& t : threads) t.join();
    EXPECT_EQ(ran, accepted);
  }
}

TEST_P(ShutdownTest, EnginesComeAndGo) {
  int ran = 0;
  for (int i = 0; i < 30; ++i) {
    Engine eng(Quiet(workers()));
    Var a = eng.NewVar("a");
    if (i % 2) eng.Push({.writes = {a}}, [&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 15);
}

}  // namespace
}  // namespace engine::test
