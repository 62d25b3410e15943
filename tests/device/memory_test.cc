// Memory in the order of the lanes: taken again without the driver and without the host waiting.
#include "device_test.h"

namespace engine::test {
namespace {

TEST(DeviceMemoryPool, TheSameLaneTakesItAgainAtOnce) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  for (int i = 0; i < 50; ++i)
    rig.eng().Push({.updates = {a}, .place = Gpu(0)}, [&](RunContext& ctx) {
      DeviceMemory scratch = ctx.Allocate(1000);
      EXPECT_GE(scratch.bytes(), 1000u);
      rig.Launch(ctx, "k");
    });
  rig.eng().WaitAll();
  EXPECT_EQ(rig.device().counts()[DeviceCall::kAllocate], 1u);
  EXPECT_EQ(rig.eng().device_stats().waits, 0u);
}

TEST(DeviceMemoryPool, AnotherLaneWaitsOnTheDevice) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  void* first = nullptr;
  Gate issued;
  uint64_t hold = 0;
  rig.eng().Push({.writes = {a}, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
    DeviceMemory scratch = ctx.Allocate(4096);
    first = scratch.data();
    ASSERT_TRUE(rig.device().LaunchHeld(ctx.stream(), "user", &hold).ok());
    rig.holds.push_back(hold);
    issued.Open();
  });
  issued.Wait();
  void* second = nullptr;
  std::atomic<bool> ran{false};
  rig.eng().Push({.writes = {b}, .place = Gpu(0, 1)}, [&](RunContext& ctx) {
    DeviceMemory scratch = ctx.Allocate(4096);
    second = scratch.data();
    rig.Launch(ctx, "next user", [&] { ran = true; });
  });
  rig.WaitIssued();
  EXPECT_EQ(first, second);
  EXPECT_EQ(rig.eng().device_stats().waits, 1u);
  EXPECT_FALSE(ran);
  rig.device().Release(hold);
  rig.eng().WaitAll();
  EXPECT_TRUE(ran);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kAllocate], 1u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kSynchronize], 0u);
}

TEST(DeviceMemoryPool, ABlockThatGoesWithItsClosureIsFreeAtOnce) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  auto memory = std::make_shared<DeviceMemory>();
  rig.eng().Push({.writes = {a}, .place = Gpu(0, 0)}, [memory](RunContext& ctx) { *memory = ctx.Allocate(100); });
  rig.eng().Push({.updates = {a}, .place = Gpu(0, 0)}, [memory, &rig](RunContext& ctx) { rig.Launch(ctx, "k"); });
  memory.reset();
  rig.eng().WaitAll();
  rig.eng().Push({.updates = {a}, .place = Gpu(0, 3)}, [](RunContext& ctx) { (void)ctx.Allocate(100); });
  rig.eng().WaitAll();
  EXPECT_EQ(rig.device().counts()[DeviceCall::kAllocate], 1u);
}

TEST(DeviceMemoryPool, GivenBackOnTheHostItIsBehindAllThatIsIssued) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  DeviceMemory memory;
  rig.eng().Push({.writes = {a}, .place = Gpu(0, 0)}, [&](RunContext& ctx) { memory = ctx.Allocate(100); });
  rig.eng().WaitAll();
  rig.PushHeldKernel({.updates = {a}, .place = Gpu(0, 0)});
  rig.WaitIssued();
  memory.Reset();
  rig.eng().Push({.writes = {b}, .place = Gpu(0, 1)}, [](RunContext& ctx) { (void)ctx.Allocate(100); });
  rig.WaitIssued();
  EXPECT_EQ(rig.eng().device_stats().waits, 1u);
}

TEST(DeviceMemoryPool, PinnedMemoryIsTakenAgainOnlyWhenItsUseHasEnded) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  std::vector<void*> seen;
  Gate issued;
  uint64_t hold = 0;
  rig.eng().Push({.writes = {a}, .place = CopyIn(0)}, [&](RunContext& ctx) {
    DeviceMemory staging = ctx.AllocatePinned(256);
    seen.push_back(staging.data());
    ASSERT_TRUE(rig.device().LaunchHeld(ctx.stream(), "copy", &hold).ok());
    rig.holds.push_back(hold);
    issued.Open();
  });
  issued.Wait();
  const auto take = [&](RunContext& ctx) { seen.push_back(ctx.AllocatePinned(256).data()); };
  rig.eng().Push({.updates = {a}, .place = CopyIn(0)}, take);
  rig.WaitIssued();
  EXPECT_NE(seen[0], seen[1]);
  rig.device().Release(hold);
  rig.eng().WaitAll();
  rig.eng().Push({.updates = {a}, .place = CopyIn(0)}, take);
  rig.eng().WaitAll();
  EXPECT_TRUE(seen[2] == seen[0] || seen[2] == seen[1]);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kAllocatePinned], 2u);
}

