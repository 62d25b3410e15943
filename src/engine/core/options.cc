// Options and policies: defaults, checks, the environment.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/limits.h"
#include "core/core.h"
#include "core/options.h"

namespace engine {
namespace {

// The one place that reads the environment. False if unset.
bool ReadInt(const char* name, int64_t least, int64_t most, int64_t* value) {
  const char* text = std::getenv(name);
  if (!text) return false;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, *value);
  if (error != std::errc{} || stop != end || *value < least || *value > most)
    throw UsageError(std::string(name) + "='" + text + "' is not an integer in [" + std::to_string(least) + ", " +
                     std::to_string(most) + "]");
  return true;
}

}  // namespace

EngineOptions EngineOptions::FromEnv() {
  EngineOptions o;
  int64_t v;
  if (ReadInt("ENGINE_WORKERS", -1, 4096, &v)) o.workers = static_cast<int>(v);
  if (ReadInt("ENGINE_IO_THREADS", 1, 4096, &v)) o.io_threads = static_cast<int>(v);
  if (ReadInt("ENGINE_MAX_PENDING", 1, int64_t{1} << 40, &v)) o.max_pending = static_cast<size_t>(v);
  o.hard_max_pending = std::max(o.hard_max_pending, o.max_pending);
  if (ReadInt("ENGINE_SPIN_US", 0, 1'000'000, &v)) o.spin = std::chrono::microseconds(v);
  if (ReadInt("ENGINE_STALL_TIMEOUT_MS", 0, int64_t{1} << 40, &v)) o.stall_timeout = std::chrono::milliseconds(v);
  if (const char* policy = std::getenv("ENGINE_POLICY")) o.policy = PolicyByName(policy);
  if (ReadInt("START_NODE_STATS_STEP", 0, detail::kMostSteps, &v)) o.start_step = static_cast<int>(v);
  if (ReadInt("STOP_NODE_STATS_STEP", 0, detail::kMostSteps, &v)) o.stop_step = static_cast<int>(v);
  if (o.start_step >= o.stop_step)
    throw UsageError("START_NODE_STATS_STEP=" + std::to_string(o.start_step) + " and STOP_NODE_STATS_STEP=" +
                     std::to_string(o.stop_step) + " (defaults 100 and 200): the first must be less than the second");
  return o;
}

namespace detail {

EngineOptions CheckedOptions(EngineOptions o) {
  const auto refuse = [](const char* field, auto value, const char* allowed) {
    throw UsageError(std::string("EngineOptions::") + field + " = " + std::to_string(value) + "; allowed: " + allowed);
  };
  if (o.workers < -1 || o.workers > 4096) refuse("workers", o.workers, "-1 (one a core), 0 to 4096");
  if (o.intra_op_threads < -1 || o.intra_op_threads > 4096)
    refuse("intra_op_threads", o.intra_op_threads, "-1 to 4096");
  if (o.io_threads < 1 || o.io_threads > 4096) refuse("io_threads", o.io_threads, "1 to 4096");
  if (o.max_pending < 1) refuse("max_pending", o.max_pending, "1 and more");
  if (o.hard_max_pending < o.max_pending) refuse("hard_max_pending", o.hard_max_pending, "max_pending and more");
  if (o.max_spare_threads < 0) refuse("max_spare_threads", o.max_spare_threads, "0 and more");
  if (o.spin.count() < 0) refuse("spin", o.spin.count(), "0 us and more");
  o.spin = std::min<std::chrono::microseconds>(o.spin, std::chrono::seconds(1));
  if (o.drain_timeout.count() < 0) refuse("drain_timeout", o.drain_timeout.count(), "0 ms and more");
  if (o.stall_timeout.count() < 0) refuse("stall_timeout", o.stall_timeout.count(), "0 (off) and more ms");
  if (o.streams_per_device < 1 || o.streams_per_device > static_cast<int>(kMaxLanes))
    refuse("streams_per_device", o.streams_per_device, "1 to 32");
  if (o.devices.size() > kMaxDevices) refuse("devices.size()", o.devices.size(), "at most 8");
  for (size_t i = 0; i < o.devices.size(); ++i)
    if (!o.devices[i]) throw UsageError("EngineOptions::devices[" + std::to_string(i) + "] is null");
  if (o.start_step < 0 || o.stop_step > kMostSteps || o.start_step >= o.stop_step)
    throw UsageError("EngineOptions::start_step = " + std::to_string(o.start_step) +
                     " and stop_step = " + std::to_string(o.stop_step) +
                     "; allowed: 0 <= start_step < stop_step <= " + std::to_string(kMostSteps));
  if (o.pools.size() > 32) refuse("pools.size()", o.pools.size(), "at most 32");
  for (const PoolOptions& pool : o.pools) {
    if (pool.name.empty()) throw UsageError("EngineOptions::pools has a pool without a name");
    if (pool.threads < 1 || pool.threads > 4096)
      throw UsageError("pool '" + pool.name + "' has " + std::to_string(pool.threads) + " threads; allowed: 1 to 4096");
    int same = 0;
    for (const PoolOptions& other : o.pools) same += other.name == pool.name;
    if (same > 1) throw UsageError("EngineOptions::pools has two pools named '" + pool.name + "'");
  }
  if (o.workers == -1) o.workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return o;
}

}  // namespace detail
}  // namespace engine
