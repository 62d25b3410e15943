// stage_subgraph_on_cpu: what the stage makes on the host crosses to the device in one copy an item, from pinned memory, on
// the copy lane, beside the step; and nodes on the device see the same however steps are run.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "engine/device/array.h"
#include "engine/smart_stage.h"
#include "engine/testing/software_device.h"
#include "support/engine_test.h"
#include "support/happens_before.h"
#include "support/seed.h"

namespace engine::test {
namespace {

constexpr size_t kFeatures = 13, kIds = 5, kPacked = 256 + kIds * sizeof(int32_t);

// Notes what was copied, beside looking for races.
class Copies : public HappensBefore {
 public:
  void OnWork(uint32_t lane, const SoftwareKernel& work) override {
    HappensBefore::OnWork(lane, work);
    if (work.name != "CopyIn") return;
    std::lock_guard lock(mu_);
    ++sizes_[work.uses[1].bytes];
  }
  std::map<size_t, size_t> sizes() {  // bytes -> how often
    std::lock_guard lock(mu_);
    return sizes_;
  }

 private:
  std::mutex mu_;
  std::map<size_t, size_t> sizes_;
};

TEST(HostArrayTest, MoreElementsThanMemoryCanHaveAreRefused) {
  const int64_t half = int64_t{1} << 32;
  EXPECT_TRUE(Has(RefusalOf([&] {
                    HostArray::Of(std::vector<float>(), {half, half});
                  }),
                  "more elements than memory can have"));
  EXPECT_TRUE(Has(RefusalOf([&] {
                    HostArray::Of(std::vector<float>(4), {(int64_t{1} << 62) + 1, 4});
                  }),
                  "more elements"));
}

float Feature(int row, size_t i) { return static_cast<float>(row) + 0.125f * static_cast<float>(i); }

// row -> parse (features, ids, row) -> train on the device -> its sum, by way of a Var.
struct DeviceProgram {
  explicit DeviceProgram(uint64_t seed = 0, bool also_on_host = false)
      : copies(std::make_shared<Copies>()),
        device(MakeSoftwareDevice(
            {.clock = seed ? SoftwareDeviceOptions::Clock::kVirtual : SoftwareDeviceOptions::Clock::kThreads,
             .seed = seed,
             .observer = copies})),
        eng(Options(device)),
        weights(eng.NewVar("weights")) {
    row = graph.Input<int>("row");
    parse = graph.Add({.name = "parse", .inputs = {row}, .outputs = 3}, [](NodeContext& ctx) {
      const int n = ctx.In<int>(0);
      if (n == 1000) throw std::domain_error("malformed row");
      std::vector<float> features(kFeatures);
      for (size_t i = 0; i < kFeatures; ++i) features[i] = Feature(n, i);
      ctx.Return(0, HostArray::Of(std::move(features)));
      ctx.Return(1, HostArray::Of(std::vector<int32_t>(kIds, n), {1, kIds}));
      ctx.Return(2, n);
    });
    train = graph.Add(
        {.name = "train", .inputs = {parse[0], parse[1], parse[2]}, .updates = {weights}, .place = Gpu(0, 0)},
        [this](NodeContext& ctx) {
          const DeviceArray features = ctx.In<DeviceArray>(0), ids = ctx.In<DeviceArray>(1);
          const int n = ctx.In<int>(2);
          EXPECT_EQ(features.shape(), std::vector<int64_t>{kFeatures});
          EXPECT_EQ(ids.shape(), (std::vector<int64_t>{1, kIds}));
          // Side by side in one block, each at the alignment of an allocation; whole, each has a block of its own.
          if (packed) {
            EXPECT_EQ(static_cast<std::byte*>(ids.address()) - static_cast<std::byte*>(features.address()), 256);
          }
          if (n == held_row) Must(device->LaunchHeld(ctx.stream(), "held", &hold));
          // The device's checker finds out whether these are device memory, and in use.
          Must(device->Launch(ctx.stream(), {.name = "train",
                                             .cost = 1us,
                                             .body =
                                                 [this, n, x = features.data<float>(), id = ids.data<int32_t>()] {
                                                   for (size_t i = 0; i < kFeatures; ++i)
                                                     wrong += x[i] != Feature(n, i);
                                                   for (size_t i = 0; i < kIds; ++i) wrong += id[i] != n;
                                                   trained.push_back(n);
                                                 },
                                             .uses = {{features.address(), features.bytes(), false},
                                                      {ids.address(), ids.bytes(), false}}}));
          if (n == held_row) issued.Open();
        });
    if (also_on_host) {
      const NodeId sum = graph.Add({.name = "sum", .inputs = {parse[0]}, .outputs = 1}, [](NodeContext& ctx) {
        const HostArray& features = ctx.In<HostArray>(0);
        ctx.Return(0, features.data<float>()[kFeatures - 1]);
      });
      graph.Output(sum[0]);
    }
  }
  static EngineOptions Options(const std::shared_ptr<SoftwareDevice>& device) {
    EngineOptions options = Quiet(1);
    options.devices = {device};
    return options;
  }
  static void Must(DeviceStatus status) {
    if (!status.ok()) throw DeviceError(std::move(status));
  }
  std::vector<SmartSource> Rows(int n) {
    return {SourceOf<int>("rows", row, [next = 0, n]() mutable -> std::optional<int> {
      if (next == n) return {};
      return next++;
    })};
  }
  static SmartStageOptions OnCpu(bool staged, StageOptions stage = {}, int levels = 1) {
    return {.stage = std::move(stage),
            .do_smart_stage = staged,
            .stage_subgraph_on_cpu = true,
            .max_levels = levels,
            .profile_steps = 0,
            .guard_steps = 0};
  }
  void Check(int rows) {
    eng.Wait(weights);
    EXPECT_EQ(wrong, 0);
    ASSERT_EQ(trained.size(), static_cast<size_t>(rows));
    for (int n = 0; n < rows; ++n) EXPECT_EQ(trained[static_cast<size_t>(n)], n);
    EXPECT_EQ(copies->races(), std::vector<std::string>{});
    EXPECT_GT(copies->checked(), 0u);
  }

