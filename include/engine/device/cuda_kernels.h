// PreloadKernels: has kernels loaded before they are launched. Only for programs that have CUDA.
//
// Since CUDA 12 a module is loaded when the first of its kernels is launched, which may wait for all that runs on the device:
// for milliseconds between ops, and for ever if what runs there waits for that kernel, or for a peer that waits for this rank. A
// bulk that becomes a graph has run twice before and is safe; anything else that must not wait is preloaded at the start.
// Source: CUDA C++ Programming Guide, "Lazy Loading".
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "engine/device/device.h"

namespace engine {

// Of `__global__` functions, on `device`. The calling thread's current device is as it was. Throws DeviceError.
template <class... Kernels>
void PreloadKernels(Device& device, Kernels*... kernels) {
  const auto check = [&](const char* call, cudaError_t error) {
    if (error == cudaSuccess) return;
    const DeviceStatus last = device.TakeLastError();  // this one, and the device knows what it means
    throw DeviceError(DeviceStatus::Fail(last.failed() ? last.code() : DeviceCode::kUnknown, last.sticky(),
                                         static_cast<int>(error),
                                         std::string("PreloadKernels: ") + call + ": " + cudaGetErrorString(error)));
  };
  struct Back {
    Device& device;
    int before = 0;
    ~Back() {
      if (cudaSetDevice(before) != cudaSuccess)
        (void)device.TakeLastError();  // else it is found where it does not belong
    }
  } back{device};
  check("cudaGetDevice", cudaGetDevice(&back.before));
  if (DeviceStatus status = device.MakeCurrent(); !status.ok()) throw DeviceError(status);
  cudaFuncAttributes attributes{};
  (check("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernels))), ...);
}

}  // namespace engine
