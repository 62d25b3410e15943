// Options: what an engine is made with.
//
// Durations: a duration that nanoseconds cannot hold, such as milliseconds::max(), means for ever.
// Hooks (on_start, on_end, on_stall, on_unobserved): an exception of a hook is reported on stderr, and the engine goes
// on. A hook may push; after the shutdown that is refused, like any push. Stop, Start and Shutdown of the same engine
// would wait for the hook, so they are refused inside it (UsageError); if the hook destroys the engine, another thread
// shuts it down. on_start and on_end must not wait for a Var that is not ready (UsageError): the op may need their own
// worker. After the engine's destructor has returned, no hook is called, unless another thread is finishing the
// shutdown.
//
// Threads: plain values. Call FromEnv while no other thread changes the environment.
// Errors:  UsageError, by FromEnv and by the constructor of the engine, says what is allowed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"
#include "engine/policy.h"

// The options, a row each: kind, name, default, what is allowed, environment variable ("": none), what it is.
// From these rows come EngineOptions, its checks and FromEnv (core/options.cc), the config of the C API
// (c_api/config.cc), the keywords of Python's init (python/src/options.cc) and, written out by .ci/tables.py, the
// signature of that init and the table in docs/reference.md. A new option is a row at the end here and a field at the
// end of EngineConfig; without that field the C API does not compile.
// clang-format off
#define ENGINE_OPTIONS(X)                                                                                              \
  X(Int, workers, -1, Range(-1, 4096), "ENGINE_WORKERS",                                                               \
    "threads of the default pool; -1: one a core that the program may use, by affinity and quota; 0: ops run inside waits, bounded pushes and drains")          \
  X(Int, intra_op_threads, -1, Range(-1, 4096), "",                                                                    \
    "threads of ParallelFor inside an op of a pool; -1: as many as the pool has workers")                              \
  X(Int, io_threads, 4, Range(1, 4096), "ENGINE_IO_THREADS",                                                           \
    "threads of the I/O pool, which is made on first use")                                                             \
  X(Cpus, cpus, , Any(), "", "affinity of the default pool: thread i runs on cpus[i % size]; empty: anywhere")         \
  X(WorkerHook, on_start, , Any(), "", "hook that each worker of the default pool calls before its first op")          \
  X(WorkerHook, on_end, , Any(), "",                                                                                   \
    "hook that each worker of the default pool calls after its last op, also where on_start threw")                    \
  X(Pools, pools, , Any(), "", "named sets of threads beside the default pool, at most 32")                            \
  X(Devices, devices, , Any(), "",                                                                                     \
    "device i is Gpu(i), at most 8; empty: the CUDA devices of the machine, each made on first use")                   \
  X(Int, streams_per_device, 4, Range(1, 32), "",                                                                      \
    "streams that ops without a lane of their own are spread over; 1: a device runs everything in push order")         \
  X(Text, thread_name, "engine", Any(), "", "prefix of the names of threads, of which at most 9 characters are shown") \
  X(Size, max_pending, 16384, AtLeast(1), "ENGINE_MAX_PENDING",                                                        \
    "soft bound: a push from outside waits while more ops are pending and any can make progress")                      \
  X(Size, hard_max_pending, 67108864, AtLeast(1), "",                                                                  \
    "hard bound, max_pending or more: any push beyond it throws BackPressureError")                                    \
  X(Int, max_spare_threads, 64, AtLeast(0), "",                                                                        \
    "threads that stand in for workers whose op waits; a wait that would need more throws")                            \
  X(Micros, spin, 50, AtLeast(0), "ENGINE_SPIN_US",                                                                    \
    "how long an idle worker or a waiter spins before it sleeps; 0: not at all; more than a second is a second")       \
  X(Millis, drain_timeout, 30000, AtLeast(0), "",                                                                      \
    "how long a shutdown waits for completions that never come; then their ops fail with ShutdownError")               \
  X(Millis, stall_timeout, 0, AtLeast(0), "ENGINE_STALL_TIMEOUT_MS",                                                   \
    "a watchdog reports after this long without progress; 0: no watchdog")                                             \
  X(ReportHook, on_stall, , Any(), "", "hook that gets the watchdog's report; none: stderr")                           \
  X(ErrorHook, on_unobserved, , Any(), "",                                                                             \
    "hook that gets, at shutdown, each error that no wait has shown; none: stderr")                                    \
  X(PolicyKind, policy, Policy::kThreaded, Any(), "ENGINE_POLICY", "who runs what (docs/policies.md)")                 \
  X(PolicyParameters, policy_options, , Any(), "", "parameters of the policy, as set_policy takes them")               \
  X(Int, start_step, 100, Range(0, 16777215), "START_NODE_STATS_STEP",                                                 \
    "cost_model, where its own parameters do not say: first run of a plan that is measured")                           \
  X(Int, stop_step, 200, Range(0, 16777215), "STOP_NODE_STATS_STEP",                                                   \
    "cost_model, likewise: first run of a plan that is not measured any more; it is more than start_step")
// clang-format on

namespace engine {

class Device;

// A named set of threads beside the default CPU pool.
struct PoolOptions {
  std::string name;
  int threads = 1;
  std::vector<int> cpus = {};                     // as EngineOptions::cpus
  std::function<void(int worker)> on_start = {};  // as the hooks of EngineOptions
  std::function<void(int worker)> on_end = {};
};

// The kinds of options, and the range that is allowed for those that are numbers.
namespace option {
using Int = int;
using Size = size_t;
using Micros = std::chrono::microseconds;
using Millis = std::chrono::milliseconds;
using Text = std::string;
using Cpus = std::vector<int>;
using Pools = std::vector<PoolOptions>;
using Devices = std::vector<std::shared_ptr<Device>>;
using WorkerHook = std::function<void(int worker)>;
using ReportHook = std::function<void(std::string_view report)>;
using ErrorHook = std::function<void(const OpError& error)>;
using PolicyKind = Policy;
using PolicyParameters = PolicyOptions;

struct Range {
  constexpr Range(int64_t least_allowed, int64_t most_allowed) noexcept : least(least_allowed), most(most_allowed) {}
  int64_t least, most;
};
constexpr Range AtLeast(int64_t least) noexcept { return {least, std::numeric_limits<int64_t>::max()}; }
constexpr Range Any() noexcept { return AtLeast(std::numeric_limits<int64_t>::min()); }
}  // namespace option

struct EngineOptions {
#define ENGINE_OPTION_FIELD(kind, name, initial, ...) option::kind name{initial};
  ENGINE_OPTIONS(ENGINE_OPTION_FIELD)
#undef ENGINE_OPTION_FIELD

  // The defaults, replaced by what the environment variables of the table say. Raises hard_max_pending to max_pending
  // if it is lower. This is the only place of the library that reads the environment.
  static EngineOptions FromEnv();
  // The same with the defaults that a program prefers.
  static EngineOptions FromEnv(EngineOptions defaults);

  // How many workers -1 stands for, by the affinity of the calling thread and by the quotas of the process's control groups.
  static int DefaultWorkers();
};

}  // namespace engine
