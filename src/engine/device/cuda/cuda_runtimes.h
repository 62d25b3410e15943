// The errors that other instances of the CUDA runtime in this process know, see cuda_runtimes.cc.
#pragma once

namespace engine::detail {

// Takes the calling thread's last errors from all instances but `ours`, and returns the first error; 0: there is none.
int TakeErrorOfRuntimes(const void* ours);

}  // namespace engine::detail
