// Contract 8: a fork while a thread has a lock of the devices. The child looks at none of them.
#include <optional>
#include <utility>

#include "engine/comm.h"
#include "engine/plan.h"
#include "engine/spi/cost_model.h"
#include "support/child.h"
#include "support/no_memory.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

// The thread that looks after failures stops at its Nth allocation, until it is let go.
constexpr int kStop = 40;
std::atomic<int> g_allocations{0};
std::atomic<bool> g_go{false};
thread_local constinit bool t_of_the_test = false;
void StopThere() {
  if (t_of_the_test || g_allocations.fetch_add(1) + 1 != kStop) return;
  g_go.wait(false);
}

// A collective fails, and with it all that was issued behind it: they are listed under the lock of what has failed. A Var that
// was deleted with work pending goes in the child, and the devices forget what failed of it.
TEST(ForkDeviceLocks, ADeletedVarGoesInTheChildWhileTheDevicesListWhatHasFailed) {
  if (const char* why = WhyNoForks()) GTEST_SKIP() << why;
  EngineOptions options = Quiet(2);
  options.devices = {MakeSoftwareDevice({}), MakeSoftwareDevice({})};
  Engine eng(options);
  const int devices[] = {0, 1};
  std::vector<Communicator> comms = NewCommunicators(eng, devices);
  eng.WaitAll();  // both have joined: the abort would fail the other one's joining
  const Var var = eng.NewVar("var");
  comms[0].Push(eng, {.name = "alone", .updates = {var}},
                {Collective::AllReduce(nullptr, nullptr, 0, DataType::kInt8)});
  constexpr int kBehind = 200;
  for (int i = 0; i < kBehind; ++i) eng.Push({.name = "behind", .updates = {var}, .place = Gpu(0)}, [] {});
  while (eng.device_stats().issued < kBehind + 1) std::this_thread::yield();
  HeldOp held;
  {
    const Var deleted = eng.NewVar("deleted");
    held = eng.PushHeld({.name = "held", .writes = {deleted}}, [] {});
  }
  t_of_the_test = true;
  g_at_each = StopThere;
  comms[0].Abort("for the test");
  while (g_allocations < kStop) std::this_thread::yield();
  EXPECT_TRUE(InChild([&] {
    const Var mine = eng.NewVar("mine");
    eng.Push({.writes = {mine}}, [] {});
    eng.Wait(mine);
    return true;
  }));
  g_go = true;
  g_go.notify_all();
  g_at_each = nullptr;
  held.Release();
  EXPECT_THROW(eng.Wait(var), OpError);
  eng.WaitAll();
}

// A plan's last handle goes in the middle of a fork, at each of its first allocations: at one of them all plans and models are
// locked. With the plan goes its model.
thread_local constinit std::optional<Plan>* t_dropped = nullptr;
thread_local constinit int t_dropped_at = 0;
TEST(ForkDeviceLocks, APlanWithACostModelThatIsDroppedMeanwhile) {
  if (const char* why = WhyNoForks()) GTEST_SKIP() << why;
  EngineOptions options = Quiet(2);
  options.policy = Policy::kCostModel;
  Engine eng(options);
  int dropped = 0;
  for (int at = 1; at <= 10; ++at) {
    std::optional<Plan> plan;
    {
      Graph graph;
      for (int i = 0; i < 10; ++i) graph.Add({.name = "node", .writes = {eng.NewVar()}}, [] {});
      plan.emplace(graph.Compile(eng));
    }
    plan->Start().Wait();
    ASSERT_TRUE(plan->cost_model());
    t_dropped = &plan;
    t_dropped_at = at;
    g_at_each = [] {
      if (t_dropped && --t_dropped_at == 0) std::exchange(t_dropped, nullptr)->reset();
    };
    EXPECT_TRUE(InChild([&] {
      g_at_each = nullptr;
      const Var mine = eng.NewVar("mine");
      eng.Push({.writes = {mine}}, [] {});
      eng.Wait(mine);
      return true;
    }));
    g_at_each = nullptr;
    t_dropped = nullptr;
    dropped += !plan;
  }
  EXPECT_GT(dropped, 0);
  eng.WaitAll();
}

}  // namespace
}  // namespace engine::test
