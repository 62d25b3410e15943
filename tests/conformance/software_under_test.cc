#include "device_under_test.h"
#include "engine/device/launch.h"

namespace engine::test {
namespace {

void AxpyOnHost(int32_t* y, const int32_t* x, int32_t a, int count) {
  for (int i = 0; i < count; ++i) y[i] += a * x[i];
}

class SoftwareUnderTest final : public DeviceUnderTest {
 public:
  explicit SoftwareUnderTest(SoftwareDeviceOptions options) : device_(MakeSoftwareDevice(std::move(options))) {}
  Device& device() override { return *device_; }
  DeviceStatus Set(Stream stream, int32_t* to, int count, int32_t value) override {
    const size_t bytes = sizeof(int32_t) * static_cast<size_t>(count);
    return device_->Launch(stream, {"set",
                                    std::chrono::microseconds(2),
                                    [=] {
                                      for (int i = 0; i < count; ++i) to[i] = value;
                                    },
                                    {{to, bytes, true}}});
  }
  DeviceStatus Axpy(Stream stream, int32_t* y, const int32_t* x, int32_t a, int count) override {
    const size_t bytes = sizeof(int32_t) * static_cast<size_t>(count);
    return device_->Launch(stream, {"axpy",
                                    std::chrono::microseconds(3),
                                    [=] {
                                      for (int i = 0; i < count; ++i) y[i] += a * x[i];
                                    },
                                    {{x, bytes, false}, {y, bytes, true}}});
  }
  void WithAxpy(const std::function<void(const KernelLaunch&)>& fn, int32_t* y, const int32_t* x, int32_t a,
                int count) override {
    detail::WithLaunch(fn, AxpyOnHost, 1, 1, 0, y, x, a, count);
  }
  DeviceStatus Spin(Stream stream, std::chrono::nanoseconds time) override {
    return device_->Launch(stream, "spin", time, {});
  }
  DeviceStatus Hold(Stream stream, uint64_t* hold) override { return device_->LaunchHeld(stream, "hold", hold); }
  void Release(uint64_t hold) override { device_->Release(hold); }

 private:
  std::shared_ptr<SoftwareDevice> device_;
};

}  // namespace

std::unique_ptr<DeviceUnderTest> MakeSoftwareUnderTest(SoftwareDeviceOptions options) {
  return std::make_unique<SoftwareUnderTest>(std::move(options));
}

}  // namespace engine::test
