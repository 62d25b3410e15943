// Contract 8: fork. The parent goes on; the child starts empty, with what had finished.
#include "support/child.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

class ForkTest : public WorkersTest {
 protected:
  void SetUp() override {
    if (const char* why = WhyNoForks()) GTEST_SKIP() << why;
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, ForkTest, testing::Values(0, 1, 2, 4, 8),
                         [](const auto& instance) { return std::to_string(instance.param); });

TEST_P(ForkTest, ChildPushesAndWaitsWithNewThreads) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  int x = 1;
  eng.Push({.writes = {a}}, [&] { x = 2; });
  eng.Wait(a);
  EXPECT_TRUE(InChild([&] {
    Var b = eng.NewVar("b");
    for (int i = 0; i < 100; ++i) eng.Push({.updates = {a}, .writes = {b}}, [&] { ++x; });
    eng.Wait(b);
    eng.WaitAll();
    return x == 102 && a.version() == 101 && b.version() == 100;
  }));
  eng.Push({.updates = {a}}, [&] { ++x; });
  eng.Wait(a);
  EXPECT_EQ(x, 3);
}

TEST_P(ForkTest, VarsWithPendingWritesArePoisonedInTheChildOnly) {
  Engine eng(Quiet(workers()));
  Var pending = eng.NewVar("pending"), done = eng.NewVar("done"), only_read = eng.NewVar("only_read");
  eng.Push({.writes = {done}}, [] {});
  eng.Wait(done);
  HeldOp writer = HoldWrite(eng, pending), reader = HoldRead(eng, only_read);
  EXPECT_TRUE(InChild([&] {
    const OpError e = ErrorOf([&] { eng.Wait(pending); });
    eng.Wait(done);
    eng.WaitToWrite(only_read);
    bool ok = CausedBy<ForkedWhilePending>(e);
    eng.Push({.writes = {pending, only_read}}, [] {});
    eng.Wait(pending);
    eng.Wait(only_read);
    return ok && only_read.version() == 1 && done.version() == 1;
  }));
  writer.Release();
  reader.Release();
  eng.Wait(pending);
  eng.WaitAll();
  EXPECT_EQ(pending.version(), 1u);
}

TEST_P(ForkTest, DoesNotWaitForRunningOps) {
  if (!workers()) GTEST_SKIP() << "no op runs beside the thread that forks";
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Gate started, gate;
  eng.Push({.writes = {a}}, [&] {
    started.Open();
    gate.Wait();
  });
  started.Wait();
  EXPECT_TRUE(InChild([&] { return CausedBy<ForkedWhilePending>(ErrorOf([&] { eng.Wait(a); })); }));
  gate.Open();
  eng.Wait(a);
}

TEST_P(ForkTest, WhileOtherThreadsPush) {
  EngineOptions o = Quiet(workers());
  o.max_pending = 64;
  Engine eng(o);
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!stop) {
        eng.Push({.reads = {b}, .updates = {a}}, [] {});
        eng.TryPush({.reads = {a}, .updates = {b}}, [] {});
        Var c = eng.NewVar();
        eng.Push({.writes = {c}}, [] {});
      }
    });
  for (int i = 0; i < (kSanitized ? 5 : 15); ++i)
    EXPECT_TRUE(InChild([&] {
      eng.Push({.writes = {a, b}}, [] {});
      eng.Wait(a);
      eng.WaitAll();
      return true;
    })) << i;
  stop = true;
  for (auto& t : threads) t.join();
  eng.WaitAll();
}

TEST_P(ForkTest, PendingErrorsDoNotEndTheFork) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Fail(eng, a, "from before");
  EXPECT_TRUE(InChild([&] {
    try {
      eng.Wait(a);
    } catch (const OpError&) {
      eng.WaitAll();  // the parent reports what the parent has not seen
      return true;
    }
    return false;
  }));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "from before"));
}

TEST_P(ForkTest, ChildOfAChildWorksToo) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  EXPECT_TRUE(InChild([&] {
    eng.Push({.writes = {a}}, [] {});
    eng.Wait(a);
    return static_cast<bool>(InChild([&] {
      eng.Push({.updates = {a}}, [] {});
      eng.Wait(a);
      return a.version() == 2;
    }));
  }));
}

