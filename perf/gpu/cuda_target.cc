// A CUDA device as a target.
#include <atomic>
#include <optional>

#include "by_hand.h"
#include "kernels.h"
#include "span_log.h"
#include "target.h"

namespace engine::perf {

std::unique_ptr<ByHand> MakeCudaByHand(SpanLog& spans, int32_t* flags, uint64_t (*next_flag)(), int streams,
                                       int events);

namespace {

// Flags of held kernels are used in turn; a scenario holds far fewer at once.
constexpr uint64_t kHolds = 4096;
uint64_t NextFlag() {
  static std::atomic<uint64_t> next{0};  // relaxed: a counter
  return next.fetch_add(1, std::memory_order_relaxed) % kHolds;
}

DeviceStatus Checked(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return DeviceStatus::Fail(DeviceCode::kUnknown, false, error, std::string(call) + ": " + cudaGetErrorName(error));
}

class CudaTarget final : public Target {
 public:
  CudaTarget() : device_(MakeCudaDevice(0)) {
    void* memory = nullptr;
    Must(device_->MakeCurrent());
    Must(device_->AllocatePinned(kHolds * sizeof(int32_t), &memory));
    flags_ = static_cast<int32_t*>(memory);
    spans_.emplace();
    // Modules load at a kernel's first launch, which a capture would not survive.
    Stream stream;
    Must(device_->CreateStream(0, &stream));
    Must(Spin(stream, Nanos(1), "warm"));
    uint64_t hold = 0;
    Must(Hold(stream, &hold));
    Release(hold);
    Must(device_->Synchronize(stream));
    Must(device_->DestroyStream(stream));
  }
  ~CudaTarget() override {
    spans_.reset();
    (void)device_->FreePinned(flags_);
  }
  std::shared_ptr<Device> device() override { return device_; }
  // Not on tests/cuda_model, whose devices have that name.
  bool judged() const override { return !device_->info().description.starts_with("model of CUDA"); }
  std::unique_ptr<ByHand> MakeByHand(int streams, int events) override {
    return MakeCudaByHand(*spans_, flags_, &NextFlag, streams, events);
  }

  DeviceStatus Spin(Stream stream, Nanos time, const char* name) override {
    launches_.fetch_add(1, std::memory_order_relaxed);
    const cudaStream_t native = Native(stream);
    return Checked("cudaLaunchKernel",
                   LaunchSpin(native, time.count(), spans_->on() ? spans_->Next(native, name) : nullptr));
  }
  void Spin(RunContext& ctx, Nanos time) override {
    launches_.fetch_add(1, std::memory_order_relaxed);
    LaunchSpin(ctx, time.count());
  }
  DeviceStatus Hold(Stream stream, uint64_t* hold) override {
    launches_.fetch_add(1, std::memory_order_relaxed);
    *hold = NextFlag();
    __atomic_store_n(flags_ + *hold, 0, __ATOMIC_RELEASE);
    return Checked("cudaLaunchKernel", LaunchHold(Native(stream), flags_ + *hold));
  }
  void Release(uint64_t hold) override { __atomic_store_n(flags_ + hold, 1, __ATOMIC_RELEASE); }
  uint64_t launches() const override { return launches_.load(std::memory_order_relaxed); }
  void StartSpans() override { spans_->Start(); }
  std::vector<Span> StopSpans() override { return spans_->Stop(); }

 private:
  cudaStream_t Native(Stream stream) const { return static_cast<cudaStream_t>(device_->NativeStream(stream)); }

  std::shared_ptr<Device> device_;
  int32_t* flags_ = nullptr;
  std::optional<SpanLog> spans_;
  std::atomic<uint64_t> launches_{0};  // relaxed: a counter
};

}  // namespace

std::unique_ptr<Target> MakeCudaTarget(std::string* why) {
  if (CudaDeviceCount(why) == 0) return nullptr;
  return std::make_unique<CudaTarget>();
}

CudaVersions VersionsOfCuda() {
  CudaVersions out;
  (void)cudaRuntimeGetVersion(&out.runtime);
  (void)cudaDriverGetVersion(&out.driver);
  return out;
}

}  // namespace engine::perf
