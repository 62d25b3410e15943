// DeviceUnderTest: a device and the few kernels that the conformance suite needs of it. One implementation a backend.
//
// Threads: as Device.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "engine/testing/software_device.h"

namespace engine::test {

class DeviceUnderTest {
 public:
  virtual ~DeviceUnderTest() = default;
  virtual Device& device() = 0;
  virtual DeviceStatus Set(Stream stream, int32_t* to, int count, int32_t value) = 0;
  virtual DeviceStatus Axpy(Stream stream, int32_t* y, const int32_t* x, int32_t a, int count) = 0;  // y += a * x
  // The same as a launch, which lives as long as the call of fn.
  virtual void WithAxpy(const std::function<void(const KernelLaunch&)>& fn, int32_t* y, const int32_t* x, int32_t a,
                        int count) = 0;
  virtual DeviceStatus Spin(Stream stream, std::chrono::nanoseconds time) = 0;
  // A kernel that ends when it is released.
  virtual DeviceStatus Hold(Stream stream, uint64_t* hold) = 0;
  virtual void Release(uint64_t hold) = 0;
};

// A backend as the suite's parameter. `make` gives null and says why if this machine lacks it.
struct Backend {
  std::string name;
  std::function<std::unique_ptr<DeviceUnderTest>(std::string* why)> make;
  friend void PrintTo(const Backend& b, std::ostream* out) { *out << b.name; }  // in the tests' names
};

std::unique_ptr<DeviceUnderTest> MakeSoftwareUnderTest(SoftwareDeviceOptions options);
std::unique_ptr<DeviceUnderTest> MakeCudaUnderTest(std::string* why);

}  // namespace engine::test
