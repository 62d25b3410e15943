#include "kernels.h"

#include "engine/device/cuda_kernels.h"
#include "engine/device/launch.h"

namespace engine::test {
namespace {

constexpr int kThreads = 256;
int Blocks(int count) { return (count + kThreads - 1) / kThreads; }

__device__ int64_t Now() {
  int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void Set(int32_t* to, int count, int32_t value) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) to[i] = value;
}
__global__ void Axpy(int32_t* y, const int32_t* x, int32_t a, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) y[i] += a * x[i];
}
__global__ void Spin(int64_t nanoseconds) {
  const int64_t end = Now() + nanoseconds;
  while (Now() < end) {
  }
}
__global__ void Hold(const volatile int32_t* flag) {
  const int64_t end = Now() + 20'000'000'000;
  while (*flag == 0 && Now() < end) __nanosleep(1000);
}

}  // namespace

void Preload(Device& device) { PreloadKernels(device, Set, Axpy, Spin, Hold); }
const void* SetKernel() { return reinterpret_cast<const void*>(&Set); }
cudaError_t LaunchSet(cudaStream_t stream, int32_t* to, int count, int32_t value) {
  Set<<<Blocks(count), kThreads, 0, stream>>>(to, count, value);
  return cudaGetLastError();
}
cudaError_t LaunchAxpy(cudaStream_t stream, int32_t* y, const int32_t* x, int32_t a, int count) {
  Axpy<<<Blocks(count), kThreads, 0, stream>>>(y, x, a, count);
  return cudaGetLastError();
}
void LaunchSet(RunContext& ctx, int32_t* to, int count, int32_t value) {
  ctx.Launch(Set, Blocks(count), kThreads, to, count, value);
}
void WithAxpy(const std::function<void(const KernelLaunch&)>& fn, int32_t* y, const int32_t* x, int32_t a, int count) {
  detail::WithLaunch(fn, Axpy, Blocks(count), kThreads, 0, y, x, a, count);
}
cudaError_t LaunchSpin(cudaStream_t stream, int64_t nanoseconds) {
  Spin<<<1, 1, 0, stream>>>(nanoseconds);
  return cudaGetLastError();
}
cudaError_t LaunchHold(cudaStream_t stream, const volatile int32_t* flag) {
  Hold<<<1, 1, 0, stream>>>(flag);
  return cudaGetLastError();
}

}  // namespace engine::test
