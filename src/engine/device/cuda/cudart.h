// The functions of the CUDA runtime that the backend calls. The runtime is not linked: LoadCudart looks for it when somebody first
// asks for a device. So one build runs with CUDA, with the runtime of a PyTorch that the process has loaded, and without any.
//
// A source that says `using namespace cudart` behind its includes calls what was found: a variable of a nearer namespace hides
// the global function of the same name. The linker refuses a function that is missing in the list.
//
// Threads:   any. The functions are there for all who have seen LoadCudart succeed, as whoever holds a device has.
// Ownership: the library stays loaded.
// Errors:    LoadCudart says what was looked for, where, and what to install. A later call tries again: the process may have
//            loaded CUDA in between.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <string>

// The form that tells of edges' data. CUDA 12 has it under a name of its own.
#if CUDART_VERSION >= 13000
#define ENGINE_CUDART_CAPTURE_INFO cudaStreamGetCaptureInfo
#else
#define ENGINE_CUDART_CAPTURE_INFO cudaStreamGetCaptureInfo_v3
#endif
#if CUDART_VERSION >= 12050
#define ENGINE_CUDART_ENTRY_POINT cudaGetDriverEntryPointByVersion
#else
#define ENGINE_CUDART_ENTRY_POINT cudaGetDriverEntryPoint
#endif

// clang-format off
#define ENGINE_CUDART_FUNCTIONS(F)                                                                                     \
  F(cudaDeviceCanAccessPeer) F(cudaDeviceGetStreamPriorityRange) F(cudaDriverGetVersion) F(cudaEventCreateWithFlags)   \
  F(cudaEventDestroy) F(cudaEventElapsedTime) F(cudaEventQuery) F(cudaEventRecord) F(cudaEventSynchronize)             \
  F(cudaFreeAsync) F(cudaFreeHost) F(cudaGetDevice) F(cudaGetDeviceCount) F(cudaGetDeviceProperties)                   \
  F(ENGINE_CUDART_ENTRY_POINT) F(cudaGraphExecKernelNodeSetParams)                                                     \
  F(cudaGetErrorName) F(cudaGetErrorString) F(cudaGetLastError) F(cudaGraphDestroy) F(cudaGraphExecDestroy)            \
  F(cudaGraphExecMemcpyNodeSetParams) F(cudaGraphExecMemsetNodeSetParams) F(cudaGraphExecUpdate)                       \
  F(cudaGraphInstantiate) F(cudaGraphLaunch) F(cudaGraphMemcpyNodeGetParams) F(cudaGraphMemsetNodeGetParams)           \
  F(cudaGraphNodeGetType) F(cudaHostAlloc) F(cudaLaunchKernel) F(cudaMallocFromPoolAsync) F(cudaGraphGetNodes)         \
  F(cudaMemPoolCreate) F(cudaMemPoolDestroy) F(cudaMemPoolSetAccess) F(cudaMemPoolSetAttribute) F(cudaMemPoolTrimTo)   \
  F(cudaMemcpyAsync) F(cudaPeekAtLastError) F(cudaPointerGetAttributes) F(cudaSetDevice) F(cudaStreamBeginCapture)     \
  F(cudaStreamCreateWithPriority) F(cudaStreamDestroy) F(cudaStreamEndCapture) F(ENGINE_CUDART_CAPTURE_INFO)           \
  F(cudaStreamIsCapturing) F(cudaStreamQuery) F(cudaStreamSynchronize) F(cudaStreamWaitEvent)                          \
  F(cudaThreadExchangeStreamCaptureMode)
// clang-format on

namespace engine::detail {

// The file name of the runtime that this build was compiled for.
inline const std::string kCudartName = "libcudart.so." + std::to_string(CUDART_VERSION / 1000);

// Empty: the functions are there. `library`: for tests, which look for others.
std::string LoadCudart(const std::string& library = kCudartName);

namespace cudart {

// A function that is called like any other. No lock: threads that load at the same time find the same address, and a fork in
// the middle leaves nothing locked.
template <class Function>
class Found {
 public:
  // NOLINTNEXTLINE: a call converts.
  operator Function*() const noexcept { return at_.load(std::memory_order_relaxed); }  // relaxed: behind LoadCudart
  void Set(void* at) noexcept { at_.store(reinterpret_cast<Function*>(at), std::memory_order_relaxed); }
  // Tells instances of the runtime apart.
  const void* address() const noexcept { return reinterpret_cast<const void*>(static_cast<Function*>(*this)); }

 private:
  std::atomic<Function*> at_{nullptr};
};

#define ENGINE_CUDART_DECLARE(name) extern constinit Found<decltype(::name)> name;
ENGINE_CUDART_FUNCTIONS(ENGINE_CUDART_DECLARE)
#undef ENGINE_CUDART_DECLARE

}  // namespace cudart
}  // namespace engine::detail
