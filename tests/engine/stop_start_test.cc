// Stop and Start: workers finish what they run and go; pushes queue up meanwhile.
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "engine/plan.h"
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

// Between Stop and Start no push runs anything: what it ran could wait for a pool that only the Start behind the push
// brings back. Here that would be a run with a node in the I/O pool.
class StoppedRunsTest : public StopStartTest {
 protected:
  StoppedRunsTest() : eng_(Options(workers())), a_(eng_.NewVar("a")), b_(eng_.NewVar("b")) {
    Graph graph;
    graph.Add({.name = "elsewhere", .updates = {a_}, .place = Io()}, [] {});
    plan_ = graph.Compile(eng_, {.name = "plan"});
  }
  static EngineOptions Options(int workers) {
    EngineOptions options = Quiet(workers);
    options.max_pending = 1;
    return options;
  }
  // A run that is ready to go on, and waits for whoever runs ops of the caller pool.
  engine::Run ReadyRun() {
    Completion before;
    Gate begun;
    eng_.PushAsync({.updates = {a_}, .place = Io()}, [&](RunContext&, Completion done) {
      before = std::move(done);
      begun.Open();
    });
    begun.Wait();
    engine::Run run = plan_.Start({}, {.policy = Policy::kInline});
    eng_.Stop();
    before();
    return run;
  }
  void StartAndCheck(engine::Run run, uint64_t pushed) {
    EXPECT_EQ(b_.version(), 0u);
    eng_.Start();
    run.Wait();
    eng_.Wait(b_);
    EXPECT_EQ(a_.version(), 2u);
    EXPECT_EQ(b_.version(), pushed);
  }

  Engine eng_;
  Var a_, b_;
  Plan plan_;
};
INSTANTIATE_TEST_SUITE_P(Workers, StoppedRunsTest, ::testing::Values(0, 1, 2));

TEST_P(StoppedRunsTest, APushMakesNoRoomByRunningThem) {
  engine::Run run = ReadyRun();
  for (int i = 0; i < 100; ++i) eng_.Push({.updates = {b_}}, [] {});
  StartAndCheck(std::move(run), 100);
}

TEST_P(StoppedRunsTest, ANaivePushQueuesUpAndRunsNothingBeforeIt) {
  engine::Run run = ReadyRun();
  const PolicyScope naive = eng_.EnterPolicy({Policy::kNaive});
  for (int i = 0; i < 10; ++i) eng_.Push({.updates = {b_}}, [] {});
  StartAndCheck(std::move(run), 10);
}

