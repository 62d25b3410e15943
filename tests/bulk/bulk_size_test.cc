// Bulk sizes of threads, and MXNet's faults of its bulk, each a test.
#include <sys/wait.h>
#include <unistd.h>

#include "engine/bulk.h"
#include "engine/testing/bulk_clock.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(BulkSizeTest);

TEST_P(BulkSizeTest, ReturnsTheSizeBeforeAndIsOfOneThreadAndEngine) {
  Engine eng(OnDevice(workers())), other(Quiet(1));
  EXPECT_EQ(SetBulkSize(eng, 15), 0);
  EXPECT_EQ(SetBulkSize(eng, 4), 15);
  EXPECT_EQ(SetBulkSize(other, 3), 0);
  std::thread([&] { EXPECT_EQ(SetBulkSize(eng, 2), 0); }).join();
  EXPECT_EQ(SetBulkSize(eng, 1), 4);
  EXPECT_EQ(SetBulkSize(eng, 0), 1);
  EXPECT_EQ(SetBulkSize(eng, 0), 0);
  EXPECT_EQ(SetBulkSize(other, 0), 3);
}

TEST_P(BulkSizeTest, BulksWhatTheThreadPushes) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  SetBulkSize(eng, 15);
  for (int i = 0; i < 45; ++i) eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  SetBulkSize(eng, 0);
  eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  eng.Wait(a);
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 4u);
}

TEST_P(BulkSizeTest, ASizeThatIsRefusedChangesNothing) {
  Engine eng(OnDevice(workers()));
  SetBulkSize(eng, 7);
  for (const int size : {-15, kMaxBulkSize + 1})
    EXPECT_TRUE(Has(RefusalOf([&] { SetBulkSize(eng, size); }), std::to_string(size)));
  EXPECT_EQ(SetBulkSize(eng, 0), 7);
}

TEST_P(BulkSizeTest, AChangeOfSizeReleases) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  SetBulkSize(eng, 15);
  eng.Push({.place = Gpu(0)}, [] {});
  EXPECT_TRUE(bulk_clock.Tick());
  SetBulkSize(eng, 30);
  EXPECT_FALSE(bulk_clock.Tick());
  SetBulkSize(eng, 0);
}

TEST_P(BulkSizeTest, EnginesThatHaveGoneAreForgotten) {
  for (int i = 0; i < 20; ++i) {
    Engine eng(OnDevice(workers()));
    EXPECT_EQ(SetBulkSize(eng, 15), 0) << "a new engine, wherever it lies";
    eng.Push({.place = Gpu(0)}, [] {});
  }
}

TEST(BulkSizeExit, AProcessMayEndWithAnOpenBulk) {
  EXPECT_EXIT(
      {
        static Engine eng(OnDevice(2));
        SetBulkSize(eng, 1000);
        for (int i = 0; i < 100; ++i) eng.Push({.place = Gpu(0)}, [] {});
        atexit([] { fprintf(stderr, "leaving\n"); });
        exit(0);
      },
      testing::ExitedWithCode(0), "leaving");
}

TEST_P(BulkSizeTest, AForksChildHasAnEmptyBulkAndAClockOfItsOwn) {
  if (kSanitized) GTEST_SKIP() << "sanitizers do not support threads made in a fork child";
  Engine eng(OnDevice(workers()));
  SetBulkSize(eng, 1000);
  eng.Push({.place = Gpu(0)}, [] {});
  eng.WaitAll();  // the clock runs
  eng.Push({.place = Gpu(0)}, [] {});
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    if (SetBulkSize(eng, 0) != 1000) _exit(1);
    Engine own(OnDevice(workers()));  // devices are lost in a fork's child
    SetBulkSize(own, 1000);
    Var b = own.NewVar("b");
    Counter ran;
    for (int i = 0; i < 3; ++i) own.Push({.updates = {b}, .place = Gpu(0)}, [&] { ran.Add(); });
    ran.WaitFor(3);  // released by the child's clock
    own.Wait(b);
    _exit(b.version() == 3 ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  eng.WaitAll();
  EXPECT_EQ(eng.stats().completed, 2u) << "the parent lost nothing";
  SetBulkSize(eng, 0);
}

// --- MXNet's faults

TEST_P(BulkSizeTest, MxnetLosesTheBulkOfAThreadThatEnds) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  bool ran = false;
  std::thread([&] {
    SetBulkSize(eng, 15);
    eng.Push({.writes = {a}, .place = Gpu(0)}, [&] { ran = true; });
  }).join();
  while (eng.stats().completed == 0) std::this_thread::yield();  // nobody waits for it: the thread's end released it
  eng.Wait(a);
  EXPECT_TRUE(ran);
}

TEST_P(BulkSizeTest, MxnetGivesOtherThreadsStaleValues) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  int value = 0, seen = -1;
  SetBulkSize(eng, 15);
  eng.Push({.writes = {a}, .place = Gpu(0)}, [&] { value = 42; });
  std::thread([&] {
    eng.Wait(a);
    seen = value;
  }).join();
  EXPECT_EQ(seen, 42);
  SetBulkSize(eng, 0);
}

TEST_P(BulkSizeTest, MxnetPoisonsAWholeBulkByOneFailure) {
  Engine eng(OnDevice(workers()));
  std::vector<Var> vars;
  for (int i = 0; i < 8; ++i) vars.push_back(eng.NewVar("v" + std::to_string(i)));
  SetBulkSize(eng, 8);
  for (int i = 0; i < 8; ++i)
    eng.Push(
        {.name = Name::Intern("op" + std::to_string(i)), .writes = {vars[static_cast<size_t>(i)]}, .place = Gpu(0)},
        [i] {
          if (i == 3) throw std::runtime_error("planted");
        });
  for (int i = 0; i < 8; ++i) {
    if (i == 3) {
      EXPECT_EQ(ErrorOf([&] { eng.Wait(vars[3]); }).op(), "op3");
    } else {
      EXPECT_NO_THROW(eng.Wait(vars[static_cast<size_t>(i)])) << i;
    }
  }
  SetBulkSize(eng, 0);
}

TEST_P(BulkSizeTest, MxnetStopsBulkingWhileItIsProfiled) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  uint64_t dispatches[2];
  SetBulkSize(eng, 15);
  for (const bool traced : {false, true}) {
    if (traced) eng.StartTrace();
    const uint64_t before = eng.stats().dispatches;
    for (int i = 0; i < 150; ++i) eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
    eng.Wait(a);
    eng.WaitAll();
    dispatches[traced] = eng.stats().dispatches - before;
    if (traced) {
      EXPECT_EQ(eng.StopTrace().events.size(), 150u);
    }
  }
  EXPECT_EQ(dispatches[0], 10u);
  EXPECT_EQ(dispatches[1], 10u);
  EXPECT_EQ(SetBulkSize(eng, 0), 15) << "and the size is as it was set";
}

}  // namespace
}  // namespace engine::test
