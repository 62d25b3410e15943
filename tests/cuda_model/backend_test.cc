// The cuda backend, each of its calls of the runtime failing once: the status says which call and why, nothing is left behind.
#include <functional>
#include <set>

#include "engine/device/device.h"
#include "kernels.h"
#include "model_test.h"

namespace engine::test {
namespace {

class CudaModelBackend : public CudaModelTest {
 protected:
  // All that the backend does, once. Ends at the first call that fails; what was made is given back. All failures, in order.
  static std::vector<DeviceStatus> Everything(int ordinal);
  // Fails the nth call of the runtime, for every n there is.
  void EachCall(int ordinal, cudaError_t error, bool sticky, DeviceCode code);
};

std::vector<DeviceStatus> CudaModelBackend::Everything(int ordinal) {
  std::vector<DeviceStatus> failures;
  std::vector<std::function<DeviceStatus()>> undo;
  const auto note = [&](DeviceStatus status) {
    if (status.failed()) failures.push_back(std::move(status));
  };
  const auto must = [&](const DeviceStatus& status) {
    if (status.failed()) throw DeviceError(status);
  };
  // Of calls that the test itself makes.
  const auto direct = [](const char* call, cudaError_t error) {
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaSuccess
               ? DeviceStatus()
               : DeviceStatus::Fail(DeviceCode::kUnknown, error == cudaErrorIllegalAddress, error, call);
  };
  const auto launched = [&](cudaError_t error) { return direct("cudaLaunchKernel", error); };
  constexpr int kCount = 100;
  constexpr size_t kBytes = kCount * sizeof(int32_t);
  Stream stream, other;
  Event event, start, end;
  DeviceGraph graphs[2];
  DeviceGraphNode set[2], copy[2];
  DeviceGraphExec exec;
  try {
    const std::shared_ptr<Device> device = MakeCudaDevice(ordinal);
    Preload(*device);
    try {
      for (Stream* s : {&stream, &other}) {
        must(device->CreateStream(0, s));
        undo.push_back([=] { return device->DestroyStream(*s); });
      }
      must(device->CreateEvent(&event));
      undo.push_back([&] { return device->DestroyEvent(event); });
      for (Event* e : {&start, &end}) {
        must(device->CreateTimedEvent(e));
        undo.push_back([=] { return device->DestroyEvent(*e); });
      }
      void *pinned = nullptr, *memory = nullptr;
      must(device->AllocatePinned(kBytes, &pinned));
      undo.push_back([=] { return device->FreePinned(pinned); });
      must(device->Allocate(kBytes, stream, &memory));
      undo.push_back([&, memory] { return device->Free(memory, stream); });
      auto* const words = static_cast<int32_t*>(memory);
      const auto native = [&](Stream s) { return static_cast<cudaStream_t>(device->NativeStream(s)); };
      int current = -1;
      must(direct("cudaGetDevice", cudaGetDevice(&current)));
      EXPECT_TRUE(current == 0 || Failed() == "cuCtxPopCurrent") << "the thread's device was changed";
      must(device->MakeCurrent());
      std::vector<int32_t> host(kCount, 5);
      must(device->Record(start, stream));
      must(device->CopyIn(memory, host.data(), kBytes, stream));
      must(device->CopyOut(pinned, memory, kBytes, stream, MemoryKind::kPinned));
      must(launched(LaunchAxpy(native(stream), words, words, 1, kCount)));
      must(device->TakeLastError());
      must(device->Record(end, stream));
      must(device->Wait(other, end));
      must(device->Query(end));
      must(device->Query(other));
      must(device->Synchronize(other));
      must(device->Synchronize(end));
      std::chrono::nanoseconds took{};
      must(device->Elapsed(start, end, &took));
      must(device->CopyOut(host.data(), memory, kBytes, stream));
      EXPECT_EQ(host[0], 10);
      for (int i = 0; i < 2; ++i) {
        must(device->BeginCapture(stream));
        DeviceStatus bad = launched(LaunchSet(native(stream), words, kCount, i));
        if (!bad.failed()) bad = device->LastNode(stream, &set[i]);
        if (!bad.failed()) bad = device->CopyIn(memory, pinned, kBytes / 2, stream, MemoryKind::kPinned);
        if (!bad.failed()) bad = device->LastNode(stream, &copy[i]);
        DeviceStatus ended = device->EndCapture(stream, &graphs[i]);
        if (graphs[i]) undo.push_back([&, i] { return device->DestroyGraph(graphs[i]); });
        must(bad);
        must(ended);
      }
      size_t bytes = 0;
      must(device->Instantiate(graphs[0], &exec, &bytes));
      undo.push_back([&] { return device->DestroyGraphExec(exec); });
      must(device->UpdateNode(exec, set[0], set[1]));
      must(device->UpdateNode(exec, copy[0], copy[1]));
      must(device->Update(exec, graphs[1]));
      must(device->Launch(exec, stream));
      must(device->Synchronize(stream));
      must(device->TrimPool(0));
      for (; !undo.empty(); undo.pop_back()) note(undo.back()());
    } catch (const DeviceError& error) {
      note(error.status());
      for (; !undo.empty(); undo.pop_back()) note(undo.back()());
    }
  } catch (const DeviceError& error) {
    note(error.status());
  }
  for (int i = 0; i < 2; ++i)
    if (cudaSetDevice(0) != cudaSuccess) (void)cudaGetLastError();
  return failures;
}

void CudaModelBackend::EachCall(int ordinal, cudaError_t error, bool sticky, DeviceCode code) {
  // What fails of these is somebody else's matter, or can be done without: the thread's own device and mode come back for whoever
  // called, a device's destructor says nothing, memory is freed without a look.
  const std::set<std::string> silent{"cudaSetDevice",
                                     "cudaMemPoolDestroy",
                                     "cudaStreamIsCapturing",
                                     "cudaGetDevice",
                                     "cuCtxPushCurrent",
                                     "cuCtxPopCurrent",
                                     "cudaThreadExchangeStreamCaptureMode"};
  std::set<std::string> failed;
  for (long nth = 1;; ++nth) {
    Fail("*", nth, error, sticky);
    const std::vector<DeviceStatus> failures = Everything(ordinal);
    const std::string function = Failed();
    if (function.empty()) {
      EXPECT_TRUE(failures.empty()) << failures.front().text();
      break;
    }
    failed.insert(function);
    SCOPED_TRACE("call " + std::to_string(nth) + ", " + function);
    if (!silent.count(function)) {
      EXPECT_FALSE(failures.empty()) << "nobody was told";
    }
    for (const DeviceStatus& status : failures) {
      if (function == "cudaGetDeviceCount") {  // no devices, then, and the reason
        EXPECT_EQ(status.code(), DeviceCode::kNoDevice);
        EXPECT_NE(status.text().find(cudaGetErrorName(error)), std::string::npos) << status.text();
        continue;
      }
      EXPECT_EQ(status.native_code(), error) << status.text();
      EXPECT_EQ(status.sticky(), sticky) << status.text();
      if (status.code() != DeviceCode::kUnknown) {  // of the test's own
        EXPECT_EQ(status.code(), code) << status.text();
      }
      if (!sticky) {
        EXPECT_NE(status.text().find(function), std::string::npos) << status.text() << " does not name the call";
      }
    }
    if (sticky) Revive();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left for whoever asks next";
    ASSERT_EQ(Live(), 0) << "left on the device";
    ASSERT_EQ(Violations(), 0) << LastViolation();
  }
  EXPECT_GT(failed.size(), 35u) << "of the runtime's functions that the backend calls";
}

TEST_F(CudaModelBackend, EachCallThatFailsIsNamed) {
  EachCall(0, cudaErrorInvalidValue, false, DeviceCode::kInvalidValue);
}

TEST_F(CudaModelBackend, OnADeviceThatIsNotTheThreadsOwnToo) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "one device";
  EachCall(1, cudaErrorMemoryAllocation, false, DeviceCode::kOutOfMemory);
}

TEST_F(CudaModelBackend, EachCallThatLosesTheDeviceSaysSo) {
  EachCall(0, cudaErrorIllegalAddress, true, DeviceCode::kIllegalAddress);
}

// Else each synchronization would give it back, and the next step would take it again.
TEST_F(CudaModelBackend, ThePoolKeepsItsMemoryUntilItIsTrimmed) {
  const std::shared_ptr<Device> device = MakeCudaDevice(0);
  const auto available = [] {
    size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return free;
  };
  Stream stream;
  ASSERT_TRUE(device->CreateStream(0, &stream).ok());
  const size_t before = available();
  void* memory = nullptr;
  ASSERT_TRUE(device->Allocate(1 << 20, stream, &memory).ok());
  const size_t taken = available();
  EXPECT_LE(taken, before - (1 << 20));
  EXPECT_TRUE(device->Free(memory, stream).ok());
  EXPECT_TRUE(device->Synchronize(stream).ok());
  EXPECT_EQ(available(), taken);
  EXPECT_TRUE(device->TrimPool(0).ok());
  EXPECT_EQ(available(), before);
  EXPECT_TRUE(device->DestroyStream(stream).ok());
}

// "Not ready" is no error, and hides none: that of a launch before is still there for whoever asks.
TEST_F(CudaModelBackend, NotReadyHidesNoErrorOfALaunch) {
  const std::shared_ptr<Device> device = MakeCudaDevice(0);
  Stream stream;
  ASSERT_TRUE(device->CreateStream(0, &stream).ok());
  void* flag = nullptr;
  ASSERT_TRUE(device->AllocatePinned(4, &flag).ok());
  *static_cast<int32_t*>(flag) = 0;
  ASSERT_EQ(LaunchHold(static_cast<cudaStream_t>(stream.raw), static_cast<int32_t*>(flag)), cudaSuccess);
  Fail("cudaSetDevice", 1, cudaErrorInvalidValue, false);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorInvalidValue);  // a call of the user's own, whose result it has not looked at
  EXPECT_EQ(device->Query(stream).code(), DeviceCode::kNotReady);
  EXPECT_EQ(device->TakeLastError().native_code(), cudaErrorInvalidValue);
  Fail("cudaStreamQuery", 1, cudaErrorNotReady, false);  // as runtimes do that note it all the same
  EXPECT_EQ(device->Query(stream).code(), DeviceCode::kNotReady);
  EXPECT_TRUE(device->TakeLastError().ok());
  __atomic_store_n(static_cast<int32_t*>(flag), 1, __ATOMIC_RELEASE);
  EXPECT_TRUE(device->FreePinned(flag).ok());
  EXPECT_TRUE(device->DestroyStream(stream).ok());
}

}  // namespace
}  // namespace engine::test
