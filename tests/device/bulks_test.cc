// Counters that hold exactly: one record and one merged set of waits a bulk, events made once, the least of waits.
#include "device_test.h"

namespace engine::test {
namespace {

TEST(DeviceBulk, OneDispatchAndAtMostOneRecordEach) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  rig.eng().StartTrace();
  HeldOps held(rig.eng());
  int in_bulk = 0;
  for (int i = 0; i < 1000; ++i) {
    held.Push({.name = "member", .updates = {a}, .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "kernel"); });
    if (++in_bulk == 15) {
      held.Release();
      in_bulk = 0;
    }
  }
  held.Release();
  rig.eng().WaitAll();
  EXPECT_EQ(rig.eng().stats().dispatches, 67u);
  EXPECT_LE(rig.device().counts()[DeviceCall::kRecord], 67u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kWait], 0u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kLaunch], 1000u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kSynchronize], 0u);
  const auto events = rig.eng().StopTrace().events;
  EXPECT_EQ(
      std::count_if(events.begin(), events.end(), [](const TraceEvent& e) { return e.name == std::string("member"); }),
      1000);
}

// Readers in two bulks that have long ended are no reason to let go of the bulk of the next writer.
TEST(DeviceBulk, AWriteBehindReadersOfEarlierBulksEndsNoBulk) {
  Rig rig;
  Var weight = rig.eng().NewVar("weight"), a = rig.eng().NewVar("a");
  HeldOps held(rig.eng());
  const auto kernel = [&](RunContext& ctx) { rig.Launch(ctx, "k"); };
  for (int bulk = 0; bulk < 2; ++bulk) {
    for (int i = 0; i < 2; ++i) held.Push({.reads = {weight}, .updates = {a}, .place = Gpu(0)}, kernel);
    held.Release();
  }
  rig.eng().WaitAll();
  for (uint32_t i = 1; i <= 5; ++i) EXPECT_EQ(held.Push({.updates = {weight}, .place = Gpu(0)}, kernel), i);
  held.Release();
  rig.eng().WaitAll();
  EXPECT_EQ(rig.eng().stats().dispatches, 3u);
}

// The same while they run: the writer's own bulk need not go for their sake.
TEST(DeviceBulk, AWriteBehindReadersThatRunEndsNoBulk) {
  Rig rig;
  Var weight = rig.eng().NewVar("weight"), a = rig.eng().NewVar("a");
  HeldOp behind = rig.eng().PushHeld({.updates = {a}}, [] {});
  rig.issued_elsewhere = 1;
  HeldOps held(rig.eng());
  const auto kernel = [&](RunContext& ctx) { rig.Launch(ctx, "k"); };
  for (int bulk = 0; bulk < 2; ++bulk) {
    held.Push({.reads = {weight, a}, .place = Gpu(0)}, kernel);
    held.Push({.reads = {weight, a}, .place = Gpu(0)}, kernel);
    held.Release();
  }
  for (uint32_t i = 1; i <= 5; ++i) EXPECT_EQ(held.Push({.updates = {weight}, .place = Gpu(0)}, kernel), i);
  behind.Release();
  held.Release();
  rig.eng().WaitAll();
}

