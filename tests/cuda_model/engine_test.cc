// An engine on the cuda backend while the runtime fails: nothing hangs, and each Var has its value or says why not.
#include "support/engine_test.h"
#include <deque>

#include "engine/bulk.h"
#include "engine/device/cuda_stream.h"
#include "engine/device/device_memory.h"
#include "engine/plan.h"
#include "engine/spi/cost_model.h"
#include "engine/spi/held_ops.h"
#include "kernels.h"
#include "model_test.h"

namespace engine::test {
namespace {

constexpr int kCount = 64;
constexpr size_t kBytes = kCount * sizeof(int32_t);

void Launched(RunContext& ctx, cudaError_t error) {
  if (error != cudaSuccess)
    throw DeviceError(DeviceStatus::Fail(DeviceCode::kUnknown, false, error, cudaGetErrorName(error)));
  Must(ctx.device().TakeLastError());
}

cudaStream_t Native(RunContext& ctx) { return static_cast<cudaStream_t>(CudaStream(ctx)); }

struct Shape {
  int steps = 7;
  int devices = 1;
  bool by_node = true;  // graphs take new parameters a node at a time, or whole
  bool plan = false;    // steps are runs of a plan, whose times on the device are measured
};

// What a device works on.
struct Side {
  Side(Engine& eng, int index) : ordinal(index) {
    for (Var* v : {&x, &y, &out, &host}) *v = eng.NewVar();
  }
  int32_t* words(const DeviceMemory& memory) const { return static_cast<int32_t*>(memory.data()); }
  int ordinal;
  Var x, y, out, host;
  DeviceMemory x_memory, y_memory, pinned;
  std::vector<int32_t> result = std::vector<int32_t>(kCount, -1);
  bool looked = false;
};

class CudaModelEngine : public CudaModelTest {
 protected:
  // Steps of copies in, a bulk that becomes a graph and whose parameters change every third step, and a copy out, which the
  // host looks at; a device begins its step behind the one before it. Says how many Vars failed; the others have their values.
  static int Program(const Shape& shape);
  static void Push(Engine& eng, HeldOps& held, Side& side, const Side* before, int step, const Shape& shape);
  static int RunPlan(Engine& eng, Side& side, const Shape& shape);
  static void EachCall(cudaError_t error, bool sticky, const Shape& shape, long stride);
};

int CudaModelEngine::RunPlan(Engine& eng, Side& side, const Shape& shape) {
  int errors = 0;
  engine::Graph graph;
  for (uint64_t member = 0; member < 3; ++member) {
    graph.Add({.name = "axpy", .reads = {side.x}, .updates = {side.y}, .place = Gpu(0)}, [&](RunContext& ctx) {
      Launched(ctx, LaunchAxpy(Native(ctx), side.words(side.y_memory), side.words(side.x_memory), 1, kCount));
    });
  }
  graph.Add({.name = "host", .reads = {side.y}}, [] {});
  const Plan plan = graph.Compile(eng);
  const PolicyScope scope = eng.EnterPolicy({Policy::kCostModel, {.start_step = 1, .stop_step = 5}});
  for (int step = 0; step < shape.steps; ++step) {
    try {
      plan.Start().Wait();
    } catch (const OpError&) {
      ++errors;
    }
  }
  const Explanation told = Explain(plan);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(told.nodes[i].device);
    EXPECT_GE(told.nodes[i].cost.nanos, 0) << "a time between events of two runs";
    if (errors == 0 && Failed().empty()) {
      EXPECT_EQ(told.nodes[i].cost.samples, 4u);
    }
  }
  return errors;
}

void CudaModelEngine::Push(Engine& eng, HeldOps& held, Side& side, const Side* before, int step, const Shape& shape) {
  static const std::vector<int32_t> kOnes(kCount, 1);
  const auto device = static_cast<uint8_t>(side.ordinal);
  OpDesc copy{.name = "copy in", .updates = side.x, .place = CopyIn(device)};
  if (before) copy.reads = before->y;
  eng.Push(copy, [&](RunContext& ctx) {
    Must(ctx.device().CopyIn(side.x_memory.data(), kOnes.data(), kBytes, ctx.stream(), MemoryKind::kPageable));
  });
  for (uint64_t member = 0; member < 3; ++member) {
    const int factor = step / 3 + 1;
    held.Push({.name = "axpy",
               .reads = {side.x},
               .updates = {side.y},
               .place = Gpu(device),
               .graph = {.kind = 1 + member, .params = static_cast<uint64_t>(factor), .one_call = shape.by_node}},
              [&, factor](RunContext& ctx) {
                Launched(ctx,
                         LaunchAxpy(Native(ctx), side.words(side.y_memory), side.words(side.x_memory), factor, kCount));
              });
  }
  held.Release();
}

int CudaModelEngine::Program(const Shape& shape) {
  int errors = 0;
  std::deque<Side> sides;
  try {
    EngineOptions options = Quiet(1);
    for (int i = 0; i < shape.devices; ++i) options.devices.push_back(MakeCudaDevice(i));
    options.streams_per_device = 2;
    options.drain_timeout = std::chrono::milliseconds(500);
    options.on_unobserved = [&](const OpError&) { ++errors; };
    Engine eng(options);
    for (int i = 0; i < shape.devices; ++i) {
      Side& side = sides.emplace_back(eng, i);
      eng.Push({.name = "make", .writes = {side.x, side.y, side.out}, .place = Gpu(static_cast<uint8_t>(i), 0)},
               [&](RunContext& ctx) {
                 side.x_memory = ctx.Allocate(kBytes);
                 side.y_memory = ctx.Allocate(kBytes);
                 side.pinned = ctx.AllocatePinned(kBytes);
                 Launched(ctx, LaunchSet(Native(ctx), side.words(side.y_memory), kCount, 0));
               });
    }
    HeldOps held(eng);
    if (shape.plan) {
      Push(eng, held, sides[0], nullptr, 0, shape);
      errors += RunPlan(eng, sides[0], shape);
    }
    for (int step = shape.plan ? shape.steps : 0; step < shape.steps; ++step)
      for (Side& side : sides) Push(eng, held, side, side.ordinal ? &sides[0] : nullptr, step, shape);
    for (Side& side : sides) {
      eng.Push({.name = "copy out",
                .reads = {side.y},
                .writes = {side.out},
                .place = CopyOut(static_cast<uint8_t>(side.ordinal))},
               [&](RunContext& ctx) {
                 Must(ctx.device().CopyOut(side.pinned.data(), side.y_memory.data(), kBytes, ctx.stream(),
                                           MemoryKind::kPinned));
               });
      eng.Push({.name = "look", .reads = {side.out}, .writes = {side.host}}, [&] {
        std::copy_n(side.words(side.pinned), kCount, side.result.begin());
        side.looked = true;
      });
    }
    for (Side& side : sides) {
      for (const Var* v : {&side.x, &side.y, &side.out, &side.host}) {
        try {
          eng.Wait(*v);
        } catch (const OpError&) {
          ++errors;
        }
      }
      eng.Push({.name = "unmake", .writes = {side.x, side.y, side.out, side.host}}, [&] {
        for (DeviceMemory* memory : {&side.x_memory, &side.y_memory, &side.pinned}) memory->Reset();
      });
    }
    try {
      eng.WaitAll();
    } catch (const Error&) {
      ++errors;
    }
    for (Side& side : sides) side.x = side.y = side.out = side.host = {};
  } catch (const Error&) {  // no device, or no engine
    ++errors;
  }
  int sum = shape.plan ? 3 : 0;
  for (int step = 0; step < shape.steps; ++step) sum += shape.plan ? 3 : 3 * (step / 3 + 1);
  for (const Side& side : sides) {
    if (side.looked) {
      EXPECT_EQ(side.result, std::vector<int32_t>(kCount, sum)) << "a value that is wrong, and nobody was told";
    } else {
      EXPECT_GT(errors, 0) << "nothing was looked at, and nobody was told";
    }
  }
  return errors;
}

void CudaModelEngine::EachCall(cudaError_t error, bool sticky, const Shape& shape, long stride) {
  for (long nth = 1;; nth += nth < 40 ? 1 : stride) {
    SCOPED_TRACE("call " + std::to_string(nth));
    Fail("*", nth, error, sticky);
    const int errors = Program(shape);
    const std::string function = Failed();
    if (function.empty()) {
      EXPECT_EQ(errors, 0);
      break;
    }
    SCOPED_TRACE(function);
    if (sticky) Revive();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left for whoever asks next";
    ASSERT_EQ(Live(), 0) << "left on the device";
    ASSERT_EQ(Violations(), 0) << LastViolation();
  }
}

TEST_F(CudaModelEngine, RunsWithoutFailures) {
  EXPECT_EQ(Program({.steps = 12}), 0);
  if (CudaDeviceCount() < 2) return;
  EXPECT_EQ(Program({.steps = 12, .devices = 2}), 0);
  int current = -1;
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0) << "the caller's thread is its own";
}

