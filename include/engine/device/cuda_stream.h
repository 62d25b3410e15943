// CudaStream: the stream of a CUDA op, as CUDA knows it.
//
//   eng.Push({.name = "double", .updates = {x}, .place = engine::Gpu()},
//            [=](engine::RunContext& ctx) { Double<<<grid, block, 0, engine::CudaStream(ctx)>>>(data); });
//
// Threads: inside the body of the op. Errors: UsageError outside a device op, and on a device of another kind.
#pragma once

#include "engine/op.h"

struct CUstream_st;  // cudaStream_t points to it

namespace engine {

CUstream_st* CudaStream(const RunContext& ctx);

}  // namespace engine