  std::shared_ptr<Copies> copies;
  std::shared_ptr<SoftwareDevice> device;
  Engine eng;
  Var weights;
  Graph graph;
  ValueId row;
  NodeId parse, train;
  bool packed = false;
  int held_row = -1;
  uint64_t hold = 0;
  Gate issued;
  int wrong = 0;  // these two by the device, in order
  std::vector<int> trained;
};

TEST(CrossingTest, OneCopyAnItemAndNoSynchronization) {
  constexpr int kRows = 60;
  for (const int levels : {1, 3}) {
    DeviceProgram p;
    p.packed = true;
    SmartStage steps(p.eng, p.graph, p.Rows(kRows),
                     DeviceProgram::OnCpu(true, {.capacity = 2, .num_threads = 2}, levels));
    while (engine::Run run = steps.Next()) run.Wait();
    p.Check(kRows);
    const DeviceCounts counts = p.device->counts();
    EXPECT_EQ(counts[DeviceCall::kCopy], static_cast<uint64_t>(kRows));
    EXPECT_EQ(p.copies->sizes(), (std::map<size_t, size_t>{{kPacked, kRows}}));
    EXPECT_EQ(counts[DeviceCall::kPageableCopy], 0u);
    EXPECT_EQ(counts[DeviceCall::kSynchronize], 0u);
    EXPECT_EQ(p.eng.device_stats().host_syncs, 0u);
    // Buffers are used again: no more than items can be on their way at once.
    EXPECT_LE(counts[DeviceCall::kAllocatePinned], 4u);
    EXPECT_LE(counts[DeviceCall::kDriverAllocate], 12u);
  }
}

TEST(CrossingTest, TheDeviceSeesTheSameHoweverStepsRun) {
  for (const bool staged : {false, true}) {
    for (const uint64_t seed : {uint64_t{0}, Seed() | 1}) {
      SCOPED_TRACE(SeedLine());
      DeviceProgram p(seed, true);
      SmartStage steps(p.eng, p.graph, p.Rows(40), DeviceProgram::OnCpu(staged, {.capacity = 3}));
      for (int n = 0; n < 40; ++n) EXPECT_EQ(steps.Next().Take<float>(0), Feature(n, kFeatures - 1));
      EXPECT_FALSE(steps.Next());
      p.Check(40);
      EXPECT_EQ(p.device->counts()[DeviceCall::kCopy], staged ? 40u : 80u);  // whole: one an array
    }
  }
}

TEST(CrossingTest, ProfileAndGuardChangeNothingEither) {
  DeviceProgram p;
  SmartStage steps(p.eng, p.graph, p.Rows(400), {.stage_subgraph_on_cpu = true, .profile_steps = 3, .guard_steps = 5});
  while (steps.Next()) p.eng.WaitAll();  // so that the guard hears of the end
  p.Check(400);
  EXPECT_TRUE(steps.Report().decided);
}

TEST(CrossingTest, CopiesRunBesideTheStep) {
  DeviceProgram p;
  p.held_row = 0;
  SmartStage steps(p.eng, p.graph, p.Rows(10), DeviceProgram::OnCpu(true, {.capacity = 3}));
  std::vector<engine::Run> running;
  running.push_back(steps.Next());
  p.issued.Wait();
  // The device's compute stands still, and the items to come are ready all the same.
  while (steps.stats().stage.fill < 3) std::this_thread::yield();
  EXPECT_FALSE(running[0].done());
  EXPECT_GE(p.device->counts()[DeviceCall::kCopy], 4u);
  p.device->Release(p.hold);
  while (engine::Run run = steps.Next()) running.push_back(std::move(run));
  for (engine::Run& run : running) run.Wait();
  p.Check(10);
}

TEST(CrossingTest, ABufferIsWrittenAgainOnlyWhenItsCopyHasEnded) {
  DeviceProgram p;
  // The copy lane stands still behind a kernel of somebody else's.
  Var other = p.eng.NewVar("other");
  uint64_t hold = 0;
  Gate held;
  p.eng.Push({.name = "hold", .writes = {other}, .place = CopyIn(0)}, [&](RunContext& ctx) {
    DeviceProgram::Must(p.device->LaunchHeld(ctx.stream(), "hold", &hold));
    held.Open();
  });
  held.Wait();
  SmartStage steps(p.eng, p.graph, p.Rows(40), DeviceProgram::OnCpu(true, {.capacity = 1, .num_threads = 3}));
  std::vector<engine::Run> running;
  std::thread caller([&] {
    while (engine::Run run = steps.Next()) running.push_back(std::move(run));
  });
  // Three copies are issued, one a producer, each from a buffer of its own; none has run.
  while (p.device->counts()[DeviceCall::kCopy] < 3) std::this_thread::yield();
  EXPECT_EQ(p.device->counts()[DeviceCall::kAllocatePinned], 3u);
  p.device->Release(hold);
  caller.join();
  for (engine::Run& run : running) run.Wait();
  p.Check(40);
  EXPECT_EQ(p.device->counts()[DeviceCall::kAllocatePinned], 3u);
}

TEST(CrossingTest, ACopyThatFailsFailsItsStepAndNoOther) {
  std::vector<std::string> told;
  for (const bool staged : {false, true}) {
    DeviceProgram p;
    p.device->FailCall(DeviceCall::kCopy, staged ? 3 : 5, DeviceCode::kInvalidValue, false);
    SmartStage steps(p.eng, p.graph, p.Rows(6), DeviceProgram::OnCpu(staged, {.capacity = 2}));
    for (int n = 0; n < 6; ++n) {
      engine::Run run = steps.Next();
      if (n != 2) {
        run.Wait();
        continue;
      }
      const OpError error = ErrorOf([&] { run.Wait(); });
      EXPECT_TRUE(CausedBy<DeviceError>(error)) << error.what();
      told.push_back(error.op());
      p.eng.ClearError(p.weights);
    }
    p.eng.Wait(p.weights);
    EXPECT_EQ(p.trained, (std::vector<int>{0, 1, 3, 4, 5}));
    EXPECT_EQ(p.wrong, 0);
  }
  EXPECT_EQ(told, (std::vector<std::string>{"copy to gpu 0", "copy to gpu 0"}));
}

TEST(CrossingTest, OtherValuesPassAndArraysOfNothingToo) {
  DeviceProgram p;
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  const NodeId parse = graph.Add({.name = "parse", .inputs = {row}, .outputs = 2}, [](NodeContext& ctx) {
    ctx.Return(0, HostArray::Of(std::vector<double>{}, {0, 4}));
    ctx.Return(1, std::make_unique<int>(ctx.In<int>(0)));
  });
  std::vector<int> seen;
  const NodeId on_device =
      graph.Add({.name = "look", .inputs = {parse[0], parse[1]}, .outputs = 1, .place = Gpu(0)}, [&](NodeContext& ctx) {
        EXPECT_EQ(ctx.In<DeviceArray>(0).size(), 0u);
        EXPECT_EQ(ctx.In<DeviceArray>(0).shape(), (std::vector<int64_t>{0, 4}));
        EXPECT_THROW(ctx.In<DeviceArray>(0).data<float>(), UsageError);
        ctx.Return(0, *ctx.In<std::unique_ptr<int>>(1));
      });
  graph.Output(on_device[0]);
  for (const bool staged : {false, true}) {
    SmartStage steps(p.eng, graph, {SourceOf<int>("rows", row, [n = 0]() mutable { return n++; })},
                     DeviceProgram::OnCpu(staged));
    for (int n = 0; n < 5; ++n) EXPECT_EQ(steps.Next().Take<int>(0), n);
  }
  EXPECT_EQ(p.device->counts()[DeviceCall::kCopy], 0u);
}

TEST(CrossingTest, AValueThatIsNoArrayCannotBeInBothPlaces) {
  for (const bool staged : {false, true}) {
    DeviceProgram p;
    p.graph.Output(p.parse[2]);
    SmartStage steps(p.eng, p.graph, p.Rows(2), DeviceProgram::OnCpu(staged));
    engine::Run run = steps.Next();
    const OpError error = ErrorOf([&] { run.Wait(); });
    EXPECT_TRUE(Has(error.what(), "value 'parse' is used on the host and on a device, and is no HostArray"));
  }
}

TEST(CrossingTest, ItIsExplained) {
  DeviceProgram p;
  SmartStageOptions options = DeviceProgram::OnCpu(true);
  options.targets = {p.train.index};
  SmartStage steps(p.eng, p.graph, p.Rows(2), options);
  steps.Next().Wait();
  const std::string text = steps.Explain();
  for (const char* line : {"4 of 5 nodes staged, in 2 levels", "staged copy to gpu 0: parse\n",
                           "staged copies are packed into one an item, from pinned memory, on the copy lane",
                           "not staged train: is a marked target"})
    EXPECT_TRUE(Has(text, line));
}

TEST(ArrayTest, ElementsAndShapesAreChecked) {
  const HostArray array = HostArray::Of(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(array.type().text(), "<f4");
  EXPECT_EQ(array.bytes(), 24u);
  EXPECT_EQ(array.data<float>()[5], 6);
  EXPECT_TRUE(Has(RefusalOf([&] { array.data<int32_t>(); }), "an array of '<f4' is read as one of '<i4'"));
  EXPECT_TRUE(Has(RefusalOf([] { HostArray::Of(std::vector<int>(5), {2, 3}); }), "6 elements, and it is given 5"));
  EXPECT_TRUE(Has(RefusalOf([] { HostArray::Of(std::vector<int>(5), {-5}); }), "extent of -5"));
  EXPECT_EQ(ElementType::Of<bool>().text(), "|b1");
}

}  // namespace
}  // namespace engine::test
