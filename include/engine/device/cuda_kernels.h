// PreloadKernels: loads kernels before they are launched. Include this header only in programs that have CUDA.
//
// Since CUDA 12 the first launch of a module's kernels loads the module, and that may wait for all that runs on the
// device: for milliseconds between ops, and for ever if the running work waits for that very kernel, or for a peer that
// waits for this rank. A bulk that becomes a device graph has run twice before, so its kernels are loaded. Preload all
// other kernels that must not wait, at the start. Source: CUDA C++ Programming Guide, "Lazy Loading".
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <thread>
#include <vector>

#include "engine/device/device.h"

namespace engine {

// Loads these `__global__` functions on `device`, on a thread of its own: the calling thread's current device stays the
// same. Throws DeviceError.
template <class... Kernels>
void PreloadKernels(Device& device, Kernels*... kernels) {
  std::vector<DeviceStatus> failures;
  std::thread([&] {
    if (DeviceStatus bad = device.MakeCurrent(); !bad.ok()) return failures.push_back(bad);
    const auto load = [&](const void* kernel) {
      cudaFuncAttributes attributes{};
      const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
      if (error == cudaSuccess) return;
      const DeviceStatus last = device.TakeLastError();  // the same error, with the device's meaning
      failures.push_back(
          DeviceStatus::Fail(last.failed() ? last.code() : DeviceCode::kUnknown, last.sticky(), static_cast<int>(error),
                             std::string("PreloadKernels: cudaFuncGetAttributes: ") + cudaGetErrorString(error)));
    };
    (load(reinterpret_cast<const void*>(kernels)), ...);
  }).join();
  if (!failures.empty()) throw DeviceError(failures[0]);
}

}  // namespace engine
