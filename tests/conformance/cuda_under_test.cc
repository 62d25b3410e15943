#include <atomic>
#include <cstdlib>
#include <deque>
#include <stdexcept>

#include "device_under_test.h"
#include "kernels.h"

namespace engine::test {
namespace {

class CudaUnderTest final : public DeviceUnderTest {
 public:
  CudaUnderTest() : device_(MakeCudaDevice(0, true)) {
    // All flags at once: pinned memory may not be made while a kernel is held, or in a capture.
    void* memory = nullptr;
    Require(device_->AllocatePinned(kHolds * sizeof(int32_t), &memory));
    flags_ = static_cast<int32_t*>(memory);
    for (uint64_t i = 0; i < kHolds; ++i) flags_[i] = 0;
    // Modules load at a kernel's first launch, which a capture would not survive; what else a first launch does comes with it.
    Preload(*device_);
    Stream stream;
    void* scratch = nullptr;
    Require(device_->CreateStream(0, &stream));
    Require(device_->Allocate(4, stream, &scratch));
    auto* word = static_cast<int32_t*>(scratch);
    Require(Set(stream, word, 1, 0));
    Require(Axpy(stream, word, word, 1, 1));
    Require(Spin(stream, std::chrono::nanoseconds(1)));
    uint64_t hold = 0;
    Require(Hold(stream, &hold));
    Release(hold);
    Require(device_->Free(scratch, stream));
    Require(device_->Synchronize(stream));
    Require(device_->DestroyStream(stream));
  }
  ~CudaUnderTest() override { (void)device_->FreePinned(flags_); }

  Device& device() override { return *device_; }
  DeviceStatus Set(Stream stream, int32_t* to, int count, int32_t value) override {
    return Launched(LaunchSet(Native(stream), to, count, value));
  }
  DeviceStatus Axpy(Stream stream, int32_t* y, const int32_t* x, int32_t a, int count) override {
    return Launched(LaunchAxpy(Native(stream), y, x, a, count));
  }
  void WithAxpy(const std::function<void(const KernelLaunch&)>& fn, int32_t* y, const int32_t* x, int32_t a,
                int count) override {
    Require(device_->MakeCurrent());
    test::WithAxpy(fn, y, x, a, count);
  }
  DeviceStatus Spin(Stream stream, std::chrono::nanoseconds time) override {
    return Launched(LaunchSpin(Native(stream), time.count()));
  }
  DeviceStatus Hold(Stream stream, uint64_t* hold) override {
    *hold = next_hold_++;
    if (*hold >= kHolds) throw std::runtime_error("CudaUnderTest: no flag left, raise kHolds");
    return Launched(LaunchHold(Native(stream), flags_ + *hold));
  }
  void Release(uint64_t hold) override { __atomic_store_n(flags_ + hold, 1, __ATOMIC_RELEASE); }

 private:
  static constexpr uint64_t kHolds = 64;
  static void Require(DeviceStatus status) {
    if (!status.ok()) throw DeviceError(std::move(status));
  }
  cudaStream_t Native(Stream stream) {
    Require(device_->MakeCurrent());
    return static_cast<cudaStream_t>(device_->NativeStream(stream));
  }
  static DeviceStatus Launched(cudaError_t error) {
    if (error == cudaSuccess) return {};
    return DeviceStatus::Fail(DeviceCode::kUnknown, false, error, std::string("launch: ") + cudaGetErrorName(error));
  }
  std::shared_ptr<Device> device_;
  int32_t* flags_ = nullptr;
  uint64_t next_hold_ = 0;
};

}  // namespace

std::unique_ptr<DeviceUnderTest> MakeCudaUnderTest(std::string* why) {
  if (CudaDeviceCount(why) == 0) return nullptr;
  if (const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING"); blocking && std::atoi(blocking) != 0) {
    *why = "CUDA_LAUNCH_BLOCKING is set: a launch would wait for a kernel that waits for this thread";
    return nullptr;
  }
  return std::make_unique<CudaUnderTest>();
}

}  // namespace engine::test
