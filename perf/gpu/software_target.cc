// The software device as a target: kernels sleep for their time, so that lanes overlap on any number of cores.
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "by_hand.h"
#include "engine/device/launch.h"
#include "heap.h"
#include "target.h"

namespace engine::perf {

std::unique_ptr<ByHand> MakeSoftwareByHand(Target& target, int streams, int events);

namespace {

class SpanObserver final : public DeviceObserver {
 public:
  void OnWork(uint32_t, const SoftwareKernel&) override {}
  void OnRecord(uint64_t, uint32_t) override {}
  void OnWait(uint32_t, uint64_t) override {}
  void OnHostSync(uint64_t) override {}
  void OnForget(uint64_t) override {}
  void OnAllocate(uint32_t, const void*, size_t) override {}
  void OnFree(uint32_t, const void*, size_t) override {}
  void OnRan(uint32_t lane, const SoftwareKernel& work, Nanos start, Nanos end) override {
    const std::lock_guard lock(mu_);
    if (on_) spans_.push_back({lane, work.name, start.count(), end.count()});
  }
  void Start() {
    const std::lock_guard lock(mu_);
    on_ = true;
    spans_.clear();
  }
  std::vector<Span> Stop() {
    const std::lock_guard lock(mu_);
    on_ = false;
    return std::move(spans_);
  }

 private:
  std::mutex mu_;
  bool on_ = false;
  std::vector<Span> spans_;
};

void SleepFor(int64_t nanoseconds) {
  if (nanoseconds >= 5'000) std::this_thread::sleep_for(Nanos(nanoseconds));
}

class SoftwareTarget final : public Target {
 public:
  explicit SoftwareTarget(SoftwareDeviceOptions options) : observer_(std::make_shared<SpanObserver>()) {
    sleeps_ = options.clock == SoftwareDeviceOptions::Clock::kThreads;
    options.observer = observer_;
    // Whoever polls naps in between; a virtual clock learns of that time by the polls alone.
    if (!sleeps_) options.costs.host[static_cast<size_t>(DeviceCall::kQuery)] = std::chrono::microseconds(50);
    device_ = MakeSoftwareDevice(options);
  }
  std::shared_ptr<Device> device() override { return device_; }
  bool judged() const override { return false; }
  DeviceStatus Spin(Stream stream, Nanos time, const char* name) override {
    const HeapPause pause;
    launches_.fetch_add(1, std::memory_order_relaxed);
    return device_->Launch(stream, SoftwareKernel{name, time, Body(time), {}});
  }
  void Spin(RunContext& ctx, Nanos time) override {
    const HeapPause pause;
    launches_.fetch_add(1, std::memory_order_relaxed);
    ctx.Launch(SleepFor, 1, 1, sleeps_ ? time.count() : 0);
  }
  DeviceStatus Hold(Stream stream, uint64_t* hold) override {
    const HeapPause pause;
    launches_.fetch_add(1, std::memory_order_relaxed);
    return device_->LaunchHeld(stream, "hold", hold);
  }
  void Release(uint64_t hold) override { device_->Release(hold); }
  std::unique_ptr<ByHand> MakeByHand(int streams, int events) override {
    return MakeSoftwareByHand(*this, streams, events);
  }
  uint64_t launches() const override { return launches_.load(std::memory_order_relaxed); }
  void StartSpans() override { observer_->Start(); }
  std::vector<Span> StopSpans() override { return observer_->Stop(); }

 private:
  std::function<void()> Body(Nanos time) const {
    if (!sleeps_ || time < std::chrono::microseconds(5)) return {};
    return [time] { std::this_thread::sleep_for(time); };
  }

  std::shared_ptr<SpanObserver> observer_;
  std::shared_ptr<SoftwareDevice> device_;
  bool sleeps_ = false;                // a virtual clock spends the cost by itself
  std::atomic<uint64_t> launches_{0};  // relaxed: a counter
};

}  // namespace

std::unique_ptr<Target> MakeSoftwareTarget(SoftwareDeviceOptions options) {
  return std::make_unique<SoftwareTarget>(std::move(options));
}

}  // namespace engine::perf
