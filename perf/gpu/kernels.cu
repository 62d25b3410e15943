#include "kernels.h"

#include "engine/device/launch.h"

namespace engine::perf {
namespace {

__device__ int64_t Now() {
  int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void Spin(int64_t nanoseconds, Stamp* stamp) {
  if (nanoseconds == 0 && !stamp) return;
  const int64_t start = Now();
  int64_t now = start;
  while (now < start + nanoseconds) now = Now();
  if (stamp) *stamp = {start, now};
}

__global__ void Hold(const volatile int32_t* flag) {
  const int64_t end = Now() + 20'000'000'000;
  while (*flag == 0 && Now() < end) {
  }
}

}  // namespace

cudaError_t LaunchSpin(cudaStream_t stream, int64_t nanoseconds, Stamp* stamp) {
  void* arguments[] = {&nanoseconds, &stamp};
  return cudaLaunchKernel(reinterpret_cast<const void*>(Spin), dim3(1), dim3(1), arguments, 0, stream);
}
void LaunchSpin(RunContext& ctx, int64_t nanoseconds) { ctx.Launch(Spin, 1, 1, nanoseconds, nullptr); }
cudaError_t LaunchHold(cudaStream_t stream, const volatile int32_t* flag) {
  void* arguments[] = {&flag};
  return cudaLaunchKernel(reinterpret_cast<const void*>(Hold), dim3(1), dim3(1), arguments, 0, stream);
}
cudaError_t TimeOfSpinNode(cudaGraphNode_t node, int64_t* nanoseconds) {
  cudaKernelNodeParams params{};
  const cudaError_t error = cudaGraphKernelNodeGetParams(node, &params);
  if (error == cudaSuccess) *nanoseconds = *static_cast<const int64_t*>(params.kernelParams[0]);
  return error;
}
cudaError_t SetSpinNode(cudaGraphExec_t exec, cudaGraphNode_t node, int64_t nanoseconds) {
  Stamp* stamp = nullptr;
  void* arguments[] = {&nanoseconds, &stamp};
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(Spin);
  params.gridDim = dim3(1);
  params.blockDim = dim3(1);
  params.kernelParams = arguments;
  return cudaGraphExecKernelNodeSetParams(exec, node, &params);
}

}  // namespace engine::perf
