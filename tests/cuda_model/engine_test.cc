// An engine on the cuda backend while the runtime fails: nothing hangs, and each Var has its value or says why not.
#include "support/engine_test.h"
#include "engine/bulk.h"
#include "engine/device_memory.h"
#include "kernels.h"
#include "model_test.h"

namespace engine::test {
namespace {

constexpr int kCount = 64;
constexpr size_t kBytes = kCount * sizeof(int32_t);

void Must(DeviceStatus status) {
  if (!status.ok()) throw DeviceError(std::move(status));
}
void Launched(RunContext& ctx, cudaError_t error) {
  if (error != cudaSuccess)
    throw DeviceError(DeviceStatus::Fail(DeviceCode::kUnknown, false, error, cudaGetErrorName(error)));
  Must(ctx.device().TakeLastError());
}

class CudaModelEngine : public CudaModelTest {
 protected:
  // Steps of copies in, kernels on two lanes, a bulk that becomes a graph, and a copy out, which the host looks at. Says how
  // many Vars failed; those that did not have their values. Parameters change every third step.
  static int Program(int steps, bool by_node = true);
  static void EachCall(cudaError_t error, bool sticky, bool by_node, long stride);
};

int CudaModelEngine::Program(int steps, bool by_node) {
  int errors = 0;
  std::vector<int32_t> result(kCount, -1);
  bool looked = false;
  try {
    EngineOptions options = Quiet(1);
    options.devices = {MakeCudaDevice(0)};
    options.streams_per_device = 2;
    options.drain_timeout = std::chrono::milliseconds(500);
    options.on_unobserved = [&](const OpError&) { ++errors; };
    Engine eng(options);
    Var x = eng.NewVar("x"), y = eng.NewVar("y"), out = eng.NewVar("out"), host = eng.NewVar("host");
    DeviceMemory x_memory, y_memory, pinned;
    const auto words = [](const DeviceMemory& memory) { return static_cast<int32_t*>(memory.data()); };
    const auto native = [](RunContext& ctx) { return static_cast<cudaStream_t>(ctx.cuda_stream()); };
    eng.Push({.name = "make", .writes = {x, y, out}, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
      x_memory = ctx.Allocate(kBytes);
      y_memory = ctx.Allocate(kBytes);
      pinned = ctx.AllocatePinned(kBytes);
      Launched(ctx, LaunchSet(native(ctx), words(y_memory), kCount, 0));
    });
    std::vector<int32_t> in(kCount, 1);
    HeldOps held(eng);
    for (int step = 0; step < steps; ++step) {
      eng.Push({.name = "copy in", .updates = {x}, .place = CopyIn(0)}, [&](RunContext& ctx) {
        Must(ctx.device().CopyIn(x_memory.data(), in.data(), kBytes, ctx.stream(), MemoryKind::kPageable));
      });
      for (uint64_t member = 0; member < 3; ++member) {
        held.Push({.name = "axpy",
                   .reads = {x},
                   .updates = {y},
                   .place = Gpu(0),
                   .graph = {.kind = 1 + member, .params = static_cast<uint64_t>(step / 3 + 1), .one_call = by_node}},
                  [&, step](RunContext& ctx) {
                    Launched(ctx, LaunchAxpy(native(ctx), words(y_memory), words(x_memory), step / 3 + 1, kCount));
                  });
      }
      held.Release();
    }
    eng.Push({.name = "copy out", .reads = {y}, .writes = {out}, .place = CopyOut(0)}, [&](RunContext& ctx) {
      Must(ctx.device().CopyOut(pinned.data(), y_memory.data(), kBytes, ctx.stream(), MemoryKind::kPinned));
    });
    eng.Push({.name = "look", .reads = {out}, .writes = {host}}, [&] {
      std::copy_n(words(pinned), kCount, result.begin());
      looked = true;
    });
    for (const Var* v : {&x, &y, &out, &host}) {
      try {
        eng.Wait(*v);
      } catch (const OpError&) {
        ++errors;
      }
    }
    eng.Push({.name = "unmake", .writes = {x, y, out, host}}, [&] {
      for (DeviceMemory* memory : {&x_memory, &y_memory, &pinned}) memory->Reset();
    });
    try {
      eng.WaitAll();
    } catch (const Error&) {
      ++errors;
    }
  } catch (const Error&) {  // no device, or no engine
    ++errors;
  }
  int sum = 0;
  for (int step = 0; step < steps; ++step) sum += 3 * (step / 3 + 1);
  if (looked) {
    EXPECT_EQ(result, std::vector<int32_t>(kCount, sum)) << "a value that is wrong, and nobody was told";
  } else {
    EXPECT_GT(errors, 0) << "nothing was looked at, and nobody was told";
  }
  return errors;
}

void CudaModelEngine::EachCall(cudaError_t error, bool sticky, bool by_node, long stride) {
  for (long nth = 1;; nth += nth < 40 ? 1 : stride) {
    SCOPED_TRACE("call " + std::to_string(nth));
    Fail("*", nth, error, sticky);
    const int errors = Program(7, by_node);
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

TEST_F(CudaModelEngine, RunsWithoutFailures) { EXPECT_EQ(Program(12), 0); }

TEST_F(CudaModelEngine, SurvivesEachCallThatFails) { EachCall(cudaErrorUnknown, false, true, 5); }

TEST_F(CudaModelEngine, SurvivesEachCallThatFailsWhenGraphsAreUpdatedWhole) {
  EachCall(cudaErrorUnknown, false, false, 3);
}

TEST_F(CudaModelEngine, SurvivesEachCallThatLosesTheDevice) { EachCall(cudaErrorIllegalAddress, true, true, 7); }

TEST_F(CudaModelEngine, SurvivesEachKernelThatFails) {
  for (long nth = 1; nth < 20; nth += 3) {
    CUDA_MODEL(cudaModelFailKernel)(nth, cudaErrorLaunchFailure);
    EXPECT_GT(Program(7), 0) << "kernel " << nth;
    Revive();
    ASSERT_EQ(Live(), 0);
    ASSERT_EQ(Violations(), 0) << LastViolation();
  }
  CUDA_MODEL(cudaModelFailKernel)(0, cudaSuccess);
}

}  // namespace
}  // namespace engine::test
