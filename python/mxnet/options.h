// Options: MXNet's environment variables, as options of the engine.
//
//   MXNET_CPU_WORKER_NTHREADS     threads of each CPU device (1)
//   MXNET_CPU_PRIORITY_NTHREADS   threads for prioritized ops (4)
//   MXNET_ENGINE_TYPE             ThreadedEnginePerDevice, ThreadedEngine, NaiveEngine; with ours also inline
//
//   MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES
//                                 one that is set: malloc gives memory back to the system as it says
//   ENGINE_MXNET_SCRATCH          private: scratch memory is the running thread's (scratch.h); shared: as in MXNet
//   MXNET_CPU_TEMP_COPY           shared spaces of scratch memory (MXNet's default: 4; with ours, and several workers, more)
//   MXNET_PROFILER_AUTOSTART      MXNet's profiler runs from the start
//
// Threads: called while no other thread changes the environment.
// Errors:  UsageError says which variable, what it is and what is allowed.
#pragma once

#include <string>

#include "engine/options.h"

namespace engine_mxnet {

// Devices cpu(1), cpu(2) ... that have threads of their own; those beyond share them.
inline constexpr int kDevicePools = 3;
inline constexpr const char* kPriorityPool = "mxnet_prio";
std::string DevicePool(int device_id);  // of cpu(1) ... cpu(kDevicePools)

// What MXNet's variables ask for, and the engine's own where MXNet has none; without the pools.
::engine::EngineOptions OptionsFromEnv();
// The pools of prioritized ops and of further devices, each of those with as many threads as there are workers.
void AddPools(::engine::EngineOptions& options);

// Throws if one of the variables has a value that is not allowed.
void CheckEnv();

// Whether scratch memory is the running thread's.
bool ScratchIsPrivate() noexcept;
// Looks how it is to be. If it is to be shared, it also gives MXNet more spaces, unless the program's environment says how many. For
// engines of several workers: each op that needs such memory, as products of matrices do, changes one of a few spaces, which MXNet
// hands out in turn; with its 4, an op waits for the fourth before it, in whatever branch that is.
void ChooseScratch(int workers);

// Whether MXNet's profiler runs from the start.
bool ProfilerIsOn() noexcept;

// Keeps the memory that arrays give back for the next ones, unless the program's environment says what malloc does. MXNet frees and
// allocates a step's arrays anew in each step; if the top of a worker's heap is free in between, the C library hands it to the
// system, and the next step has a page fault for each 4 KiB (a step of an LSTM took 1.4 times as long). This changes malloc for
// the whole process.
void KeepFreedMemory();

// The policy that MXNET_ENGINE_TYPE stands for.
::engine::Policy PolicyOfEngineType();
// While it lives, the environment does not say `inline`, of which MXNet knows nothing.
class HiddenEngineType {
 public:
  HiddenEngineType();
  ~HiddenEngineType();

 private:
  const bool hidden_;
};

}  // namespace engine_mxnet
