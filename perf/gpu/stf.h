// The same programs in CUDASTF, NVIDIA's tasks on GPUs (C++ only, in CCCL): a library that gpu_suite loads where it is there. It
// is built if CUDASTF_INCLUDE names CUDASTF's headers. It is no part of the program, because CUDASTF calls the driver directly, and
// a program that is linked with the driver starts only where there is one.
//
// Threads:   one at a time.
// Ownership: CUDASTF keeps streams, graphs and memory for the next run, until the process ends.
// Errors:    the text of what went wrong, which lives until the next call; null: nothing.
#pragma once

namespace engine::perf {

struct StfProgram {
  int chains = 1;  // each of its own data; their ops are pushed by turns
  int length = 1;  // ops in each
  bool as_graph = false;
  void (*launch)(void* data, void* stream) = nullptr;  // the op's work, on a cudaStream_t
  void* data = nullptr;
};
using RunStf = const char* (*)(const StfProgram& program);
inline constexpr const char* kRunStf = "EnginePerfRunStf";  // the function's name in the library

}  // namespace engine::perf
