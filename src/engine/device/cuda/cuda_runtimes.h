// What other instances of the CUDA runtime in this process know: see cuda_runtimes.cc.
#pragma once

namespace engine::detail {

// The last errors of the calling thread in all instances but `ours`, taken: the first that is none of cudaSuccess, else 0.
int TakeErrorOfRuntimes(const void* ours);

}  // namespace engine::detail