TEST_P(StoppedRunsTest, ARunUnderInlineQueuesUp) {
  eng_.Stop();
  engine::Run run = plan_.Start({}, {.policy = Policy::kInline});
  EXPECT_EQ(a_.version(), 0u);
  eng_.Start();
  run.Wait();
  EXPECT_EQ(a_.version(), 1u);
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

TEST_P(StopStartTest, BothAreRefusedInsideAnOp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Push({.writes = {a}}, [&] { eng.Stop(); });
  EXPECT_TRUE(CausedBy<UsageError>(ErrorOf([&] { eng.Wait(a); })));
  eng.Push({.writes = {a}}, [&] { eng.Start(); });
  EXPECT_TRUE(CausedBy<UsageError>(ErrorOf([&] { eng.Wait(a); })));
}

TEST_P(StopStartTest, AllMayComeBeforeTheFirstUse) {
  {
    Engine eng(Quiet(workers()));
    eng.Stop();
    eng.Start();
    eng.Start();
    eng.Stop();
    eng.Shutdown();
    eng.Shutdown();
    EXPECT_THROW(eng.Push({}, [] {}), UsageError);
  }
  bool ran = false;
  {
    Engine stopped(Quiet(workers()));
    stopped.Stop();
    stopped.Push({}, [&ran] { ran = true; });
    EXPECT_FALSE(ran);
  }
  EXPECT_TRUE(ran) << "the shutdown runs what the Stop has left";
}

TEST_P(StopStartTest, BothDoNothingAfterShutdown) {
  std::atomic<int> started{0};
  EngineOptions o = Quiet(workers());
  o.on_start = [&](int) { ++started; };
  Engine eng(o);
  Var a = eng.NewVar("a");
  eng.Shutdown();
  eng.Stop();
  eng.Start();
  eng.Stop();
  eng.Start();
  EXPECT_LE(started, workers());
  EXPECT_THROW(eng.Push({.writes = {a}}, [] {}), UsageError);
}

// True once a Stop on another thread has begun: then one of two workers takes nothing any more.
void AwaitStopped(Engine& eng) {
  Var probe = eng.NewVar("probe");
  do {
    eng.Push({.updates = {probe}}, [] {});
  } while (eng.WaitFor(probe, 20ms));
}

// How many ops a worker runs at once, at most.
struct AtOnce {
  void Push(Engine& eng) {
    eng.Push({}, [this](RunContext& ctx) {
      auto& inside = insides[static_cast<size_t>(ctx.worker())];
      if (++inside > 1) both = true;
      for (int i = 0; i < 10; ++i) std::this_thread::yield();
      --inside;
    });
  }
  std::array<std::atomic<int>, 8> insides{};
  std::atomic<bool> both{false};
};

// A body that lasts until the gate opens.
struct Blocked {
  explicit Blocked(Engine& eng) {
    eng.Push({.name = "blocked"}, [this] {
      started.Open();
      gate.Wait();
      over = true;
    });
    started.Wait();
  }
  Gate started, gate;
  std::atomic<bool> over{false};
};

TEST(StopStartRaceTest, ASecondStopWaitsForTheFirst) {
  Engine eng(Quiet(2));
  Blocked body(eng);
  std::thread first([&] { eng.Stop(); });
  AwaitStopped(eng);
  Gate calls;
  bool over = false;
  std::thread second([&] {
    calls.Open();
    eng.Stop();
    over = body.over;
  });
  calls.Wait();
  EXPECT_FALSE(eng.WaitAllFor(20ms));  // time enough for a Stop that does not wait
  body.gate.Open();
  first.join();
  second.join();
  EXPECT_TRUE(over);
}

TEST(StopStartRaceTest, AStartWaitsForTheStopBeforeIt) {
  Engine eng(Quiet(2));
  AtOnce at_once;
  Blocked body(eng);
  std::thread stop([&] { eng.Stop(); });
  AwaitStopped(eng);
  Gate calls;
  bool over = false;
  std::thread start([&] {
    calls.Open();
    eng.Start();
    over = body.over;
  });
  calls.Wait();
  for (int i = 0; i < 200; ++i) at_once.Push(eng);
  EXPECT_FALSE(eng.WaitAllFor(20ms));
  body.gate.Open();
  stop.join();
  start.join();
  eng.WaitAll();
  EXPECT_TRUE(over);
  EXPECT_FALSE(at_once.both);
}

TEST(StopStartRaceTest, NoWorkerIsEverPlayedTwice) {
  Engine eng(Quiet(2));
  AtOnce at_once;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 30; ++i) {
        eng.Stop();
        for (int k = 0; k < 5; ++k) at_once.Push(eng);
        eng.Start();
      }
    });
  for (auto& t : threads) t.join();
  eng.WaitAll();
  EXPECT_FALSE(at_once.both);
}

TEST(StopStartRaceTest, AForksChildMayStopAndStartFirst) {
  if (kSanitized) GTEST_SKIP() << "as ForkTest: the tools do not support threads in a fork's child";
  Engine eng(Quiet(2));
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    AtOnce at_once;
    for (int i = 0; i < 10; ++i) {
      eng.Stop();
      eng.Start();
      for (int k = 0; k < 20; ++k) at_once.Push(eng);
    }
    eng.WaitAll();
    eng.Shutdown();
    _exit(at_once.both ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(StopStartRaceTest, AForksChildOfAStoppedEngineMayStartIt) {
  if (kSanitized) GTEST_SKIP() << "as ForkTest: the tools do not support threads in a fork's child";
  Engine eng(Quiet(2));
  eng.Stop();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    Var a = eng.NewVar("a");
    eng.Push({.writes = {a}}, [] {});
    if (eng.WaitFor(a, 1ms)) _exit(1);
    eng.Start();
    eng.Wait(a);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_P(StopStartTest, PushersAndWaitersMayGoOnMeanwhile) {
  EngineOptions o = Quiet(workers());
  o.max_pending = 64;
  Engine eng(o);
  Var a = eng.NewVar("a");
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> pushed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000 && !stop; ++i) {
        eng.Push({.updates = {a}}, [] {});
        ++pushed;
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
  EXPECT_EQ(a.version(), pushed);
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