TEST_F(CudaModelEngine, SurvivesEachCallThatFails) {
  EachCall(cudaErrorUnknown, false, {}, 5);
  EachCall(cudaErrorUnknown, false, {.by_node = false}, 5);
}

TEST_F(CudaModelEngine, PlansThatAreMeasuredSurviveEachCallThatFails) {
  EXPECT_EQ(Program({.plan = true}), 0);
  EachCall(cudaErrorUnknown, false, {.plan = true}, 11);
  EachCall(cudaErrorIllegalAddress, true, {.plan = true}, 23);
}

// The pool gives back what it can, and asks again.
TEST_F(CudaModelEngine, AnAllocationThatFailsOnceIsNoError) {
  for (const char* function : {"cudaMallocFromPoolAsync", "cudaHostAlloc"}) {
    for (long nth = 1; nth <= 2; ++nth) {
      Fail(function, nth, cudaErrorMemoryAllocation, false);
      const int errors = Program({});
      EXPECT_EQ(errors, 0) << function << ", call " << nth << ": " << Failed();
      EXPECT_FALSE(nth == 1 && Failed().empty()) << function << " was never called";
    }
  }
}

TEST_F(CudaModelEngine, SurvivesEachCallThatLosesTheDevice) { EachCall(cudaErrorIllegalAddress, true, {}, 7); }

TEST_F(CudaModelEngine, SurvivesFailuresOnTwoDevices) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "one device";
  EachCall(cudaErrorUnknown, false, {.devices = 2}, 11);
  EachCall(cudaErrorIllegalAddress, true, {.devices = 2}, 23);
}

TEST_F(CudaModelEngine, SurvivesEachKernelThatFails) {
  for (long nth = 1; nth < 20; nth += 3) {
    CUDA_MODEL(cudaModelFailKernel)(nth, cudaErrorLaunchFailure);
    EXPECT_GT(Program({}), 0) << "kernel " << nth;
    Revive();
    ASSERT_EQ(Live(), 0);
    ASSERT_EQ(Violations(), 0) << LastViolation();
  }
  CUDA_MODEL(cudaModelFailKernel)(0, cudaSuccess);
}

}  // namespace
}  // namespace engine::test
