// Plans on devices: the device orders runs and lanes, and the host waits only for what it needs.
#include "device_test.h"
#include "engine/plan.h"
#include "engine/testing/late_looks.h"

namespace engine::test {
namespace {

// Runs of one plan follow each other on the device: nobody waits for the run before, and nothing is waited for twice.
TEST(DevicePlans, RunsFollowEachOtherWithoutTheHost) {
  Rig rig;
  Var state = rig.eng().NewVar("state");
  int sum = 0;
  Graph graph;
  for (int k = 0; k < 3; ++k)
    graph.Add({.name = "kernel", .updates = {state}, .place = Gpu(0)},
              [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { sum = 3 * sum + 1; }); });
  const Plan plan = graph.Compile(rig.eng());
  const uint64_t hold = rig.PushHeldKernel({.name = "before", .updates = {state}});
  std::vector<engine::Run> runs;
  for (int i = 0; i < 4; ++i) runs.push_back(plan.Start());
  while (rig.eng().device_stats().issued < 13)
    std::this_thread::yield();  // all of it, behind a kernel that has not ended
  for (const engine::Run& run : runs) EXPECT_FALSE(run.done());
  DeviceCounts made = rig.device().counts();
  // An idle issuer makes the last one a moment after the op was issued.
  EXPECT_LE(made[DeviceCall::kRecord], 5u) << "the held kernel's, and one a run";
  EXPECT_EQ(made[DeviceCall::kWait], 0u) << "all on one lane";
  EXPECT_EQ(made[DeviceCall::kSynchronize], 0u);
  // What is pushed behind the runs follows on the device as well: here on another lane, so it waits once.
  rig.Push({.reads = {state}, .place = Gpu(0, 3)});
  while (rig.eng().device_stats().issued < 14) std::this_thread::yield();
  rig.device().Release(hold);
  for (engine::Run& run : runs) run.Wait();
  rig.eng().WaitAll();
  EXPECT_EQ(sum, 265'720);  // (3^12 - 1) / 2
  made = rig.device().counts();
  EXPECT_LE(made[DeviceCall::kRecord], 6u);
  EXPECT_EQ(made[DeviceCall::kWait], 1u);
  EXPECT_EQ(made[DeviceCall::kSynchronize], 0u);
}

// Tasks on two lanes of one run, and the same in the run behind it: one wait for each change of lane, none by the host.
TEST(DevicePlans, LanesOfARunAreOrderedOnTheDevice) {
  Rig rig;
  Var state = rig.eng().NewVar("state");
  int total = 0, left = 0, right = 0;
  Graph graph;
  const auto kernel = [&](std::function<void()> body) {
    return [&rig, body = std::move(body)](RunContext& ctx) { rig.Launch(ctx, "k", body); };
  };
  const NodeId a = graph.Add({.name = "a", .reads = {state}, .place = Gpu(0, 1)}, kernel([&] { left = total + 1; }));
  const NodeId b = graph.Add({.name = "b", .place = Gpu(0, 2)}, kernel([&] { right = left + 2; }));
  graph.Order(a, b);
  const NodeId c = graph.Add({.name = "c", .updates = {state}, .place = Gpu(0, 1)}, kernel([&] { total = right * 2; }));
  graph.Order(b, c);
  const Plan plan = graph.Compile(rig.eng());
  ASSERT_EQ(plan.tasks().size(), 3u);
  int want = 0;
  for (int round = 0; round < 3; ++round) {
    const DeviceCounts before = rig.device().counts();
    const uint64_t issued = rig.eng().device_stats().issued;
    const uint64_t hold = rig.device().HangKernel(1);
    std::vector<engine::Run> runs;
    for (int i = 0; i < 2; ++i) runs.push_back(plan.Start());
    // The record of an op comes after it has been counted as issued.
    while (rig.eng().device_stats().issued < issued + 6 || (rig.device().counts() - before)[DeviceCall::kRecord] < 6)
      std::this_thread::yield();
    const DeviceCounts made = rig.device().counts() - before;
    EXPECT_EQ(made[DeviceCall::kRecord], 6u) << "one a task";
    EXPECT_EQ(made[DeviceCall::kWait], 4u) << "to b, and back to c; the second run's a is on c's lane";
    EXPECT_EQ(made[DeviceCall::kSynchronize], 0u);
    rig.device().Release(hold);
    for (engine::Run& run : runs) run.Wait();
    for (int i = 0; i < 2; ++i) want = (want + 3) * 2;
    EXPECT_EQ(total, want);
  }
}

// Only what a node on the host touches first is waited for at the start of a run.
TEST(DevicePlans, AHostNodeThatComesFirstWaitsForTheDevice) {
  Rig rig;
  Var ready = rig.eng().NewVar("ready");
  std::atomic<int> seen{-1};
  int made = 0;
  Graph graph;
  graph.Add({.name = "look", .reads = {ready}}, [&] { seen = made; });
  const NodeId change = graph.Add({.name = "change", .updates = {ready}, .place = Gpu(0)},
                                  [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  (void)change;
  const Plan plan = graph.Compile(rig.eng());
  uint64_t hold = 0;
  Gate issued;
  rig.eng().Push({.name = "held", .writes = {ready}, .place = Gpu(0)}, [&](RunContext& ctx) {
    ASSERT_TRUE(rig.device().LaunchHeld(ctx.stream(), "held", &hold).ok());
    rig.Launch(ctx, "k", [&] { made = 7; });
    issued.Open();
  });
  issued.Wait();
  engine::Run run = plan.Start();
  while (rig.eng().device_stats().host_waits == 0) std::this_thread::yield();
  EXPECT_EQ(seen, -1);
  rig.device().Release(hold);
  run.Wait();
  EXPECT_EQ(seen, 7);
}

// A run without nodes on devices: its gate opens when the work before it has ended there.
TEST(DevicePlans, AGateOfARunOnTheHostWaitsForTheDevice) {
  Rig rig;
  Var free = rig.eng().NewVar("free"), ready = rig.eng().NewVar("ready");
  std::atomic<int> seen{-1};
  int made = 0;
  Graph graph;
  graph.Add({.name = "soon", .updates = {free}}, [] {});
  graph.Add({.name = "look", .reads = {ready}}, [&] { seen = made; });
  const Plan plan = graph.Compile(rig.eng());
  uint64_t hold = 0;
  Gate issued;
  HeldOp before = HoldWrite(rig.eng(), ready);
  rig.eng().Push({.name = "held", .updates = {ready}, .place = Gpu(0)}, [&](RunContext& ctx) {
    ASSERT_TRUE(rig.device().LaunchHeld(ctx.stream(), "held", &hold).ok());
    rig.Launch(ctx, "k", [&] { made = 7; });
    issued.Open();
  });
  engine::Run run = plan.Start();
  rig.eng().Wait(free);
  before.Release();
  issued.Wait();
  while (rig.eng().device_stats().host_waits == 0) std::this_thread::yield();
  EXPECT_EQ(seen, -1);
  EXPECT_FALSE(run.done());
  rig.device().Release(hold);
  run.Wait();
  EXPECT_EQ(seen, 7);
}

// The run ends on whichever thread finds that the device is done, and with it its values, which may do anything: here they wait
// for the device.
TEST(DevicePlans, AValueThatWaitsForTheDeviceMayEndWithItsRun) {
  struct WaitsAtTheEnd {
    WaitsAtTheEnd(Rig* of, Var waits_for, std::atomic<int>* waits)
        : rig(of), var(std::move(waits_for)), waited(waits) {}
    WaitsAtTheEnd(WaitsAtTheEnd&& other) noexcept
        : rig(std::exchange(other.rig, nullptr)), var(std::move(other.var)), waited(other.waited) {}
    ~WaitsAtTheEnd() {
      if (!rig) return;
      rig->Push({.updates = {var}, .place = Gpu(0, 2)});
      rig->eng().Wait(var);
      ++*waited;
    }
    Rig* rig;
    Var var;
    std::atomic<int>* waited;
  };
  Rig rig;
  const Var other = rig.eng().NewVar("other"), state = rig.eng().NewVar("state");
  std::atomic<int> waited{0};
  {
    Graph graph;
    const NodeId make = graph.Add({.name = "make"}, [&] { return WaitsAtTheEnd(&rig, other, &waited); });
    graph.Add({.name = "use", .inputs = {make[0]}, .updates = {state}, .place = Gpu(0)},
              [&](RunContext& ctx, const WaitsAtTheEnd&) { rig.Launch(ctx, "k"); });
    const Plan plan = graph.Compile(rig.eng());
    for (int i = 0; i < 3; ++i) {
      const uint64_t hold = rig.device().HangKernel(1);
      engine::Run run = plan.Start();
      while (rig.device().counts()[DeviceCall::kRecord] == 0) std::this_thread::yield();
      rig.device().Release(hold);
      while (!run.done()) std::this_thread::yield();  // nobody is in a hurry
      run = {};
    }
    while (waited < 3) std::this_thread::yield();
  }
  rig.eng().WaitAll();
}

// What settles the nodes of a run is in a hurry only if somebody waits for that: a thread, or a node on the host.
TEST(DevicePlans, ARunThatNobodyWaitsForIsNoHostWait) {
  Rig rig;
  Var state = rig.eng().NewVar("state");
  const auto kernel = [&](RunContext& ctx) { rig.Launch(ctx, "k"); };
  const auto host_waits = [&] { return rig.eng().device_stats().host_waits; };
  Graph graph, to_host;
  for (Graph* g : {&graph, &to_host})
    for (int k = 0; k < 3; ++k) g->Add({.name = "node", .updates = {state}, .place = Gpu(0)}, kernel);
  to_host.Add({.name = "on the host", .reads = {state}}, [] {});
  const Plan plan = graph.Compile(rig.eng()), with_host = to_host.Compile(rig.eng());
  const auto until_parked = [&] {
    while (rig.eng().DescribePending().find("waits for work on a device to end") == std::string::npos)
      std::this_thread::yield();
  };
  uint64_t hold = rig.PushHeldKernel({.updates = {state}});
  engine::Run run = plan.Start();
  until_parked();
  EXPECT_EQ(host_waits(), 0u);
  rig.device().Release(hold);
  rig.eng().WaitAll();
  EXPECT_TRUE(run.done());
  EXPECT_EQ(host_waits(), 0u) << "nobody waited for the run itself";

  hold = rig.PushHeldKernel({.updates = {state}});
  run = plan.Start();
  until_parked();
  EXPECT_FALSE(run.WaitFor(0s));
  EXPECT_FALSE(run.WaitFor(0s));
  EXPECT_EQ(host_waits(), 1u);
  rig.device().Release(hold);
  run.Wait();
  EXPECT_EQ(host_waits(), 1u);

  hold = rig.PushHeldKernel({.updates = {state}});
  run = with_host.Start();
  while (host_waits() == 1) std::this_thread::yield();  // the node on the host waits for the device
  rig.device().Release(hold);
  while (!run.done()) std::this_thread::yield();
  EXPECT_EQ(host_waits(), 2u);
}

// The retirement thread dozes while nobody waits. Who comes to wait ends that, and need not see a timer run out.
TEST(DevicePlans, WhoeverComesToWaitIsNoticedAtOnce) {
  Rig rig;
  Var state = rig.eng().NewVar("state");
  Graph graph;
  graph.Add({.name = "node", .updates = {state}, .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  const Plan plan = graph.Compile(rig.eng());
  const auto stats = [&] { return rig.eng().device_stats(); };
  const auto looks = [&](uint64_t more) {
    for (const uint64_t before = stats().queries; stats().queries < before + more;) std::this_thread::yield();
  };
  for (const bool asks_for_the_run : {true, false}) {
    const uint64_t before = LateLooks(rig.eng());
    for (int i = 0; i < 10; ++i) {
      const uint64_t hold = rig.PushHeldKernel({.updates = {state}});
      engine::Run run = plan.Start();
      while (rig.eng().DescribePending().find("waits for work on a device to end") == std::string::npos)
        std::this_thread::yield();
      looks(1);  // and dozes again
      if (asks_for_the_run) {
        EXPECT_FALSE(run.WaitFor(0s));
      } else {
        rig.eng().Push({.reads = {state}}, [] {});
      }
      looks(3);
      rig.device().Release(hold);
      run.Wait();
      rig.eng().WaitAll();
    }
    EXPECT_LT(LateLooks(rig.eng()) - before, 5u) << (asks_for_the_run ? "Ask" : "AwaitRetired");
  }
}

// An op that reads the run's Var waits for it, too: who asks for the Var has the end looked for.
TEST(DevicePlans, AnOpBehindARunIsStartedWithoutAnybodysWait) {
  Rig rig;
  Graph graph;
  graph.Add({.name = "node", .place = Gpu(0)}, [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
  const Plan plan = graph.Compile(rig.eng());
  engine::Run run = plan.Start();
  Gate ran;
  rig.eng().Push({.reads = {run.var()}}, [&] { ran.Open(); });
  ran.Wait();
  EXPECT_TRUE(run.done());
}

}  // namespace
}  // namespace engine::test
