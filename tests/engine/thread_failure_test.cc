// The system refuses threads: a clear error, nothing changed, and all goes on once there are threads again.
#include <sys/wait.h>
#include <unistd.h>

#include "engine/bulk.h"
#include "support/no_threads.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

template <class F>
std::string RefusedThread(F&& f) {
  return Caught<Error>(std::forward<F>(f), "an Error").what();
}

TEST(ThreadFailureTest, ConstructorThrowsAndLeavesNothing) {
  for (int allowed = 0; allowed < 4; ++allowed) {
    std::atomic<int> started{0};
    EngineOptions o = Quiet(3);
    o.stall_timeout = 1000ms;  // the watchdog is the fourth
    o.on_start = [&](int) { ++started; };
    {
      const Allow some(allowed);
      EXPECT_TRUE(Has(RefusedThread([&] { Engine eng(o); }), allowed < 3 ? "for a worker" : "for the watchdog"));
    }
    EXPECT_EQ(started, 0);
  }
  const pid_t child = fork();  // looks at all engines
  if (child == 0) _exit(0);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

void FailsOneWait(int workers) {
  Engine eng(Quiet(workers));
  Var a = eng.NewVar("a");
  eng.Push({.name = "waits", .writes = {a}}, [&] {
    Var inner = eng.NewVar("inner");
    eng.Push({.writes = {inner}}, [] {});
    const Allow none(0);
    eng.Wait(inner);
  });
  const OpError e = ErrorOf([&] { eng.Wait(a); });
  EXPECT_EQ(e.op(), "waits");
  EXPECT_TRUE(Has(e.what(), "a stand-in thread"));
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
}
TEST(ThreadFailureTest, AStandInThatCannotBeMadeFailsTheWait) { FailsOneWait(1); }
TEST(ThreadFailureTest, ADriverThatCannotBeMadeFailsTheWait) { FailsOneWait(0); }

void RefusesOnePush(Placement place, EngineOptions o = Quiet(1)) {
  o.io_threads = 2;
  Engine eng(o);
  Var a = eng.NewVar("a");
  int ran = 0;
  for (int allowed = 0; allowed < 2; ++allowed) {
    const Allow some(allowed);
    try {
      eng.Push({.updates = {a}, .place = place}, [&] { ++ran; });
      EXPECT_GT(allowed, 0);
    } catch (const Error& e) {
      EXPECT_TRUE(Has(e.what(), "the system refused a thread"));
    }
  }
  const int accepted = static_cast<int>(eng.stats().pushed);
  eng.Push({.updates = {a}, .place = place}, [&] { ++ran; });
  eng.Wait(a);
  EXPECT_EQ(ran, accepted + 1);
}
TEST(ThreadFailureTest, APushToAPoolWithoutThreadsIsRefused) { RefusesOnePush(Io()); }
TEST(ThreadFailureTest, APushToACopyLaneWithoutAThreadIsRefused) { RefusesOnePush(CopyIn()); }
TEST(ThreadFailureTest, APushToADeviceWithoutThreadsIsRefused) {
  EngineOptions o = Quiet(1);
  o.devices = {MakeSoftwareDevice({})};
  RefusesOnePush(Gpu(), o);
}

TEST(ThreadFailureTest, StartThrowsAndMayBeRepeated) {
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a");
  eng.Stop();
  eng.Push({.updates = {a}}, [] {});
  for (int allowed = 0; allowed < 2; ++allowed) {
    const Allow some(allowed);
    EXPECT_TRUE(Has(RefusedThread([&] { eng.Start(); }), "for a worker"));
    EXPECT_TRUE(Has(RefusedThread([&] { eng.Shutdown(); }), "for a worker"));
  }
  EXPECT_FALSE(eng.WaitFor(a, 1ms));
  eng.Push({.updates = {a}}, [] {});
  eng.Start();
  eng.Wait(a);
  EXPECT_EQ(a.version(), 2u);
}

// Two threads for I/O are wanted, and there is one. It ends with on_end of the role that it had before, which wants them too.
TEST(ThreadFailureTest, AHookOfAThreadThatIsGivenBackMayPushToTheSamePool) {
  EngineOptions o = Quiet(1);
  o.io_threads = 2;
  Engine* engine = nullptr;
  std::atomic<int> ended{0};
  o.on_end = [&](int) {
    if (!engine || ended++ > 0) return;
    try {
      engine->Push({.place = Io()}, [] {});
    } catch (const Error&) {  // no thread, again
    }
  };
  Engine eng(o);
  engine = &eng;
  Gate waits;
  const Var a = eng.NewVar("a");
  HeldOp held = HoldWrite(eng, a);
  eng.Push({.name = "waits"}, [&] {
    waits.Open();
    eng.Wait(a);  // a stand-in plays the role, and this thread is idle afterwards
  });
  waits.Wait();
  held.Release();
  eng.WaitAll();
  {
    const Allow none(0);
    EXPECT_THROW(eng.Push({.place = Io()}, [] {}), Error);
  }
  eng.Push({.place = Io()}, [] {});
  eng.WaitAll();
  eng.Shutdown();
  engine = nullptr;
}

TEST(ThreadFailureTest, AStoppedEngineThatCannotStartGivesUpInItsDestructor) {
  Log log;
  {
    const Allow some(2);
    Engine eng(Reporting(2, log));
    eng.Stop();
    eng.Push({}, [] {});
  }
  EXPECT_TRUE(log.Contains("shutdown gave up: the system refused a thread"));
}

TEST(ThreadFailureTest, ABulkWithoutAClockHoldsNothing) {
  Engine eng(OnDevice(1));
  Var a = eng.NewVar("a");
  eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  eng.Wait(a);  // the device has its threads
  Bulk bulk(eng);
  Gate first, second;
  {
    const Allow none(0);
    eng.Push({.updates = {a}, .place = Gpu(0)}, [&] { first.Open(); });
    first.Wait();
  }
  eng.Push({.updates = {a}, .place = Gpu(0)}, [&] { second.Open(); });
  second.Wait();  // there is a clock now
}

TEST(ThreadFailureTest, AForksChildTriesAgain) {
  if (kSanitized) GTEST_SKIP() << "as ForkTest: the tools do not support threads in a fork's child";
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a");
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    bool refused = false;
    {
      const Allow one(1);
      try {
        eng.Push({.writes = {a}}, [] {});
      } catch (const Error&) {
        refused = true;
      }
    }
    eng.Push({.writes = {a}}, [] {});
    eng.Wait(a);
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace engine::test
