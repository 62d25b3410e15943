// CudaStream: the stream of an op on a CUDA device, as a cudaStream_t.
//
//   eng.Push({.name = "double", .updates = {x}, .place = engine::Gpu()},
//            [=](engine::RunContext& ctx) { Double<<<grid, block, 0, engine::CudaStream(ctx)>>>(data); });
//
// A launch that fails says so to the CUDA runtime that the binary with the launch is linked with: the shared one, which is the
// engine's too (`nvcc -cudart shared`), or, as nvcc does unless told, one of its own. A binary that includes this header where
// CUDA's are known has the engine ask its runtime after each body, so that no failure of a launch is lost.
//
// Threads: inside the body of the op. Errors: UsageError for an op that is on no device, or on a device of another
//          kind.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime_api.h>
#endif

#include "engine/op.h"

struct CUstream_st;  // what a cudaStream_t points to

namespace engine {

CUstream_st* CudaStream(const RunContext& ctx);

namespace detail {

using TakeCudaErrorFn = int (*)();  // cudaGetLastError of one instance of the runtime
// `runtime`: tells instances apart.
void AddCudaRuntime(const void* runtime, TakeCudaErrorFn take) noexcept;
void DropCudaRuntime(TakeCudaErrorFn take) noexcept;

// The engine itself links no runtime (ENGINE_LOADS_CUDART): it asks the one that it has loaded.
#if defined(CUDART_VERSION) && !defined(ENGINE_LOADS_CUDART)
struct CudaRuntime {
  CudaRuntime() noexcept { AddCudaRuntime(reinterpret_cast<const void*>(&cudaGetLastError), &Take); }
  ~CudaRuntime() { DropCudaRuntime(&Take); }
  CudaRuntime(const CudaRuntime&) = delete;
  static int Take() { return static_cast<int>(cudaGetLastError()); }
};
inline const CudaRuntime kCudaRuntime;
#endif

}  // namespace detail
}  // namespace engine
