// The suite's kernels. Each function launches one by one call of the runtime and says whether that went well.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/op.h"

namespace engine::perf {

// When a kernel ran, by the device's global timer.
struct Stamp {
  int64_t start;
  int64_t end;
};
// `stamp` may be null.
cudaError_t LaunchSpin(cudaStream_t stream, int64_t nanoseconds, Stamp* stamp);
void LaunchSpin(RunContext& ctx, int64_t nanoseconds);  // by ctx.Launch
// Ends when *flag is no longer 0, which the host writes; after 20 s in any case.
cudaError_t LaunchHold(cudaStream_t stream, const volatile int32_t* flag);
// The time that a node was made with by LaunchSpin in a capture, and other parameters for it in an executable.
cudaError_t TimeOfSpinNode(cudaGraphNode_t node, int64_t* nanoseconds);
cudaError_t SetSpinNode(cudaGraphExec_t exec, cudaGraphNode_t node, int64_t nanoseconds);

}  // namespace engine::perf
