// CudnnHandle: a cuDNN handle of the lane that an op is on. Workspaces go to each call: take them from ctx.Allocate, or
// keep one with the op, if its bulk is to be captured.
// Only for programs that have cuDNN: the engine itself does not.
#pragma once

#include <cudnn.h>

#include <memory>

#include "engine/device/cuda_stream.h"
#include "engine/engine.h"

namespace engine {

// Made on the lane's first use; its stream is the op's. Valid in the body. Throws UsageError off CUDA devices, DeviceError
// if cuDNN refuses.
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
