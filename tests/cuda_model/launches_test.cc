// Launches: how many a stream is given, and what becomes of those that the device refuses, eagerly and in graphs.
#include <array>
#include <cstring>

#include "engine/bulk.h"
#include "engine/device/cuda_stream.h"
#include "engine/device/device_memory.h"
#include "engine/spi/held_ops.h"
#include "kernels.h"
#include "model_test.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

constexpr int kValues = 4;

class CudaModelLaunches : public CudaModelTest {
 protected:
  void SetUp() override {
    CudaModelTest::SetUp();
    if (IsSkipped()) return;
    EngineOptions options = Quiet(1);
    options.streams_per_device = 2;
    options.drain_timeout = 5s;
    options.devices = {MakeCudaDevice(0)};
    Preload(*options.devices[0]);  // a kernel's first launch may wait for all that runs
    eng_.emplace(options);
    x_ = eng_->NewVar("x");
    eng_->Push({.name = "make", .writes = {x_}, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
      memory_ = ctx.Allocate(kValues * sizeof(int32_t));
      pinned_ = ctx.AllocatePinned(kValues * sizeof(int32_t));
      *Pinned() = 0;
      Must(LaunchSet(CudaStream(ctx), Words(), kValues, 0));
    });
    eng_->Wait(x_);
  }
  void TearDown() override {
    if (IsSkipped()) return;
    eng_->WaitAll();
    memory_.Reset();
    pinned_.Reset();
    x_ = {};
    eng_.reset();
    EXPECT_EQ(Violations(), 0) << LastViolation();
    CudaModelTest::TearDown();
  }
  int32_t* Words() const { return static_cast<int32_t*>(memory_.data()); }
  int32_t* Pinned() const { return static_cast<int32_t*>(pinned_.data()); }
  static void Must(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorName(error));
  }
  int32_t Value(size_t at = 0) {
    int32_t value = -1;
    eng_->Push({.name = "copy", .updates = {x_}, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
      const DeviceStatus copied =
          ctx.device().CopyOut(Pinned(), Words() + at, sizeof value, ctx.stream(), MemoryKind::kPinned);
      if (!copied.ok()) throw DeviceError(copied);
    });
    eng_->Push({.name = "look", .updates = {x_}}, [&] { value = *Pinned(); });
    eng_->Wait(x_);
    return value;
  }
  // A run of two ops, each of one call, that may be a graph. The first sets the last word to 7, the second has the body.
  void Bulk(uint64_t params, const std::function<void(RunContext&)>& body, Placement place = Gpu(0, 0)) {
    HeldOps held(*eng_);
    for (uint64_t member = 0; member < 2; ++member)
      held.Push({.name = "member",
                 .updates = {x_},
                 .place = place,
                 .graph = {.kind = 1 + member, .params = member == 1 ? params : 0, .one_call = true}},
                [&, member, body](RunContext& ctx) {
                  if (member == 1) return body(ctx);
                  Must(LaunchSet(CudaStream(ctx), Words() + kValues - 1, 1, 7));
                });
    held.Release();
    eng_->Wait(x_);
  }
  // Sets the first word. By the runtime's call, and without a look at the error.
  void LaunchUnchecked(RunContext& ctx, int32_t value, unsigned threads = kValues) const {
    int32_t* words = Words();
    int count = 1;
    void* arguments[] = {&words, &count, &value};
    (void)cudaLaunchKernel(SetKernel(), 1, threads, arguments, 0, CudaStream(ctx));
  }
  // A body whose launch is that of a binary with a runtime of its own.
  std::function<void(RunContext&)> FromOtherRuntime(int32_t value) const {
    return [this, value](RunContext& ctx) {
      CUDA_MODEL(cudaModelUseRuntime)(1);
      LaunchUnchecked(ctx, value);
      CUDA_MODEL(cudaModelUseRuntime)(0);
    };
  }

  std::optional<Engine> eng_;
  Var x_;
  DeviceMemory memory_, pinned_;
};

