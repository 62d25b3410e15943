#include "target.h"

namespace engine::perf {
std::unique_ptr<Target> MakeCudaTarget(std::string* why) {
  (void)CudaDeviceCount(why);
  if (why->empty()) *why = "the suite was built without nvcc, so it has no kernels";
  return nullptr;
}
CudaVersions VersionsOfCuda() { return {}; }
}  // namespace engine::perf
