// What the engine leaves alone of the threads that call it, and what of theirs it bears: captures, current devices, contexts.
#include "engine/device/cuda_kernels.h"
#include "engine/device/cuda_stream.h"
#include "engine/device/device_memory.h"
#include "kernels.h"
#include "model_test.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

constexpr int kCells = 16;

class CudaModelThreads : public CudaModelTest {
 protected:
  static std::unique_ptr<Engine> EngineOn(std::initializer_list<int> ordinals) {
    EngineOptions options = Quiet(1);
    options.streams_per_device = 1;
    options.drain_timeout = 500ms;
    for (const int i : ordinals) options.devices.push_back(MakeCudaDevice(i));
    return std::make_unique<Engine>(options);
  }
  // Allocates, launches, copies out and waits: the value that comes back.
  static int32_t Step(Engine& eng, uint8_t device, int32_t value) {
    int32_t got = 0;
    const Var x = eng.NewVar("x");
    DeviceMemory memory, pinned;
    eng.Push({.name = "set", .writes = {x}, .place = Gpu(device)}, [&](RunContext& ctx) {
      memory = ctx.Allocate(kCells * sizeof value);
      pinned = ctx.AllocatePinned(sizeof value);
      Must(LaunchSet(CudaStream(ctx), static_cast<int32_t*>(memory.data()), kCells, value));
      const DeviceStatus copied =
          ctx.device().CopyOut(pinned.data(), memory.data(), sizeof value, ctx.stream(), MemoryKind::kPinned);
      if (!copied.ok()) throw DeviceError(copied);
    });
    eng.Push({.name = "look", .updates = {x}}, [&] {
      got = *static_cast<int32_t*>(pinned.data());
      memory.Reset();
      pinned.Reset();
    });
    eng.Wait(x);
    return got;
  }
  static void Must(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorName(error));
  }
};

// PyTorch captures in global mode: whatever another thread asks for then fails, and spoils the capture, unless that thread has said
// that it ignores it. Waits happen on the thread that captures as well.
TEST_F(CudaModelThreads, ACaptureInGlobalModeGoesOnBesideTheEngine) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  {
    const auto eng = EngineOn({0});
    EXPECT_EQ(Step(*eng, 0, 1), 1);
    std::thread([&] { EXPECT_EQ(Step(*eng, 0, 2), 2); }).join();
    const Var x = eng->NewVar("x");
    eng->Push({.name = "empty", .writes = {x}, .place = Gpu(0)}, [](RunContext&) {});
    EXPECT_TRUE(eng->WaitFor(x, 10s));  // its own event, looked at here
    eng->WaitAll();
  }
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  if (graph) {
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Whoever captures may not have left us a way to ignore it; it ends, and the device is as well as before.
TEST_F(CudaModelThreads, ACaptureThatIsInTheWayLosesNoDevice) {
  for (const char* function : {"cudaEventQuery", "cudaEventRecord"}) {
    for (const cudaError_t error : {cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureImplicit}) {
      SCOPED_TRACE(function);
      const auto eng = EngineOn({0});
      Fail(function, 1, error, false);
      EXPECT_EQ(Step(*eng, 0, 3), 3);
      EXPECT_EQ(Failed(), function);
      EXPECT_EQ(Step(*eng, 0, 4), 4) << "it was lost";
    }
  }
}

// A context takes hundreds of MiB on a device.
TEST_F(CudaModelThreads, OnlyTheDeviceThatIsUsedGetsAContext) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "one device";
  std::thread([] {  // has no context, as most threads of a program
    CUDA_MODEL(cudaModelForgetContexts)();
    {
      const auto eng = EngineOn({1});
      EXPECT_EQ(Step(*eng, 0, 5), 5);
      Preload(eng->device(0));
    }
    EXPECT_EQ(CUDA_MODEL(cudaModelContexts)(), 0b10u);
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, 0) << "the thread's device was changed";
  })
      .join();
}

TEST_F(CudaModelThreads, BodiesMayMakeAnotherDeviceCurrent) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "one device";
  const auto eng = EngineOn({0, 1});
  for (int i = 0; i < 4; ++i) {
    eng->Push({.name = "elsewhere", .place = Gpu(1)}, [](RunContext&) { Must(cudaSetDevice(0)); });
    EXPECT_EQ(Step(*eng, 1, i), i);
  }
}

// cublasDestroy works on the current device.
TEST_F(CudaModelThreads, HandlesOfALaneEndWithTheirDeviceCurrent) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "one device";
  static std::vector<int> ended;
  ended.clear();
  {
    const auto eng = EngineOn({0, 1});
    for (uint8_t device : {0, 1}) {
      eng->Push({.name = "handle", .place = Gpu(device)}, [](RunContext& ctx) {
        static const char key = 0;
        (void)ctx.LaneLocal(&key, [](RunContext& c) -> std::shared_ptr<void> {
          return {new int(c.device().info().ordinal), [](void* made) {
                    const std::unique_ptr<int> mine(static_cast<int*>(made));
                    int current = -1;
                    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
                    EXPECT_EQ(current, *mine);
                    ended.push_back(current);
                  }};
        });
      });
    }
    eng->WaitAll();
  }
  EXPECT_EQ(ended.size(), 2u);
}

}  // namespace
}  // namespace engine::test