// Beyond what a stream takes a launch waits, with a lock that the host's looks at events need.
TEST_F(CudaModelLaunches, ALaneIsGivenNoMoreThanItsStreamTakes) {
  const Var other = eng_->NewVar("other");
  const long blocked = CUDA_MODEL(cudaModelBlockedLaunches)();
  eng_->Push({.name = "hold", .updates = {x_}, .place = Gpu(0, 0)},
             [&](RunContext& ctx) { Must(LaunchHold(CudaStream(ctx), Pinned())); });
  for (int i = 0; i < 1500; ++i)
    eng_->Push({.name = "behind", .updates = {x_}, .place = Gpu(0, 0)},
               [&](RunContext& ctx) { Must(LaunchAxpy(CudaStream(ctx), Words(), Words(), 0, kValues)); });
  eng_->Push({.name = "set", .writes = {other}, .place = Gpu(0, 1)},
             [&](RunContext& ctx) { Must(LaunchSpin(CudaStream(ctx), 1)); });
  EXPECT_TRUE(eng_->WaitFor(other, 10s));
  __atomic_store_n(Pinned(), 1, __ATOMIC_RELEASE);
  eng_->Wait(x_);
  EXPECT_EQ(CUDA_MODEL(cudaModelBlockedLaunches)() - blocked, 0);
}

// A look may take long, for the driver has locks of its own. Whoever issues to the same lane goes on meanwhile.
TEST_F(CudaModelLaunches, ALookAtTheDeviceKeepsNoIssuerWaiting) {
  struct Gates {
    Gate looks, answer;
  };
  static std::shared_ptr<Gates> gates;  // of this run of the test; a thread may still be told when it is over
  gates = std::make_shared<Gates>();
  const Var other = eng_->NewVar("other");
  eng_->Push({.name = "hold", .updates = {x_}, .place = Gpu(0, 0)},
             [&](RunContext& ctx) { Must(LaunchHold(CudaStream(ctx), Pinned())); });
  const cudaModelHook before = CUDA_MODEL(cudaModelOnCall)([](const char* function, bool begins) {
    if (!begins || std::strcmp(function, "cudaEventQuery") != 0) return;
    gates->looks.Open();
    gates->answer.Wait();
  });
  eng_->Push({.name = "look", .updates = {x_}}, [] {});  // parked, and so somebody looks
  gates->looks.Wait();
  Gate issued;
  eng_->Push({.name = "behind", .updates = {other}, .place = Gpu(0, 0)},
             [&](RunContext& ctx) { Must(LaunchSpin(CudaStream(ctx), 1)); });
  eng_->Push({.name = "next", .updates = {other}, .place = Gpu(0, 0)}, [&](RunContext&) { issued.Open(); });
  EXPECT_TRUE(issued.WaitFor(10s));
  gates->answer.Open();
  CUDA_MODEL(cudaModelOnCall)(before);
  __atomic_store_n(Pinned(), 1, __ATOMIC_RELEASE);
  eng_->Wait(x_);
  eng_->Wait(other);
}

// "Events created with this flag specified and the cudaEventBlockingSync flag not specified will provide the best performance".
TEST_F(CudaModelLaunches, EventsAreTheFastestKind) {
  (void)CUDA_MODEL(cudaModelEventFlags)();
  for (int i = 0; i < 4; ++i)
    eng_->Push({.name = "set", .writes = {x_}, .place = Gpu(0, 0)},
               [&](RunContext& ctx) { Must(LaunchSet(CudaStream(ctx), Words(), kValues, 1)); });
  eng_->Wait(x_);
  Event event;
  const std::shared_ptr<Device> device = MakeCudaDevice(0);
  ASSERT_TRUE(device->CreateEvent(&event).ok());
  EXPECT_TRUE(device->DestroyEvent(event).ok());
  EXPECT_EQ(CUDA_MODEL(cudaModelEventFlags)(), unsigned{cudaEventDisableTiming});
}

// nvcc links a runtime into each binary unless it is told not to.
TEST_F(CudaModelLaunches, AFailureInAnotherInstanceOfTheRuntimeFailsItsOp) {
  const detail::TakeCudaErrorFn take = CUDA_MODEL(cudaModelTakeErrorOfRuntime1);
  detail::AddCudaRuntime(this, take);
  eng_->Push({.name = "refused", .updates = {x_}, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
    CUDA_MODEL(cudaModelUseRuntime)(1);
    LaunchUnchecked(ctx, 7, 5000);
    CUDA_MODEL(cudaModelUseRuntime)(0);
  });
  const std::string error = ErrorOf([&] { eng_->Wait(x_); }).what();
  EXPECT_NE(error.find("cudaErrorInvalidConfiguration"), std::string::npos) << error;
  detail::DropCudaRuntime(take);
  eng_->ClearError(x_);
}

