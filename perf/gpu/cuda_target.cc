// A CUDA device as a target. Kernels note when they ran in device memory, so that a timeline costs the host nothing.
#include <atomic>
#include <map>
#include <mutex>

#include "kernels.h"
#include "target.h"

namespace engine::perf {
namespace {

DeviceStatus Checked(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return DeviceStatus::Fail(DeviceCode::kUnknown, false, error, std::string(call) + ": " + cudaGetErrorName(error));
}

class CudaTarget final : public Target {
 public:
  CudaTarget() : device_(MakeCudaDevice(0)) {
    void* memory = nullptr;
    Must(device_->AllocatePinned(kHolds * sizeof(int32_t), &memory));
    flags_ = static_cast<int32_t*>(memory);
    Must(Checked("cudaMalloc", cudaMalloc(&memory, kSpans * sizeof(Stamp))));
    stamps_ = static_cast<Stamp*>(memory);
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
    (void)cudaFree(stamps_);
    (void)device_->FreePinned(flags_);
  }
  std::shared_ptr<Device> device() override { return device_; }
  // Not on tests/cuda_model, whose devices have that name.
  bool judged() const override { return !device_->info().description.starts_with("model of CUDA"); }

  DeviceStatus Spin(Stream stream, Nanos time, const char* name) override {
    launches_.fetch_add(1, std::memory_order_relaxed);
    Stamp* stamp = nullptr;
    if (spans_on_.load(std::memory_order_relaxed)) {
      const std::lock_guard lock(mu_);
      if (spans_.size() < kSpans) {
        stamp = stamps_ + spans_.size();
        const auto lane = lanes_.emplace(stream.raw, static_cast<uint32_t>(lanes_.size())).first->second;
        spans_.push_back({lane, name, 0, 0});
      }
    }
    return Checked("launch", LaunchSpin(Native(stream), time.count(), stamp));
  }
  // Flags are used in turn; a scenario holds far fewer at once.
  DeviceStatus Hold(Stream stream, uint64_t* hold) override {
    launches_.fetch_add(1, std::memory_order_relaxed);
    *hold = next_hold_.fetch_add(1, std::memory_order_relaxed) % kHolds;
    __atomic_store_n(flags_ + *hold, 0, __ATOMIC_RELEASE);
    return Checked("launch", LaunchHold(Native(stream), flags_ + *hold));
  }
  void Release(uint64_t hold) override { __atomic_store_n(flags_ + hold, 1, __ATOMIC_RELEASE); }
  DeviceStatus SetSpin(DeviceGraphExec exec, DeviceGraphNode node, Nanos time) override {
    return Checked(
        "cudaGraphExecKernelNodeSetParams",
        SetSpinNode(static_cast<cudaGraphExec_t>(exec.raw), static_cast<cudaGraphNode_t>(node.raw), time.count()));
  }
  uint64_t launches() const override { return launches_.load(std::memory_order_relaxed); }
  uint64_t DriverMemory() override {
    size_t free = 0, total = 0;
    Must(device_->MakeCurrent());
    Must(Checked("cudaMemGetInfo", cudaMemGetInfo(&free, &total)));
    return total - free;
  }

  void StartSpans() override {
    const std::lock_guard lock(mu_);
    spans_.clear();
    lanes_.clear();
    spans_on_.store(true, std::memory_order_relaxed);
  }
  std::vector<Span> StopSpans() override {
    const std::lock_guard lock(mu_);
    spans_on_.store(false, std::memory_order_relaxed);
    std::vector<Stamp> stamps(spans_.size());
    if (!stamps.empty())
      Must(Checked("cudaMemcpy",
                   cudaMemcpy(stamps.data(), stamps_, stamps.size() * sizeof(Stamp), cudaMemcpyDeviceToHost)));
    for (size_t i = 0; i < spans_.size(); ++i) {
      spans_[i].start = stamps[i].start;
      spans_[i].end = stamps[i].end;
    }
    return std::move(spans_);
  }

 private:
  static constexpr uint64_t kHolds = 4096;
  static constexpr size_t kSpans = size_t{1} << 16;
  cudaStream_t Native(Stream stream) const { return static_cast<cudaStream_t>(device_->NativeStream(stream)); }

  std::shared_ptr<Device> device_;
  int32_t* flags_ = nullptr;
  Stamp* stamps_ = nullptr;
  std::atomic<uint64_t> launches_{0}, next_hold_{0};  // relaxed: counters
  std::atomic<bool> spans_on_{false};                 // relaxed: changed while nothing runs
  std::mutex mu_;
  std::vector<Span> spans_;
  std::map<void*, uint32_t> lanes_;
};

}  // namespace

std::unique_ptr<Target> MakeCudaTarget(std::string* why) {
  if (CudaDeviceCount(why) == 0) return nullptr;
  return std::make_unique<CudaTarget>();
}

}  // namespace engine::perf
