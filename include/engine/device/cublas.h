// CublasHandle: a cuBLAS handle for the lane that an op is on, with a workspace of its own, which captures need.
// Include this header only in programs that have cuBLAS; the engine itself does not use it.
#pragma once

#include <cublas_v2.h>

#include <memory>

#include "engine/device/cuda_stream.h"
#include "engine/engine.h"

namespace engine {

// The handle is made on the lane's first use, and set to the op's stream. Valid inside the body. UsageError off CUDA
// devices; DeviceError if cuBLAS refuses. 32 MiB is what NVIDIA recommends for GPUs of compute capability 9.
inline cublasHandle_t CublasHandle(RunContext& ctx) {
  struct Kept {
    cublasHandle_t handle = nullptr;
    DeviceMemory workspace;
    CUstream_st* stream = nullptr;
    ~Kept() {
      if (handle) cublasDestroy(handle);
    }
  };
  static const char key = 0;
  const auto must = [](cublasStatus_t s, const char* call) {
    if (s != CUBLAS_STATUS_SUCCESS)
      throw DeviceError(DeviceStatus::Fail(DeviceCode::kUnknown, false, static_cast<int>(s),
                                           std::string(call) + ": " + cublasGetStatusString(s)));
  };
  auto* kept = static_cast<Kept*>(ctx.LaneLocal(&key, [](RunContext& c) -> std::shared_ptr<void> {
    auto made = std::make_shared<Kept>();
    made->workspace = c.Allocate(size_t{32} << 20);
    if (cublasStatus_t s = cublasCreate(&made->handle); s != CUBLAS_STATUS_SUCCESS)
      throw DeviceError(DeviceStatus::Fail(DeviceCode::kUnknown, false, static_cast<int>(s),
                                           std::string("cublasCreate: ") + cublasGetStatusString(s)));
    return made;
  }));
  if (kept->stream != CudaStream(ctx)) {
    kept->stream = CudaStream(ctx);
    must(cublasSetStream(kept->handle, kept->stream), "cublasSetStream");
    // After cublasSetStream, which takes the workspace away.
    must(cublasSetWorkspace(kept->handle, kept->workspace.data(), kept->workspace.bytes()), "cublasSetWorkspace");
  }
  return kept->handle;
}

}  // namespace engine
