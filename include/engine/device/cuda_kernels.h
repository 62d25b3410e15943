// PreloadKernels: loads kernels before they are launched. Include this header only in programs that have CUDA.
//
// Since CUDA 12 the first launch of a module's kernels loads the module, and that may wait for all that runs on the
// device: for milliseconds between ops, and for ever if the running work waits for that very kernel, or for a peer that
// waits for this rank. A bulk that becomes a device graph has run twice before, so its kernels are loaded. Preload all
// other kernels that must not wait, at the start. Source: CUDA C++ Programming Guide, "Lazy Loading".
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "engine/device/device.h"

namespace engine {

// Loads these `__global__` functions on `device`. The calling thread's current device stays the same. Throws
// DeviceError.
template <class... Kernels>
void PreloadKernels(Device& device, Kernels*... kernels) {
  const auto check = [&](const char* call, cudaError_t error) {
    if (error == cudaSuccess) return;
    const DeviceStatus last = device.TakeLastError();  // the same error, with the meaning that the device gives it
    throw DeviceError(DeviceStatus::Fail(last.failed() ? last.code() : DeviceCode::kUnknown, last.sticky(),
                                         static_cast<int>(error),
                                         std::string("PreloadKernels: ") + call + ": " + cudaGetErrorString(error)));
  };
  struct Back {
    Device& device;
    int before = 0;
    ~Back() {
      if (cudaSetDevice(before) != cudaSuccess)
        (void)device.TakeLastError();  // otherwise a later, unrelated call would find this error
    }
  } back{device};
  check("cudaGetDevice", cudaGetDevice(&back.before));
  if (DeviceStatus status = device.MakeCurrent(); !status.ok()) throw DeviceError(status);
  cudaFuncAttributes attributes{};
  (check("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernels))), ...);
}

}  // namespace engine
