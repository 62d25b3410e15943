// Who asks the device what has ended, and when: nobody while nobody waits, and whoever waits is told.
#include "device_test.h"
#include "engine/plan.h"

namespace engine::test {
namespace {

TEST(DevicePolls, NobodyAsksWhileNobodyWaits) {
  Rig rig;
  Var x = rig.eng().NewVar("x");
  std::atomic<int> ran{0};
  const auto held = std::make_shared<int>();
  for (int i = 0; i < 200; ++i)
    rig.eng().Push({.name = "op", .updates = {x}, .place = Gpu(0)},
                   [&, held](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ++ran; }); });
  while (ran < 200) std::this_thread::yield();
  EXPECT_EQ(rig.device().counts()[DeviceCall::kQuery], 0u);
  rig.eng().Wait(x);
  rig.eng().WaitAll();
  EXPECT_GT(rig.device().counts()[DeviceCall::kQuery], 0u);
  EXPECT_EQ(rig.eng().stats().completed, 200u);
  while (held.use_count() > 1) std::this_thread::yield();  // closures go with the ops
}

// By itself it would never look, so each of these has to bring it about.
TEST(DevicePolls, WhoeverLooksIsTold) {
  Rig rig;
  Var x = rig.eng().NewVar("x");
  Graph graph;
  graph.Add({.name = "node", .updates = {x}, .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  const Plan plan = graph.Compile(rig.eng());
  for (int round = 0; round < 20; ++round) {
    engine::Run run = plan.Start();
    while (!run.done()) std::this_thread::yield();
    rig.Push({.updates = {x}});
    while (rig.eng().stats().completed < rig.eng().stats().pushed) std::this_thread::yield();
    rig.Push({.updates = {x}});
    while (rig.eng().device_stats().retired < rig.eng().device_stats().issued ||
           rig.eng().stats().completed < rig.eng().stats().pushed)
      std::this_thread::yield();
    rig.Push({.updates = {x}});
    while (!rig.eng().WaitFor(x, 0s)) std::this_thread::yield();
    rig.Push({.updates = {x}});
    while (!rig.eng().Settled(x)) std::this_thread::yield();
    rig.Push({.updates = {x}});
    while (!rig.eng().TryWait(x)) std::this_thread::yield();
    rig.Push({.updates = {x}});
    Gate ran;
    rig.eng().Push({.reads = {x}}, [&] { ran.Open(); });
    ran.Wait();
  }
}

TEST(DevicePolls, WhoeverLooksMayLookDuringTheShutdown) {
  for (int round = 0; round < 100; ++round) {
    Rig rig;
    const Var x = rig.eng().NewVar("x");
    for (int i = 0; i < 20; ++i) rig.Push({.updates = {x}});
    std::atomic<bool> looks{false}, over{false};
    std::thread looker([&] {
      while (!over) {
        (void)rig.eng().Settled(x);
        looks = true;
      }
    });
    while (!looks) std::this_thread::yield();
    rig.eng().Shutdown();
    over = true;
    looker.join();
  }
}

// Nothing was on the device when they began to wait.
TEST(DevicePolls, WhoWaitsForEverythingHearsOfWhatIsIssuedLater) {
  Rig rig({}, 2);
  Var x = rig.eng().NewVar("x");
  for (int round = 0; round < 50; ++round) {
    Gate gate, began;
    rig.eng().Push({.name = "host", .updates = {x}}, [&] {
      began.Open();
      gate.Wait();
    });
    rig.Push({.updates = {x}});
    began.Wait();
    std::thread waiter([&] { rig.eng().WaitAll(); });
    if (round % 2) std::this_thread::yield();
    gate.Open();
    waiter.join();
  }
}

// What a wait has seen by itself is known to the engine some time later, without another question.
TEST(DevicePolls, WhatAWaitHasSeenRetires) {
  Rig rig;
  Var x = rig.eng().NewVar("x");
  for (int round = 0; round < 20; ++round) {
    const auto held = std::make_shared<int>();
    rig.eng().Push({.name = "op", .updates = {x}, .place = Gpu(0)},
                   [&rig, held](RunContext& ctx) { rig.Launch(ctx, "k"); });
    rig.eng().Wait(x);
    const uint64_t asked = rig.device().counts()[DeviceCall::kQuery];
    while (held.use_count() > 1) std::this_thread::yield();
    EXPECT_EQ(rig.device().counts()[DeviceCall::kQuery], asked);
  }
}

TEST(DevicePolls, RunsThatNobodyWaitsForGiveTheirFramesBack) {
  Rig rig({}, 2);
  Var x = rig.eng().NewVar("x");
  Graph graph;
  for (int k = 0; k < 3; ++k)
    graph.Add({.name = "node", .updates = {x}, .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  const Plan plan = graph.Compile(rig.eng());
  for (int run = 0; run < 2000; ++run) {
    plan.Start();
    if (plan.frames() > 100) {
      rig.eng().WaitAll();  // a device that is slow today
      break;
    }
  }
  const size_t frames = plan.frames();
  for (int run = 0; run < 200; ++run) {
    plan.Start();
    if (run % 50 == 49) rig.eng().WaitAll();
  }
  EXPECT_LE(plan.frames(), std::max<size_t>(frames, 51));
}

TEST(DevicePolls, ALaneWithManyOpsLetsGoOfWhatTheyHold) {
  Rig rig;
  Var x = rig.eng().NewVar("x");
  const auto held = std::make_shared<int>();
  for (int i = 0; i < 3000; ++i)
    rig.eng().Push({.name = "op", .updates = {x}, .place = Gpu(0)},
                   [&rig, held](RunContext& ctx) { rig.Launch(ctx, "k"); });
  while (held.use_count() > 600) std::this_thread::yield();  // nobody waits, and most are gone
}

}  // namespace
}  // namespace engine::test