TEST(DeviceMemoryPool, OutOfMemoryGivesBackThenWaitsThenSaysSo) {
  SoftwareDeviceOptions options;
  options.memory_bytes = 1 << 20;
  Rig rig(options);
  Var a = rig.eng().NewVar("a");
  const auto use = [&](size_t bytes) {
    rig.eng().Push({.name = "use", .writes = {a}, .place = Gpu(0, 0)}, [&rig, bytes](RunContext& ctx) {
      DeviceMemory block = ctx.Allocate(bytes);
      rig.Launch(ctx, "k");
    });
  };
  use(700 << 10);
  use(300 << 10);
  rig.eng().Wait(a);
  use(900 << 10);  // only if the other two are given back to the driver
  rig.eng().Wait(a);
  use(2 << 20);
  try {
    rig.eng().Wait(a);
    FAIL() << "there is no such memory";
  } catch (const OpError& e) {
    EXPECT_NE(std::string(e.what()).find("OutOfMemory"), std::string::npos) << e.what();
  }
  use(100 << 10);
  rig.eng().Wait(a);
}

// The second try waits for what is issued: the only synchronizations that the engine makes by itself, and it counts them.
TEST(DeviceMemoryPool, OutOfMemoryWaitsForWhatIsInUseAndTriesThreeTimes) {
  SoftwareDeviceOptions options;
  options.memory_bytes = 1 << 20;
  Rig rig(options);
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  Gate issued;
  uint64_t hold = 0;
  rig.eng().Push({.name = "user", .writes = {a}, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
    DeviceMemory block = ctx.Allocate(700 << 10);
    ASSERT_TRUE(rig.device().LaunchHeld(ctx.stream(), "held", &hold).ok());
    issued.Open();
  });
  issued.Wait();
  rig.eng().Push({.name = "next", .writes = {b}, .place = Gpu(0, 1)}, [&](RunContext& ctx) {
    DeviceMemory block = ctx.Allocate(900 << 10);
    rig.Launch(ctx, "k");
  });
  while (rig.device().counts()[DeviceCall::kSynchronize] == 0) std::this_thread::yield();
  EXPECT_FALSE(rig.eng().WaitFor(b, 0s));
  rig.device().Release(hold);
  rig.eng().Wait(b);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kAllocate], 4u) << "the user's, and three tries";
  EXPECT_EQ(rig.eng().device_stats().host_syncs, 2u) << "the user's lane, and its own";
  rig.eng().Push({.name = "too much", .writes = {b}, .place = Gpu(0, 1)},
                 [&](RunContext& ctx) { (void)ctx.Allocate(2 << 20); });
  EXPECT_THROW(rig.eng().Wait(b), OpError);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kAllocate], 7u) << "three tries, and no more";
}

TEST(DeviceMemoryPool, NoDriverCallInTheSteadyState) {
  Rig rig;
  std::vector<Var> vars;
  for (int i = 0; i < 4; ++i) vars.push_back(rig.eng().NewVar());
  const auto step = [&] {
    for (int k = 0; k < 40; ++k)
      rig.eng().Push({.updates = {vars[k % 4]}, .place = Gpu(0, static_cast<uint8_t>(k % 4))}, [&, k](RunContext& ctx) {
        DeviceMemory a = ctx.Allocate(1000 << (k % 3)), b = ctx.Allocate(64);
        rig.Launch(ctx, "k");
      });
    rig.eng().WaitAll();
  };
  for (int i = 0; i < 5; ++i) step();
  const DeviceCounts before = rig.device().counts();
  for (int i = 0; i < 50; ++i) step();
  const DeviceCounts after = rig.device().counts() - before;
  EXPECT_EQ(after[DeviceCall::kAllocate] + after[DeviceCall::kFree] + after[DeviceCall::kSynchronize], 0u);
}

TEST(DeviceMemoryPool, ABlockOutlivesItsEngine) {
  DeviceMemory memory;
  auto device = MakeSoftwareDevice();
  {
    EngineOptions options = Quiet(1);
    options.devices = {device};
    Engine eng(options);
    Var a = eng.NewVar("a");
    eng.Push({.writes = {a}, .place = Gpu(0)}, [&](RunContext& ctx) { memory = ctx.Allocate(10); });
    eng.Wait(a);
  }
  memory.Reset();
  EXPECT_EQ(device->counts()[DeviceCall::kFree], 1u);
}

TEST(LaneLocals, AreMadeOnceForEachLaneAndGoWithTheEngine) {
  static std::atomic<int> alive{0};
  static const char key = 0;
  struct Handle {
    Handle() { ++alive; }
    ~Handle() { --alive; }
  };
  {
    Rig rig;
    Var a = rig.eng().NewVar("a");
    std::vector<void*> seen;
    for (int i = 0; i < 6; ++i)
      rig.eng().Push({.updates = {a}, .place = Gpu(0, static_cast<uint8_t>(i % 2))}, [&](RunContext& ctx) {
        seen.push_back(
            ctx.LaneLocal(&key, [](RunContext&) -> std::shared_ptr<void> { return std::make_shared<Handle>(); }));
      });
    rig.eng().WaitAll();
    EXPECT_EQ(alive, 2);
    EXPECT_EQ(seen[0], seen[2]);
    EXPECT_NE(seen[0], seen[1]);
  }
  EXPECT_EQ(alive, 0);
}

TEST(DeviceMemoryPool, MoreThanAnyDeviceHasIsRefused) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 3, (SIZE_MAX / 8) * 7 + 100}) {
    rig.eng().Push({.writes = {a}, .place = Gpu(0)}, [&](RunContext& ctx) { (void)ctx.Allocate(bytes); });
    EXPECT_TRUE(Has(ErrorOf([&] { rig.eng().Wait(a); }).what(), "kOutOfMemory: Allocate: " + std::to_string(bytes)));
  }
}

}  // namespace
}  // namespace engine::test
