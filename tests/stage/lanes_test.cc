// Device lanes of stages: what a source issues runs on its stage's lane, copies on the copy lane, and consumers order
// themselves behind it by a Var, without a synchronization.
#include "engine/engine.h"
#include "engine/smart_stage.h"
#include "engine/stage.h"
#include "engine/testing/software_device.h"
#include "support/engine_test.h"

#include <gtest/gtest.h>

#include <set>

namespace engine::test {
namespace {

struct Batch {
  Var ready;
  std::shared_ptr<int> value;
};

TEST(StageLanesTest, TheBoundaryIsCopiedAndPreparedBesideTheStep) {
  const auto device = MakeSoftwareDevice({.check_pointers = false});
  EngineOptions options = Quiet(1);
  options.devices = {device};
  Engine eng(options);
  const auto must = [](DeviceStatus status) {
    if (!status.ok()) throw DeviceError(std::move(status));
  };
  EXPECT_GT(StageLanes(&eng), 2);
  eng.StartTrace();
  std::array<int, 10> rows{};
  int row = 0;
  Stage<Batch> stage({.capacity = 2, .stage_subgraph_stream_id = 2, .engine = &eng}, [&]() -> std::optional<Batch> {
    if (row == 10) return {};
    rows[static_cast<size_t>(row)] = row;
    Batch batch{eng.NewVar("batch"), std::make_shared<int>(-1)};
    const int* from = &rows[static_cast<size_t>(row++)];
    eng.Push({.name = "copy in", .writes = batch.ready, .place = CopyIn(0)},
             [&must, from, to = batch.value](RunContext& ctx) {
               must(ctx.device().CopyIn(to.get(), from, sizeof(int), ctx.stream(), MemoryKind::kPinned));
             });
    eng.Push({.name = "prepare", .updates = batch.ready, .place = StageLane()},
             [&, value = batch.value](RunContext& ctx) {
               must(device->Launch(ctx.stream(), "prepare", std::chrono::microseconds(1), [value] { *value += 100; }));
             });
    return batch;
  });
  Var sum_var = eng.NewVar("sum");
  int sum = 0;
  while (std::optional<Batch> batch = stage.Take())
    eng.Push({.name = "step", .reads = batch->ready, .updates = sum_var, .place = Gpu(0, 0)}, [&, value = batch->value](
                                                                                                  RunContext& ctx) {
      must(device->Launch(ctx.stream(), "step", std::chrono::microseconds(1), [&sum, value] { sum += *value; }));
    });
  eng.Wait(sum_var);
  EXPECT_EQ(sum, 45 + 10 * 100);
  EXPECT_EQ(device->counts()[DeviceCall::kSynchronize], 0u);
  std::set<std::string> lanes;
  for (const TraceEvent& e : eng.StopTrace().events) lanes.insert(std::string(e.name) + " on " + e.thread);
  EXPECT_EQ(lanes, (std::set<std::string>{"copy in on gpu0/copy_in", "prepare on gpu0/17", "step on gpu0/0"}));
}

TEST(StageLanesTest, StagedNodesOfADeviceRunOnTheStagesLane) {
  EngineOptions options = Quiet(1);
  options.devices = {MakeSoftwareDevice()};
  Engine eng(options);
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  const Var model = eng.NewVar("model");
  const auto next = [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + 1); };
  const NodeId prepare = graph.Add({.name = "prepare", .inputs = {row}, .outputs = 1, .place = Gpu(0)}, next);
  const NodeId train =
      graph.Add({.name = "train", .inputs = {prepare[0]}, .outputs = 1, .updates = {model}, .place = Gpu(0, 0)}, next);
  graph.Output(train[0]);
  eng.StartTrace();
  SmartStage steps(eng, graph, {SourceOf<int>("rows", row, [n = 0]() mutable { return n++; })},
                   {.stage = {.stage_subgraph_stream_id = 2}, .profile_steps = 0, .guard_steps = 0});
  for (int n = 0; n < 5; ++n) EXPECT_EQ(steps.Next().Take<int>(0), n + 2);
  steps.Cancel();
  std::set<std::string> lanes;
  for (const TraceEvent& e : eng.StopTrace().events)
    if (std::string(e.thread).starts_with("gpu0/")) lanes.insert(std::string(e.name) + " on " + e.thread);
  EXPECT_EQ(lanes, (std::set<std::string>{"prepare on gpu0/17", "train on gpu0/0"}));
}

TEST(StageLanesTest, OutsideOfStagesAndWithoutADeviceThereIsNone) {
  EXPECT_EQ(StageLanes(), 1);
  EXPECT_EQ(StageLane().kind, Placement::Kind::kDefault);
  Engine eng(Quiet(1));
  EXPECT_EQ(StageLanes(&eng) == 1, CudaDeviceCount() == 0);
  const auto device = MakeSoftwareDevice();
  EngineOptions options = Quiet(1);
  options.devices = {device};
  Engine with(options);
  EXPECT_THROW(Stage<int>({.stage_subgraph_stream_id = 9, .engine = &with}, [] { return 1; }), UsageError);
  EXPECT_THROW(Stage<int>({.stage_subgraph_stream_id = 1, .engine = &with, .device = 1}, [] { return 1; }), UsageError);
}

}  // namespace
}  // namespace engine::test
