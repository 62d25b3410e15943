#include "options.h"

#include <malloc.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace engine_mxnet {
namespace {

constexpr int kMappedFrom = 32 << 20;  // bytes: the most that glibc allows; larger blocks go back to the system
constexpr int kMostKept = 256 << 20;   // bytes at the top of a heap
// ./run perf mxnet --only allows: how much faster two workers may run the net of 16 branches, forward, with so many spaces for both:
// 4: 1.05 times, 16: 1.19, 32: 1.46, 64: 2.0. Each space takes what the largest op that had it needs.
constexpr int kScratchAWorker = 16;
constexpr int kMostScratch = 4;  // times kScratchAWorker
constexpr const char* kDefaultType = "ThreadedEnginePerDevice";
// A call of an NDArray from Python takes 30 to 50 us. A worker that looks for work for less than that sleeps between any two of
// them, and each push wakes it: ./run perf mxnet --only nd_in_place is 0.92 then, and 1.2 with this.
constexpr std::chrono::microseconds kSpin{60};

int ThreadsFromEnv(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return otherwise;
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [parsed, error] = std::from_chars(text, end, value);
  if (error != std::errc() || parsed != end || value < 1 || value > 4096)
    throw ::engine::UsageError(std::string(variable) + " is '" + text + "'; a number from 1 to 4096 is allowed");
  return value;
}

bool g_inline = false;  // written while MXNet is not loaded yet

}  // namespace

std::string DevicePool(int device_id) { return "mxnet_cpu" + std::to_string(device_id); }

void AskForScratch(int workers) {
  setenv("MXNET_CPU_TEMP_COPY", std::to_string(kScratchAWorker * std::min(workers, kMostScratch)).c_str(), 0);
}

void KeepFreedMemory() {
  for (const char* variable : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"})
    if (std::getenv(variable)) return;
  mallopt(M_MMAP_THRESHOLD, kMappedFrom);
  mallopt(M_TRIM_THRESHOLD, kMostKept);
}

::engine::Policy PolicyOfEngineType() {
  const char* text = std::getenv("MXNET_ENGINE_TYPE");
  const std::string_view type = text ? text : kDefaultType;
  if (type == "inline") {
    g_inline = true;
    setenv("MXNET_ENGINE_TYPE", kDefaultType, 1);
  } else if (type == "NaiveEngine") {
    return ::engine::Policy::kNaive;
  } else if (type != kDefaultType && type != "ThreadedEngine") {
    throw ::engine::UsageError("MXNET_ENGINE_TYPE is '" + std::string(type) +
                               "'; allowed are ThreadedEnginePerDevice, ThreadedEngine, NaiveEngine and, with this "
                               "engine, inline");
  }
  return g_inline ? ::engine::Policy::kInline : ::engine::Policy::kThreaded;
}

::engine::EngineOptions OptionsFromEnv() {
  ::engine::EngineOptions defaults;
  defaults.spin = kSpin;
  ::engine::EngineOptions options = ::engine::EngineOptions::FromEnv(std::move(defaults));
  options.workers = ThreadsFromEnv("MXNET_CPU_WORKER_NTHREADS", 1);
  if (const ::engine::Policy policy = PolicyOfEngineType(); policy != ::engine::Policy::kThreaded)
    options.policy = policy;
  return options;
}

void AddPools(::engine::EngineOptions& options) {
  options.pools.push_back({.name = kPriorityPool, .threads = ThreadsFromEnv("MXNET_CPU_PRIORITY_NTHREADS", 4)});
  for (int i = 1; i <= kDevicePools; ++i)
    options.pools.push_back({.name = DevicePool(i), .threads = std::max(options.workers, 1)});
}

}  // namespace engine_mxnet
