// The cuda backend of a build without CUDA's headers.
#include "engine/device/device.h"

namespace engine {
namespace {
constexpr const char* kWhy =
    "this build has no CUDA backend: it was configured without CUDA's headers "
    "(install the toolkit and configure with -DENGINE_CUDA=ON, which says what is missing)";
}  // namespace

int CudaDeviceCount(std::string* why) {
  if (why) *why = kWhy;
  return 0;
}

std::shared_ptr<Device> MakeCudaDevice(int ordinal, bool) {
  throw DeviceError(
      DeviceStatus::Fail(DeviceCode::kNoDevice, false, 0, "cuda device " + std::to_string(ordinal) + ": " + kWhy));
}

}  // namespace engine