TEST_F(CudaModelLaunches, ACaptureWithARefusedLaunchIsNoGraph) {
  for (int32_t run = 1; run <= 4; ++run) {
    if (run == 3) Fail("cudaLaunchKernel", 2, cudaErrorLaunchOutOfResources, false);  // of the capture
    Bulk(0, [&](RunContext& ctx) { LaunchUnchecked(ctx, 5); });
    EXPECT_EQ(Value(), 5) << "run " << run;
    eng_->Push({.name = "reset", .updates = {x_}, .place = Gpu(0, 0)},
               [&](RunContext& ctx) { Must(LaunchSet(CudaStream(ctx), Words(), kValues, 0)); });
    eng_->Wait(x_);
  }
  EXPECT_EQ(eng_->device_stats().graph_launches, 0u);
}

// The node keeps what it has, and the bulk is captured as a whole.
TEST_F(CudaModelLaunches, ACaptureOfOneNodeWithARefusedLaunchIsNoUpdate) {
  for (int32_t run = 1; run <= 6; ++run) {
    if (run == 5) Fail("cudaLaunchKernel", 1, cudaErrorLaunchOutOfResources, false);
    Bulk(static_cast<uint64_t>(run), [&](RunContext& ctx) { LaunchUnchecked(ctx, run); });
    EXPECT_EQ(Failed(), run < 5 ? "" : "cudaLaunchKernel");
    EXPECT_EQ(Value(), run);
  }
  EXPECT_EQ(eng_->device_stats().graph_launches, 4u);
}

// Its node would be that of the member before, which an update would overwrite.
TEST_F(CudaModelLaunches, AMemberThatMakesNoCallHasNoNode) {
  for (uint64_t run = 1; run <= 6; ++run) {
    Bulk(run, [&](RunContext& ctx) {
      if (run >= 4) LaunchUnchecked(ctx, static_cast<int32_t>(run));
    });
    EXPECT_EQ(Value(), run < 4 ? 0 : static_cast<int32_t>(run));
    EXPECT_EQ(Value(kValues - 1), 7) << "run " << run;
    eng_->Push({.name = "reset", .updates = {x_}, .place = Gpu(0, 0)},
               [&](RunContext& ctx) { Must(LaunchSet(CudaStream(ctx), Words(), kValues, 0)); });
  }
}

// The runtime gives no parameters of another instance's kernels, or of a library's; the driver does.
TEST_F(CudaModelLaunches, ANodeOfAnotherRuntimeIsUpdatedByTheDriver) {
  for (int32_t run = 1; run <= 12; ++run) {
    Bulk(static_cast<uint64_t>(run), FromOtherRuntime(run));
    EXPECT_EQ(Value(), run);
  }
  const DeviceStats stats = eng_->device_stats();
  EXPECT_EQ(stats.graph_launches, 10u);
  EXPECT_EQ(stats.graph_captures, 1u) << "later parameters are those of one node";
  EXPECT_EQ(stats.graph_updates, 9u);
}

// A driver that refuses is not asked again: what it refuses costs a capture each time.
TEST_F(CudaModelLaunches, ANodeThatCannotBeUpdatedIsTriedOnce) {
  const long before = Calls("cuGraphExecKernelNodeSetParams");
  for (int32_t run = 1; run <= 12; ++run) {
    if (run == 4) Fail("cuGraphExecKernelNodeSetParams", 1, cudaErrorInvalidDeviceFunction, false);
    Bulk(static_cast<uint64_t>(run), FromOtherRuntime(run));
    EXPECT_EQ(Value(), run);
  }
  EXPECT_EQ(Calls("cuGraphExecKernelNodeSetParams") - before, 1);
  const DeviceStats stats = eng_->device_stats();
  EXPECT_EQ(stats.graph_launches, 10u);
  EXPECT_EQ(stats.graph_instantiations, 1u);
  EXPECT_EQ(stats.graph_captures, 10u) << "the first, and each with new parameters";
}

// Libraries launch so on newer cards. Whoever asks about the capture without asking for the edges' data gets an error.
TEST_F(CudaModelLaunches, AProgrammaticEdgeKeepsNoBulkFromBeingAGraph) {
  for (int32_t run = 1; run <= 6; ++run) {
    Bulk(static_cast<uint64_t>(run), [this, run](RunContext& ctx) {
      LaunchUnchecked(ctx, run);
      CUDA_MODEL(cudaModelProgrammaticEdge)(CudaStream(ctx));
    });
    EXPECT_EQ(Value(), run);
  }
  EXPECT_EQ(eng_->device_stats().graph_launches, 4u);
  EXPECT_EQ(eng_->device_stats().graph_updates, 3u);
}

