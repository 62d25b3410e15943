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
// A call of an NDArray from Python takes 30 to 110 us, by machine, and an op behind which nothing else is ready up to a millisecond. A
// worker that looks for work for less than that sleeps each time, and is woken. ./run perf mxnet --only nd_in_place is 0.92 to 0.95 with
// 60 us, and 1.1 to 1.2 with 150; --only wide_static with two workers takes 5 to 10 % longer with 150 us than with this (ENGINE_SPIN_US=150).
constexpr std::chrono::microseconds kSpin{1000};

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

constexpr const char* kEngineType = "MXNET_ENGINE_TYPE";
constexpr std::string_view kInline = "inline";

bool PrivateScratchFromEnv() {
  const char* text = std::getenv("ENGINE_MXNET_SCRATCH");
  const std::string_view scratch = text && *text ? text : "private";
  if (scratch != "private" && scratch != "shared")
    throw ::engine::UsageError("ENGINE_MXNET_SCRATCH is '" + std::string(scratch) +
                               "'; private and shared are allowed");
  return scratch == "private";
}

// Both: written before MXNet has its engine.
bool g_private_scratch = true;
bool g_inline_hidden = false;

}  // namespace

std::string DevicePool(int device_id) { return "mxnet_cpu" + std::to_string(device_id); }

void CheckEnv() {
  ::engine::EngineOptions options = OptionsFromEnv();
  AddPools(options);
  PrivateScratchFromEnv();
}

bool ScratchIsPrivate() noexcept { return g_private_scratch; }

void ChooseScratch(int workers) {
  g_private_scratch = PrivateScratchFromEnv();
  if (!g_private_scratch && workers > 1)
    setenv("MXNET_CPU_TEMP_COPY", std::to_string(kScratchAWorker * std::min(workers, kMostScratch)).c_str(), 0);
}

bool ProfilerIsOn() noexcept {
  const char* text = std::getenv("MXNET_PROFILER_AUTOSTART");
  return text && std::atoi(text) != 0;
}

void KeepFreedMemory() {
  for (const char* variable : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"})
    if (std::getenv(variable)) return;
  mallopt(M_MMAP_THRESHOLD, kMappedFrom);
  mallopt(M_TRIM_THRESHOLD, kMostKept);
}

::engine::Policy PolicyOfEngineType() {
  const char* text = std::getenv(kEngineType);
  const std::string_view type = text ? text : kDefaultType;
  if (type == kInline || g_inline_hidden) return ::engine::Policy::kInline;
  if (type == "NaiveEngine") return ::engine::Policy::kNaive;
  if (type != kDefaultType && type != "ThreadedEngine")
    throw ::engine::UsageError(std::string(kEngineType) + " is '" + std::string(type) +
                               "'; allowed are ThreadedEnginePerDevice, ThreadedEngine, NaiveEngine and, with this "
                               "engine, inline");
  return ::engine::Policy::kThreaded;
}

HiddenEngineType::HiddenEngineType() : hidden_(PolicyOfEngineType() == ::engine::Policy::kInline) {
  if (!hidden_) return;
  unsetenv(kEngineType);
  g_inline_hidden = true;
}

HiddenEngineType::~HiddenEngineType() {
  if (!hidden_) return;
  setenv(kEngineType, kInline.data(), 1);
  g_inline_hidden = false;
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
