// Records: an event is recorded for somebody, and else behind each 16 ops of a lane.
#include <csignal>

#include "device_test.h"

namespace engine::test {
namespace {

// Keeps the thread that issues until everything is pushed, so that it never runs out of ops.
struct BusyIssuer {
  explicit BusyIssuer(Rig& r, Placement place = Gpu(0, 9)) : rig(r) {
    var = rig.eng().NewVar("busy");
    rig.eng().Push({.name = "busy", .updates = {var}, .place = place}, [this](RunContext&) {
      began.Open();
      gate.Wait();
    });
    began.Wait();
  }
  ~BusyIssuer() {
    gate.Open();
    rig.eng().Wait(var);
  }
  Rig& rig;
  Var var;
  Gate began, gate;
};

TEST(DeviceRecords, AChainHasOneForEachSixteenOps) {
  Rig rig;
  Var x = rig.eng().NewVar("x");
  std::optional<BusyIssuer> busy(rig);
  const DeviceCounts before = rig.device().counts();
  for (int i = 0; i < 1000; ++i) rig.Push({.name = "op", .updates = {x}, .place = Gpu(0, 0)});
  busy->gate.Open();
  rig.eng().Wait(x);
  rig.eng().Wait(busy->var);
  const DeviceCounts made = rig.device().counts() - before;
  EXPECT_EQ(made[DeviceCall::kLaunch], 1000u);
  EXPECT_EQ(made[DeviceCall::kRecord], 1000u / 16 + 1 + 1) << "one for who waits, and one for the other lane";
  EXPECT_EQ(made[DeviceCall::kWait], 0u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kCreateEvent], rig.eng().device_stats().events);
}

TEST(DeviceRecords, ABulkHasAtMostOneAtItsEnd) {
  Rig rig;
  Var x = rig.eng().NewVar("x");
  std::optional<BusyIssuer> busy(rig);
  const DeviceCounts before = rig.device().counts();
  HeldOps bulk(rig.eng());
  for (int b = 0; b < 20; ++b) {
    for (int i = 0; i < 15; ++i)
      bulk.Push({.name = "member", .updates = {x}, .place = Gpu(0, 0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
    bulk.Release();
  }
  for (int i = 0; i < 100; ++i)
    bulk.Push({.name = "long", .updates = {x}, .place = Gpu(0, 0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  bulk.Release();
  busy->gate.Open();
  rig.eng().Wait(x);
  rig.eng().Wait(busy->var);
  const DeviceCounts made = rig.device().counts() - before;
  EXPECT_EQ(made[DeviceCall::kLaunch], 400u);
  EXPECT_EQ(made[DeviceCall::kRecord], 10u + 1 + 1) << "each second bulk of 15, the long one, the other lane";
}

// The thread that issues may lose its processor in the middle of a run. Nobody records for it: all is launched, and the run's end
// comes with a record.
TEST(DeviceRecords, ARunThatWasLaunchedAsAGraphHasOneWhoeverLosesItsProcessor) {
  constexpr uint64_t kMembers = 8000;
  static std::atomic<int> stalls;
  struct sigaction stall {};
  stall.sa_handler = [](int) {
    ++stalls;
    const timespec longer_than_a_run_may_take{0, 60'000'000};
    nanosleep(&longer_than_a_run_may_take, nullptr);
  };
  struct sigaction before_us {};
  ASSERT_EQ(sigaction(SIGUSR2, &stall, &before_us), 0);
  Rig rig;
  const Var x = rig.eng().NewVar("x");
  std::atomic<pthread_t> issuer{};
  const auto run = [&] {
    HeldOps bulk(rig.eng());
    for (uint64_t i = 0; i < kMembers; ++i)
      bulk.Push({.name = "member", .updates = {x}, .place = Gpu(0, 0), .graph = {.kind = 1 + i, .one_call = true}},
                [&](RunContext& ctx) {
                  issuer = pthread_self();
                  rig.Launch(ctx, "k");
                });
    bulk.Release();
  };
  for (int warm = 0; warm < 4; ++warm) {
    run();
    rig.eng().WaitAll();
  }
  for (int attempt = 0; attempt < 20; ++attempt) {
    const DeviceCounts before = rig.device().counts();
    const uint64_t issued = rig.eng().device_stats().issued;
    const int stalled = stalls;
    run();
    std::thread waits([&] { rig.eng().WaitAll(); });
    while (rig.eng().device_stats().issued == issued) std::this_thread::yield();
    pthread_kill(issuer, SIGUSR2);
    while (stalls == stalled) std::this_thread::yield();
    const uint64_t now = rig.eng().device_stats().issued;
    waits.join();
    const DeviceCounts made = rig.device().counts() - before;
    ASSERT_EQ(made[DeviceCall::kLaunchGraph], 1u);
    EXPECT_EQ(made[DeviceCall::kRecord], 1u);
    if (now > issued && now < issued + kMembers) break;  // it was in the middle
  }
  EXPECT_EQ(sigaction(SIGUSR2, &before_us, nullptr), 0);
}

TEST(DeviceRecords, AFanInOverLanesHasOneForEachOther) {
  Rig rig({}, 1, 4);
  std::array<Var, 4> chains;
  for (Var& v : chains) v = rig.eng().NewVar();
  Var out = rig.eng().NewVar("out");
  const uint64_t hold = rig.PushHeldKernel({.updates = {chains[1]}, .place = Gpu(0, 1)});
  std::optional<BusyIssuer> busy(rig);
  const DeviceCounts before = rig.device().counts();
  for (uint8_t lane = 0; lane < 4; ++lane)
    for (int i = 0; i < 5; ++i) rig.Push({.name = "op", .updates = {chains[lane]}, .place = Gpu(0, lane)});
  // Lane 1 is held, and the others wait for it, so that nothing has ended when the last op looks.
  rig.Push({.name = "join", .reads = chains, .writes = {out}, .place = Gpu(0, 1)});
  busy->gate.Open();
  while (rig.eng().device_stats().issued < 2u + 20 + 1) std::this_thread::yield();
  const DeviceCounts made = rig.device().counts() - before;
  EXPECT_LE(made[DeviceCall::kWait], 3u);
  rig.device().Release(hold);
  rig.eng().Wait(out);
  rig.eng().Wait(busy->var);
  EXPECT_LE((rig.device().counts() - before)[DeviceCall::kRecord], 3u + 1 + 1)
      << "three lanes, who waits, the busy one";
}

TEST(DeviceRecords, AnOpOnTheHostWaitsForNoMoreThanItNeeds) {
  Rig rig({}, 2);
  Var x = rig.eng().NewVar("x"), behind = rig.eng().NewVar("behind"), seen = rig.eng().NewVar("seen");
  std::optional<BusyIssuer> busy(rig);
  Gate ran;
  uint64_t hold = 0;
  Gate held;
  rig.Push({.name = "needed", .updates = {x}, .place = Gpu(0, 0)});
  rig.eng().Push({.name = "host", .reads = {x}, .writes = {seen}}, [&] { ran.Open(); });
  rig.eng().Push({.name = "held", .updates = {behind}, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
    ASSERT_TRUE(rig.device().LaunchHeld(ctx.stream(), "held", &hold).ok());
    held.Open();
  });
  busy->gate.Open();
  ran.Wait();  // while the kernel that is behind has not ended
  held.Wait();
  rig.device().Release(hold);
  rig.eng().WaitAll();
}

// Nothing is recorded, and the issuer stays in a body: whoever waits has a record made.
TEST(DeviceRecords, WhoeverComesLaterMakesOne) {
  Rig rig({}, 2);
  Var x = rig.eng().NewVar("x"), y = rig.eng().NewVar("y");
  std::optional<BusyIssuer> first(rig);
  for (int i = 0; i < 3; ++i) rig.Push({.name = "op", .updates = {x, y}, .place = Gpu(0, 0)});
  Gate began, over;
  Var last = rig.eng().NewVar("last");
  rig.eng().Push({.name = "stays", .updates = {last}, .place = Gpu(0, 1)}, [&](RunContext&) {
    began.Open();
    over.Wait();
  });
  first->gate.Open();
  began.Wait();
  rig.eng().Wait(x);  // by this thread
  Gate ran;
  rig.eng().Push({.name = "host", .updates = {y}}, [&] { ran.Open(); });  // by a worker
  ran.Wait();
  over.Open();
  rig.eng().WaitAll();
}

TEST(DeviceRecords, OneThatFailsWhereSomebodyWaitsLosesTheDevice) {
  Rig rig;
  Var x = rig.eng().NewVar("x"), other = rig.eng().NewVar("other");
  Gate began, over;
  for (int i = 0; i < 3; ++i) rig.Push({.name = "op", .updates = {x}, .place = Gpu(0, 0)});
  rig.eng().Push({.name = "stays", .updates = {other}, .place = Gpu(0, 1)}, [&](RunContext&) {
    began.Open();
    over.Wait();
  });
  began.Wait();
  // For good: else this thread may make a record, and see its op done, before the issuer says that its own one failed.
  rig.device().FailCall(DeviceCall::kRecord, 1, DeviceCode::kUnknown, true);
  rig.Push({.name = "op", .updates = {x}, .place = Gpu(0, 0)});
  over.Open();
  ExpectHas(FailureOf(rig.eng(), x).text, "was lost");
}

}  // namespace
}  // namespace engine::test