// Without a capture, and with one call of CUDA's for each node that changes.
TEST_F(CudaModelLaunches, AChangedNodeOfALaunchIsOneCall) {
  const auto body = [&](int32_t value) {
    return [this, value](RunContext& ctx) { LaunchSet(ctx, Words(), 1, value); };
  };
  for (int32_t run = 1; run <= 3; ++run) Bulk(1, body(1));
  for (int32_t run = 4; run <= 10; ++run) {
    const std::array<const char*, 5> none{"cudaStreamBeginCapture", "cuGraphKernelNodeGetParams", "cudaGraphDestroy",
                                          "cudaLaunchKernel", "cudaGraphInstantiate"};
    std::array<long, 5> before{};
    // But looks, where there are several devices the question which is this thread's, and an event if those of the runs
    // before have not been given back yet.
    const auto all_but_looks = [] {
      long looks = 0;
      for (const char* call :
           {"cudaEventQuery", "cudaGetDevice", "cudaThreadExchangeStreamCaptureMode", "cudaEventCreateWithFlags"})
        looks += Calls(call);
      return Calls("*") + Calls("cudaGetLastError") - looks;
    };
    const long all = all_but_looks();
    for (size_t i = 0; i < none.size(); ++i) before[i] = Calls(none[i]);
    const long set = Calls("cudaGraphExecKernelNodeSetParams"), launched = Calls("cudaGraphLaunch"),
               recorded = Calls("cudaEventRecord");
    Bulk(static_cast<uint64_t>(run), body(run));
    EXPECT_EQ(Calls("cudaGraphExecKernelNodeSetParams") - set, 1);
    EXPECT_EQ(Calls("cudaGraphLaunch") - launched, 1);
    EXPECT_LE(Calls("cudaEventRecord") - recorded, 1);
    EXPECT_LE(all_but_looks() - all, 3) << "calls of any kind";
    for (size_t i = 0; i < none.size(); ++i) EXPECT_EQ(Calls(none[i]) - before[i], 0) << none[i];
    EXPECT_EQ(Value(), run);
  }
  EXPECT_EQ(eng_->device_stats().graph_captures, 1u);
}

// What nvcc links by default: the kernel's own runtime has to launch it, and to give its node the arguments.
TEST_F(CudaModelLaunches, AKernelOfAnotherRuntimeIsLaunchedByItsOwn) {
  const auto body = [&](int32_t value) {
    return [this, value](RunContext& ctx) {
      CUDA_MODEL(cudaModelUseRuntime)(1);
      LaunchSet(ctx, Words(), 1, value);
      CUDA_MODEL(cudaModelUseRuntime)(0);
    };
  };
  for (int32_t run = 1; run <= 8; ++run) {
    Bulk(static_cast<uint64_t>(run), body(run));
    EXPECT_EQ(Value(), run);
  }
  EXPECT_EQ(eng_->device_stats().graph_captures, 1u);
  EXPECT_EQ(eng_->device_stats().graph_launches, 6u);
}

// What is kept with a lane is made outside of captures, on each lane, and the bulk becomes a graph there, too.
TEST_F(CudaModelLaunches, AHandleOfALaneIsMadeBeforeACapture) {
  static int made, in_captures;
  made = in_captures = 0;
  const auto body = [&](RunContext& ctx) {
    static const char key = 0;
    (void)ctx.LaneLocal(&key, [](RunContext& c) -> std::shared_ptr<void> {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      Must(cudaStreamIsCapturing(CudaStream(c), &status));
      in_captures += status != cudaStreamCaptureStatusNone;
      return std::make_shared<int>(++made);
    });
    LaunchUnchecked(ctx, 1);
  };
  for (const Placement lane : {Gpu(0, 0), Gpu(0, 1)}) {
    const uint64_t before = eng_->device_stats().graph_launches;
    for (int run = 0; run < 5; ++run) Bulk(0, body, lane);
    EXPECT_GT(eng_->device_stats().graph_launches, before);
  }
  EXPECT_EQ(made, 2);
  EXPECT_EQ(in_captures, 0);
}

}  // namespace
}  // namespace engine::test
