// Plans on devices: how long their nodes take there, as the cost model and RunOptions::times learn it.
#include "engine/spi/cost_model.h"
#include "plan_pipeline.h"

namespace engine::test {
namespace {

// In the window, by events that nobody waits for and that are used again; outside of it not at all.
TEST(DevicePlans, CostModelMeasuresTheDevicesTime) {
  SoftwareDeviceOptions options{.clock = SoftwareDeviceOptions::Clock::kVirtual};
  options.costs.host.fill({});
  options.costs.kernel_gap = {};
  Rig rig(options);
  Var state = rig.eng().NewVar("state");
  Graph graph;
  for (const int64_t cost : {10'000, 3'000})
    graph.Add({.name = "kernel", .updates = {state}, .place = Gpu(0)}, [&, cost](RunContext& ctx) {
      ASSERT_TRUE(rig.device().Launch(ctx.stream(), "k", std::chrono::nanoseconds(cost), {}).ok());
    });
  graph.Add({.name = "host", .reads = {state}}, [] {});
  const Plan plan = graph.Compile(rig.eng());
  const PolicyScope scope = rig.eng().EnterPolicy({Policy::kCostModel, {.start_step = 1, .stop_step = 5}});
  const auto step = [&] {
    engine::Run run = plan.Start();
    while (!run.done()) rig.device().RunUntilIdle();
    return rig.device().counts();
  };
  EXPECT_EQ(step()[DeviceCall::kElapsed], 0u) << "before the window";
  const uint64_t events = step()[DeviceCall::kCreateEvent];
  for (int i = 2; i < 4; ++i) (void)step();
  const DeviceCounts in_window = step();
  EXPECT_EQ(in_window[DeviceCall::kCreateEvent], events);
  EXPECT_EQ(in_window[DeviceCall::kElapsed], 8u) << "once a node and step";
  const Explanation told = Explain(plan);
  ASSERT_EQ(told.nodes.size(), 3u);
  EXPECT_EQ(told.nodes[0].cost.nanos, 10'000);
  EXPECT_EQ(told.nodes[1].cost.nanos, 3'000);
  EXPECT_EQ(told.nodes[1].cost.spread, 0);
  EXPECT_EQ(told.nodes[1].cost.samples, 4u);
  EXPECT_TRUE(told.nodes[1].device && !told.nodes[2].device);
  EXPECT_NE(told.Text().find(" on a GPU"), std::string::npos) << told.Text();
  const DeviceCounts after = step();
  EXPECT_EQ(after[DeviceCall::kElapsed], 8u) << "behind the window";
  EXPECT_EQ(after[DeviceCall::kSynchronize], 0u);
  EXPECT_EQ(Explain(plan).state, Explanation::State::kComparing) << Explain(plan).said;
  EXPECT_EQ(Explain(plan).tasks, 2u) << "the device's nodes are one bulk under a schedule, too";
}

// What a timer is refused leaves a time unknown, and is nobody's failure; but for a sticky error, which is the device's.
class ATimersCallFails : public testing::TestWithParam<std::tuple<DeviceCall, bool>> {};

TEST_P(ATimersCallFails, AndTheRunIsAsWithoutTimes) {
  const auto [call, sticky] = GetParam();
  for (uint64_t nth = 1; nth <= 8; ++nth) {
    SCOPED_TRACE("failing call " + std::to_string(nth));
    std::atomic<int> ran{0};  // outlives the device
    Rig rig;
    Var state = rig.eng().NewVar("state");
    Graph graph;
    for (int i = 0; i < 2; ++i)
      graph.Add({.name = "kernel", .updates = {state}, .place = Gpu(0)},
                [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ++ran; }); });
    const Plan plan = graph.Compile(rig.eng());
    const PolicyScope scope = rig.eng().EnterPolicy({Policy::kCostModel, {.start_step = 1, .stop_step = 5}});
    plan.Start().Wait();
    // A step has four records of timers, two a node, and then one of the lane, without which nothing would go on.
    rig.device().FailCall(call, call == DeviceCall::kRecord ? nth + nth / 5 : nth, DeviceCode::kUnknown, sticky);
    bool failed = false;
    const auto look = [&](auto&& wait) {
      try {
        wait();
      } catch (const OpError&) {
        failed = true;
      }
    };
    for (int i = 0; i < 3; ++i) look([&] { plan.Start().Wait(); });
    look([&] { rig.eng().WaitAll(); });
    EXPECT_TRUE(failed || ran == 8) << ran << " kernels ran and nobody said why not all";
    EXPECT_TRUE(sticky || !failed);
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, ATimersCallFails,
                         testing::Combine(testing::Values(DeviceCall::kElapsed, DeviceCall::kRecord,
                                                          DeviceCall::kCreateEvent),
                                          testing::Bool()),
                         [](const auto& p) {
                           return std::string(DeviceCallName(std::get<0>(p.param))) +
                                  (std::get<1>(p.param) ? "Sticky" : "Once");
                         });

TEST(DevicePlans, TimesCoverTheDevice) {
  Rig rig;
  PlanPipeline p(rig);
  for (int x = 0; x < 4; ++x) p.Once(x);
  std::vector<NodeTime> times(p.plan.graph().nodes().size());
  EXPECT_EQ(p.Once(4, {.times = times}), 43);
  for (const NodeTime& t : times) {
    EXPECT_GT(t.begin, 0);
    EXPECT_GE(t.end, t.begin);
  }
  EXPECT_GE(times[4].begin, times[3].end) << "the host's node, after the last kernel had ended";
}

}  // namespace
}  // namespace engine::test
