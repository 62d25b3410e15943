// The kernels of the conformance suite on CUDA. Each function launches one and says whether that went well.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "engine/device/device.h"
#include "engine/op.h"

namespace engine::test {

void Preload(Device& device);
const void* SetKernel();  // for those who launch it by themselves
cudaError_t LaunchSet(cudaStream_t stream, int32_t* to, int count, int32_t value);
cudaError_t LaunchAxpy(cudaStream_t stream, int32_t* y, const int32_t* x, int32_t a, int count);
cudaError_t LaunchSpin(cudaStream_t stream, int64_t nanoseconds);
// The same by ctx.Launch, and as a launch for a device.
void LaunchSet(RunContext& ctx, int32_t* to, int count, int32_t value);
void WithAxpy(const std::function<void(const KernelLaunch&)>& fn, int32_t* y, const int32_t* x, int32_t a, int count);
// Ends when *flag is no longer 0, which the host writes; after 20 s in any case.
cudaError_t LaunchHold(cudaStream_t stream, const volatile int32_t* flag);

}  // namespace engine::test
