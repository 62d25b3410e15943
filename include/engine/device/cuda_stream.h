// CudaStream: the stream of an op on a CUDA device, as a cudaStream_t.
//
//   eng.Push({.name = "double", .updates = {x}, .place = engine::Gpu()},
//            [=](engine::RunContext& ctx) { Double<<<grid, block, 0, engine::CudaStream(ctx)>>>(data); });
//
// Threads: inside the body of the op. Errors: UsageError for an op that is on no device, or on a device of another
//          kind.
#pragma once

#include "engine/op.h"

struct CUstream_st;  // what a cudaStream_t points to

namespace engine {

CUstream_st* CudaStream(const RunContext& ctx);

}  // namespace engine