TEST(DeviceBulk, WaitsOnceForEachLane) {
  Rig rig;
  Var x = rig.eng().NewVar("x"), y = rig.eng().NewVar("y"), z = rig.eng().NewVar("z");
  // Three writes on lane 7, three on lane 8, each with a record of its own.
  std::vector<Var> in;
  for (int i = 0; i < 6; ++i) {
    in.push_back(rig.eng().NewVar());
    rig.Push({.writes = {in.back()}, .place = Gpu(0, i % 2 ? 7 : 8)});
  }
  rig.PushHeldKernel({.writes = {x}, .place = Gpu(0, 7)});
  rig.PushHeldKernel({.writes = {y}, .place = Gpu(0, 8)});
  HeldOps held(rig.eng());
  for (Var& v : in)
    held.Push({.reads = {v}, .updates = {z}, .place = Gpu(0, 0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  held.Push({.reads = {x, y}, .updates = {z}, .place = Gpu(0, 0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  held.Release();
  rig.WaitIssued();
  EXPECT_EQ(rig.device().counts()[DeviceCall::kWait], 2u) << "one a lane, though seven members need something of them";
}

TEST(DeviceBulk, AWaitThatAnotherBringsAlongIsElided) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b"), c = rig.eng().NewVar("c");
  rig.PushHeldKernel({.writes = {a}, .place = Gpu(0, 0)});
  rig.Push({.reads = {a}, .writes = {b}, .place = Gpu(0, 1)});      // waits for lane 0
  rig.Push({.reads = {a, b}, .writes = {c}, .place = Gpu(0, 2)});   // for lane 1, which brings lane 0
  rig.Push({.reads = {a, b}, .updates = {c}, .place = Gpu(0, 2)});  // for nothing
  rig.Push({.reads = {c}, .updates = {a}, .place = Gpu(0, 0)});     // for lane 2, which brings lane 1
  rig.WaitIssued();
  EXPECT_EQ(rig.device().counts()[DeviceCall::kWait], 3u);
  EXPECT_EQ(rig.eng().device_stats().waits, 3u);
}

TEST(DeviceBulk, EventsAreMadeOnceAndNeverRecordedWhileSomebodyMayWait) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  const auto push = [&] {
    for (int i = 0; i < 20; ++i) {
      rig.Push({.updates = {a}, .place = Gpu(0, 0)});
      rig.Push({.reads = {a}, .updates = {b}, .place = Gpu(0, 1)});
    }
  };
  const auto wait_recorded = [&](uint64_t n) {
    while (rig.eng().device_stats().records < n) std::this_thread::yield();
  };
  // All of a step is recorded before any of it ends: then the first needs as many events as a step ever can. To be
  // issued is not enough: the last op's record comes later, and could take an event that is free again.
  const uint64_t hold = rig.PushHeldKernel({.updates = {a}, .place = Gpu(0, 0)});
  wait_recorded(1);
  push();
  wait_recorded(41);
  rig.device().Release(hold);
  rig.eng().WaitAll();
  const DeviceCounts before = rig.device().counts();
  for (int i = 0; i < 20; ++i) {
    push();
    rig.eng().WaitAll();
  }
  const DeviceCounts made = rig.device().counts() - before;
  EXPECT_EQ(made[DeviceCall::kCreateEvent], 0u);
  EXPECT_EQ(made[DeviceCall::kCreateStream], 0u);
  EXPECT_EQ(made[DeviceCall::kAllocate], 0u);
  EXPECT_EQ(made[DeviceCall::kRecord], 800u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kRecordPending], 0u);
}

TEST(DeviceBulk, MembersGoWhereTheyAskToGo) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  const uint64_t hold = rig.PushHeldKernel({.updates = {a}, .place = Gpu(0, 0)});
  rig.WaitIssued();
  std::array<Stream, 3> on;
  HeldOps held(rig.eng());
  for (size_t i = 0; i < on.size(); ++i)
    held.Push({.updates = {a}, .place = Gpu(0, i == 0 ? 0 : 1)}, [&on, i](RunContext& ctx) { on[i] = ctx.stream(); });
  const auto before = rig.eng().device_stats();
  held.Release();
  rig.device().Release(hold);
  rig.eng().Wait(a);
  const auto after = rig.eng().device_stats();
  EXPECT_NE(on[0], on[1]);
  EXPECT_EQ(on[1], on[2]);
  EXPECT_GE(after.records - before.records, 2u) << "one for each lane";
  EXPECT_LE(after.records - before.records, 3u) << "and one for the op before, where the issuer was idle only later";
  EXPECT_EQ(after.waits - before.waits, 1u);
}

TEST(DeviceBulk, ASplitRunStillRecordsItsParts) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b"), c = rig.eng().NewVar("c");
  HeldOp outside = rig.eng().PushHeld({.writes = {b}}, [] {});
  HeldOps held(rig.eng());
  std::atomic<int> ran{0};
  const auto kernel = [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ++ran; }); };
  held.Push({.updates = {a}, .place = Gpu(0)}, kernel);
  held.Push({.updates = {a}, .place = Gpu(0)}, kernel);
  held.Push({.reads = {b}, .updates = {c}, .place = Gpu(0)}, kernel);
  held.Push({.updates = {c}, .place = Gpu(0)}, kernel);
  held.Release();
  rig.eng().Wait(a);
  EXPECT_EQ(ran, 2);
  outside.Release();
  rig.eng().Wait(c);
  EXPECT_EQ(ran, 4);
}

}  // namespace
}  // namespace engine::test