TEST_P(ForkTest, EngineIsDestroyedInTheChild) {
  auto eng = std::make_unique<Engine>(Quiet(workers()));
  Var a = eng->NewVar("a"), dropped = eng->NewVar("dropped");
  HeldOp held = HoldWrite(*eng, a);
  eng->Push({.updates = {a, dropped}}, [] {});
  dropped = Var();
  EXPECT_TRUE(InChild([&] {
    eng.reset();
    return true;
  }));
  held.Release();
  eng->WaitAll();
}

TEST_P(ForkTest, StoppedEngineStaysStopped) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Stop();
  EXPECT_TRUE(InChild([&] {
    eng.Push({.writes = {a}}, [] {});
    eng.Start();
    eng.Wait(a);
    return true;
  }));
  eng.Start();
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
}

TEST_P(ForkTest, TheChildOfAStoppedEngineIsStoppedToo) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Stop();
  EXPECT_TRUE(InChild([&] {
    bool ran = false;
    {
      const PolicyScope naive =
          eng.EnterPolicy({Policy::kNaive});  // between Start and Stop the op runs inside its push
      eng.Push({.writes = {a}}, [&] { ran = true; });
    }
    if (ran) return false;
    eng.Start();
    eng.Wait(a);
    return ran;
  }));
  eng.Start();
}

TEST_P(ForkTest, InsideAnOp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  bool child_was_fine = false;
  eng.Push({.writes = {a}}, [&] {
    child_was_fine = static_cast<bool>(InChild([&] {
      Var c = eng.NewVar("c");
      eng.Push({.writes = {c}}, [] {});
      return true;
    }));
  });
  eng.Wait(a);
  EXPECT_TRUE(child_was_fine);
}

// The child goes on in the body, returns from it, and so comes to the worker's loop. What is queued there is the parent's.
TEST_P(ForkTest, TheChildThatReturnsFromItsBodyRunsNoneOfTheParentsOps) {
  const SharedCount ran;
  constexpr int kBehind = 500;
  for (const bool waits : {false, true}) {
    *ran = 0;
    pid_t child = 0;
    const auto here = std::this_thread::get_id();
    {
      Engine eng(Quiet(workers()));
      const Var a = eng.NewVar("a"), b = eng.NewVar("b");
      eng.Stop();
      HeldOp before = eng.PushHeld({.name = "before", .writes = {b}}, [] {});
      std::thread later;
      eng.Push({.name = "forks", .writes = {a}}, [&] {
        if (waits) {  // so that another thread has this one's role
          later = std::thread([&] {
            while (workers() && eng.stats().spare_threads == 0) std::this_thread::yield();
            before.Release();
          });
          eng.Wait(b);
        }
        child = fork();
        if (child == 0) alarm(30);
        if (child == 0 && std::this_thread::get_id() == here) _exit(0);
      });
      for (int i = 0; i < kBehind; ++i) eng.Push({.name = "behind", .reads = {a}}, [&] { ++*ran; });
      for (int i = 0; i < kBehind; ++i) eng.Push({.name = "beside"}, [&] { ++*ran; });
      eng.Start();
      if (!waits) before.Release();
      eng.WaitAll();
      if (later.joinable()) later.join();
    }
    EXPECT_TRUE(HowItEnded(child));
    EXPECT_EQ(*ran, 2 * kBehind);
  }
}

// Without workers, a wait runs the ops. The child returns into a wait of the parent's.
TEST_P(ForkTest, TheChildThatReturnsIntoAWaitIsToldSo) {
  if (workers()) GTEST_SKIP() << "a worker may run the op";
  const pid_t parent = getpid();
  const SharedCount ran;
  for (const bool all : {false, true}) {
    *ran = 0;
    pid_t child = 0;
    Engine eng(Quiet(workers()));
    const Var a = eng.NewVar("a");
    eng.Push({.name = "forks", .writes = {a}}, [&] {
      child = fork();
      if (child == 0) alarm(30);
    });
    for (int i = 0; i < 10; ++i) eng.Push({.name = "behind", .updates = {a}}, [&] { ++*ran; });
    bool told = false;
    try {
      all ? eng.WaitAll() : eng.Wait(a);
    } catch (const OpError& e) {
      told = CausedBy<ForkedWhilePending>(e);
    }
    if (getpid() != parent) _exit(told == !all ? 0 : 1);
    EXPECT_FALSE(told);
    EXPECT_TRUE(HowItEnded(child));
    EXPECT_EQ(*ran, 10);
  }
}

