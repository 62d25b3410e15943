// What the driver does that nobody asked for: it makes streams wait for each other, lets launches wait, and takes memory late.
#include "conformance.h"
#include "engine/bulk.h"
#include "engine/device/cuda_stream.h"
#include "engine/spi/held_ops.h"
#include "kernels.h"
#include "model_test.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

class CudaModelHidden : public CudaModelTest {
 protected:
  void SetUp() override {
    CudaModelTest::SetUp();
    if (IsSkipped()) return;
    device_ = MakeCudaDevice(0);
    Preload(*device_);
    void* flag = nullptr;
    ASSERT_TRUE(device_->AllocatePinned(sizeof(int32_t), &flag).ok());
    flag_ = static_cast<int32_t*>(flag);
    *flag_ = 0;
  }
  void TearDown() override {
    if (!IsSkipped()) {
      Release();
      for (const Stream s : streams_) EXPECT_OK(device_->Synchronize(s));
      for (const Stream s : streams_) EXPECT_OK(device_->DestroyStream(s));
      EXPECT_OK(device_->FreePinned(flag_));
      device_.reset();
      EXPECT_EQ(Violations(), 0) << LastViolation();
    }
    CudaModelTest::TearDown();
  }
  Stream NewStream() {
    EXPECT_OK(device_->CreateStream(0, &streams_.emplace_back()));
    return streams_.back();
  }
  static cudaStream_t Native(Stream stream) { return static_cast<cudaStream_t>(stream.raw); }
  void Hold(Stream stream) { EXPECT_EQ(LaunchHold(Native(stream), flag_), cudaSuccess); }
  void Release() { __atomic_store_n(flag_, 1, __ATOMIC_RELEASE); }

  std::shared_ptr<Device> device_;
  int32_t* flag_ = nullptr;
  std::vector<Stream> streams_;
};

// 8 unless CUDA_DEVICE_MAX_CONNECTIONS says more. What cannot begin keeps what came later on the connection from beginning.
TEST_F(CudaModelHidden, StreamsBeyondTheConnectionsWaitForEachOther) {
  for (int i = 0; i < 9; ++i) NewStream();
  for (int i = 0; i < 2; ++i) Hold(streams_[0]);
  EXPECT_EQ(LaunchSpin(Native(streams_[1]), 1), cudaSuccess);
  EXPECT_OK(device_->Synchronize(streams_[1]));
  EXPECT_EQ(LaunchSpin(Native(streams_[8]), 1), cudaSuccess);  // behind the second kernel of the first stream
  EXPECT_CODE(kNotReady, device_->Query(streams_[8]));
  Release();
  EXPECT_OK(device_->Synchronize(streams_[8]));
}

TEST_F(CudaModelHidden, MemoryThatAnotherStreamFreesMakesNoStreamWait) {
  const Stream first = NewStream(), second = NewStream();
  void *memory = nullptr, *more = nullptr;
  EXPECT_OK(device_->Allocate(4096, first, &memory));
  Hold(first);
  EXPECT_OK(device_->Free(memory, first));
  EXPECT_OK(device_->Allocate(4096, second, &more));
  EXPECT_OK(device_->Synchronize(second));
  EXPECT_CODE(kNotReady, device_->Query(first));  // else the second stream waited for it
  EXPECT_OK(device_->Free(more, second));
}

// What executables take is no difference of the device's free memory: others take some at the same time.
TEST_F(CudaModelHidden, AProcessThatTakesMemoryMakesNoBulkForgotten) {
  EngineOptions options = Quiet(1);
  options.devices = {device_};
  Engine eng(options);
  const Var x = eng.NewVar("x");
  CUDA_MODEL(cudaModelTakeMemory)(size_t{300} << 20);
  for (int run = 0; run < 6; ++run) {
    for (uint64_t kind : {10, 20}) {
      HeldOps held(eng);
      for (uint64_t member = 0; member < 2; ++member)
        held.Push(
            {.name = "member", .updates = {x}, .place = Gpu(0), .graph = {.kind = kind + member, .one_call = true}},
            [](RunContext& ctx) { EXPECT_EQ(LaunchSpin(CudaStream(ctx), 1), cudaSuccess); });
      held.Release();
      eng.Wait(x);
    }
  }
  CUDA_MODEL(cudaModelTakeMemory)(0);
  EXPECT_EQ(eng.device_stats().graph_instantiations, 2u);
  EXPECT_EQ(eng.device_stats().graph_launches, 8u);
}

// Under CUDA_LAUNCH_BLOCKING a launch waits for its kernel's end, and a kernel that waits for the host would never end.
TEST_F(CudaModelTest, BlockingLaunchesAreNoPlaceForHeldKernels) {
  std::string why;
  EXPECT_EQ(MakeCudaUnderTest(&why), nullptr);
  EXPECT_NE(why.find("CUDA_LAUNCH_BLOCKING"), std::string::npos) << why;
}

}  // namespace
}  // namespace engine::test
