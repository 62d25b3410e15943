// CudnnHandle: a cuDNN handle for the lane that an op is on. Each cuDNN call takes a workspace: take it from
// ctx.Allocate, or keep it with the op if the op's bulk is to become a device graph. Include this header only in
// programs that have cuDNN; the engine itself does not use it.
#pragma once

#include <cudnn.h>

#include <memory>

#include "engine/device/cuda_stream.h"
#include "engine/engine.h"

namespace engine {

// The handle is made on the lane's first use, and set to the op's stream. Valid inside the body. UsageError off CUDA
// devices; DeviceError if cuDNN refuses.
inline cudnnHandle_t CudnnHandle(RunContext& ctx) {
  struct Kept {
    cudnnHandle_t handle = nullptr;
    CUstream_st* stream = nullptr;
    ~Kept() {
      if (handle) cudnnDestroy(handle);
    }
  };
  static const char key = 0;
  const auto fail = [](cudnnStatus_t s, const char* call) -> DeviceError {
    return DeviceError(DeviceStatus::Fail(DeviceCode::kUnknown, false, static_cast<int>(s),
                                          std::string(call) + ": " + cudnnGetErrorString(s)));
  };
  auto* kept = static_cast<Kept*>(ctx.LaneLocal(&key, [](RunContext&) -> std::shared_ptr<void> {
    auto made = std::make_shared<Kept>();
    if (cudnnStatus_t s = cudnnCreate(&made->handle); s != CUDNN_STATUS_SUCCESS)
      throw DeviceError(DeviceStatus::Fail(DeviceCode::kUnknown, false, static_cast<int>(s),
                                           std::string("cudnnCreate: ") + cudnnGetErrorString(s)));
    return made;
  }));
  if (kept->stream != CudaStream(ctx)) {
    kept->stream = CudaStream(ctx);
    if (cudnnStatus_t s = cudnnSetStream(kept->handle, kept->stream); s != CUDNN_STATUS_SUCCESS)
      throw fail(s, "cudnnSetStream");
  }
  return kept->handle;
}

}  // namespace engine