// As above, a push that waits for room. What it pushes happens in the parent alone, and the child pushes what it likes.
TEST_P(ForkTest, TheChildThatReturnsIntoAPushIsToldSo) {
  if (workers()) GTEST_SKIP() << "a worker may run the op";
  const pid_t parent = getpid();
  const SharedCount ran;
  pid_t child = 0;
  EngineOptions options = Quiet(workers());
  options.max_pending = 4;
  Engine eng(options);
  const Var a = eng.NewVar("a");
  eng.Push({.name = "forks", .writes = {a}}, [&] {
    child = fork();
    if (child == 0) alarm(30);
  });
  bool told = false;
  try {
    for (int i = 0; i < 1000; ++i) eng.Push({.name = "behind", .updates = {a}}, [&] { ++*ran; });
  } catch (const ForkedWhilePending&) {
    told = true;
  }
  if (getpid() != parent) {
    int mine = 0;
    const Var b = eng.NewVar("b");
    for (int i = 0; i < 1000; ++i) eng.Push({.updates = {b}}, [&] { ++mine; });
    eng.Wait(b);
    _exit(told && mine == 1000 ? 0 : 1);
  }
  EXPECT_FALSE(told);
  EXPECT_TRUE(HowItEnded(child));
  eng.Wait(a);
  EXPECT_EQ(*ran, 1000);
}

TEST_P(ForkTest, AnEngineThatAnotherThreadShutsDownIsClosedInTheChild) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Gate gate;
  eng.Push({.writes = {a}}, [&] { gate.Wait(); });
  std::thread ending([&] { eng.Shutdown(); });
  const auto refused = [&] {
    try {
      eng.Push({.name = "late"}, [] {});
    } catch (const UsageError&) {
      return true;
    }
    return false;
  };
  while (!refused()) std::this_thread::yield();
  EXPECT_TRUE(InChild([&] {
    eng.Shutdown();
    eng.WaitAll();
    return refused() && CausedBy<ForkedWhilePending>(ErrorOf([&] { eng.Wait(a); }));
  }));
  gate.Open();
  ending.join();
  EXPECT_EQ(a.version(), 1u);
}

// Its deletion is over, so the engine has no count of it; the child must not drop one.
TEST_P(ForkTest, AVarThatWasDeletedKeepsItsOtherHandles) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), other = a;
  eng.Delete(a);
  eng.WaitAll();
  a = Var();
  EXPECT_TRUE(InChild([&] {
    Var fresh = eng.NewVar("fresh");
    other = Var();
    eng.Push({.name = "writes", .writes = {fresh}}, [] {});
    eng.Wait(fresh);
    return fresh.version() == 1;
  }));
}

// An exception of the program's may do anything when it goes: this one is the last to have a Var.
TEST_P(ForkTest, ErrorsThatTheChildReplacesStayAlive) {
  struct Holds : std::runtime_error {
    explicit Holds(Var held) : std::runtime_error("planted"), var(std::move(held)) {}
    Var var;
  };
  Engine eng(Quiet(workers()));
  Var v = eng.NewVar("v");
  {
    const Var k = eng.NewVar("k");
    eng.Push({.name = "fails", .writes = {v}}, [k] { throw Holds(k); });
    EXPECT_THROW(eng.Wait(v), OpError);
    eng.WaitAll();
  }
  HeldOp held = HoldWrite(eng, v);
  EXPECT_TRUE(InChild([&] { return CausedBy<ForkedWhilePending>(ErrorOf([&] { eng.Wait(v); })); }));
  held.Release();
}

}  // namespace
}  // namespace engine::test
