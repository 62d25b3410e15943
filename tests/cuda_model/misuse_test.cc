// The model notices what the documents forbid; else a suite that runs well on it would show nothing.
#include <thread>

#include "kernels.h"
#include "model_test.h"

namespace engine::test {
namespace {

class CudaModelMisuse : public CudaModelTest {
 protected:
  void SetUp() override {
    CudaModelTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    ASSERT_EQ(cudaMemPoolCreate(&pool_, &properties), cudaSuccess);
    ASSERT_EQ(cudaMallocFromPoolAsync(&memory_, 400, pool_, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(cudaFreeAsync(memory_, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaMemPoolDestroy(pool_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(Violations(), 0) << LastViolation();
    (void)cudaGetLastError();
    CudaModelTest::TearDown();
  }
  // The call is refused, and noticed.
  void ExpectViolation(cudaError_t got, cudaError_t wanted, const char* text) {
    EXPECT_STREQ(cudaGetErrorName(got), cudaGetErrorName(wanted)) << text;
    EXPECT_GT(Violations(), 0) << text;
    EXPECT_NE(LastViolation().find(text), std::string::npos) << LastViolation();
    Forgive();
  }
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(CudaModelMisuse, HandlesThatAreNone) {
  cudaStream_t gone = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&gone, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(gone), cudaSuccess);
  ExpectViolation(cudaStreamSynchronize(gone), cudaErrorInvalidResourceHandle, "was destroyed");
  ExpectViolation(cudaStreamDestroy(gone), cudaErrorInvalidResourceHandle, "was destroyed");
  ExpectViolation(cudaEventRecord(event_, nullptr), cudaErrorInvalidResourceHandle, "the stream is null");
  ExpectViolation(cudaStreamQuery(reinterpret_cast<cudaStream_t>(event_)), cudaErrorInvalidResourceHandle,
                  "is no stream");
  ExpectViolation(cudaSetDevice(7), cudaErrorInvalidDevice, "no device 7");
}

TEST_F(CudaModelMisuse, StreamsThatWaitForStreamZero) {
  cudaStream_t stream = nullptr;
  ExpectViolation(cudaStreamCreateWithPriority(&stream, cudaStreamDefault, 0), cudaErrorNotSupported, "stream 0");
}

TEST_F(CudaModelMisuse, MemoryThatIsNotWhatItIsSaidToBe) {
  int32_t host[200] = {};
  auto* const words = static_cast<int32_t*>(memory_);
  ExpectViolation(cudaMemcpyAsync(words, host, 800, cudaMemcpyHostToDevice, stream_), cudaErrorInvalidValue,
                  "ends beyond");
  ExpectViolation(cudaMemcpyAsync(host, words, 400, cudaMemcpyHostToDevice, stream_), cudaErrorInvalidValue,
                  "direction");
  ExpectViolation(cudaFree(words), cudaErrorInvalidValue, "not what this function frees");
  ExpectViolation(cudaFreeHost(host), cudaErrorInvalidValue, "not what this function frees");
  void* other = nullptr;
  ASSERT_EQ(cudaMallocFromPoolAsync(&other, 4000, pool_, stream_), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(other, stream_), cudaSuccess);
  ExpectViolation(cudaFreeAsync(other, stream_), cudaErrorInvalidValue, "freed twice");
  ExpectViolation(cudaMemcpyAsync(words, other, 4, cudaMemcpyDeviceToDevice, stream_), cudaErrorInvalidValue,
                  "was freed");
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  properties.reserved[3] = 1;
  cudaMemPool_t pool = nullptr;
  ExpectViolation(cudaMemPoolCreate(&pool, &properties), cudaErrorInvalidValue, "reserved");
}

// The free is reached, the kernel comes behind it.
TEST_F(CudaModelMisuse, KernelsThatTouchWhatWasFreed) {
  void* other = nullptr;
  ASSERT_EQ(cudaMallocFromPoolAsync(&other, 4000, pool_, stream_), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(other, stream_), cudaSuccess);
  (void)LaunchSet(stream_, static_cast<int32_t*>(other), 1000, 1);  // it may have failed by the time this asks
  ExpectViolation(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress, "Set");
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress) << "it stays";
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaErrorIllegalAddress);
  Revive();
  CudaModelMisuse::SetUp();  // what there was is gone with the device
}

TEST_F(CudaModelMisuse, LaunchesThatCannotBe) {
  const auto flag = static_cast<int32_t*>(memory_);
  EXPECT_EQ(LaunchSet(stream_, flag, 0, 1), cudaErrorInvalidConfiguration);  // no blocks
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "it was taken";
  ExpectViolation(cudaLaunchKernel(memory_, 1, 1, nullptr, 0, stream_), cudaErrorInvalidDeviceFunction, "no kernel");
}

TEST_F(CudaModelMisuse, HostFunctionsThatCallTheRuntime) {
  static cudaError_t got;
  ASSERT_EQ(cudaLaunchHostFunc(
                stream_, [](void* event) { got = cudaEventQuery(static_cast<cudaEvent_t>(event)); }, event_),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  ExpectViolation(got, cudaErrorNotPermitted, "host functions");
}

// In global mode, the default of most programs, another thread's allocation spoils the capture.
TEST_F(CudaModelMisuse, CapturesInGlobalModeAreSpoiltByOthers) {
  cudaGraph_t graph = nullptr;
  for (const auto& [mode, wanted] : {std::pair{cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported},
                                     std::pair{cudaStreamCaptureModeThreadLocal, cudaSuccess},
                                     std::pair{cudaStreamCaptureModeRelaxed, cudaSuccess}}) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
    cudaError_t other = cudaSuccess;
    std::thread([&] { other = cudaEventQuery(event_); }).join();
    EXPECT_EQ(other, wanted);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph),
              wanted == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph != nullptr, wanted == cudaSuccess);
    if (!graph) continue;
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

TEST_F(CudaModelMisuse, NodesOfAGraphThatIsGone) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaGraphNode_t node = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(LaunchSet(stream_, static_cast<int32_t*>(memory_), 100, 1), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  size_t count = 1;
  ASSERT_EQ(cudaGraphGetNodes(graph, &node, &count), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  cudaKernelNodeParams parameters{};
  ASSERT_EQ(cudaGraphKernelNodeGetParams(node, &parameters), cudaSuccess);
  EXPECT_EQ(cudaGraphExecKernelNodeSetParams(exec, node, &parameters), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ExpectViolation(cudaGraphExecKernelNodeSetParams(exec, node, &parameters), cudaErrorInvalidValue, "was destroyed");
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

// What the end of the process says: it counts what is alive.
TEST_F(CudaModelMisuse, WhatIsLeftIsCounted) {
  const int before = Live();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  EXPECT_EQ(Live(), before + 1);
  ASSERT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(Live(), before);
}

}  // namespace
}  // namespace engine::test
