// Checks the options and reads them from the environment. Both follow the table in engine/options.h.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/engine_limits.h"
#include "base/processors.h"
#include "core/core.h"

namespace engine {
namespace {

using option::Range;

template <class T>
constexpr bool kIsNumber = std::is_same_v<T, option::Int> || std::is_same_v<T, option::Size>;
template <class Rep, class Period>
constexpr bool kIsNumber<std::chrono::duration<Rep, Period>> = true;

const char* UnitOf(option::Micros) { return " us"; }
const char* UnitOf(option::Millis) { return " ms"; }
template <class T>
const char* UnitOf(const T&) {
  return "";
}

// A size beyond int64_t counts as the largest int64_t: no range allows more.
int64_t CountOf(int value) { return value; }
int64_t CountOf(size_t value) { return static_cast<int64_t>(std::min<size_t>(value, INT64_MAX)); }
template <class Rep, class Period>
int64_t CountOf(std::chrono::duration<Rep, Period> value) {
  return value.count();
}

std::string Allowed(Range allowed, const char* unit) {
  const std::string least = std::to_string(allowed.least);
  if (allowed.most == INT64_MAX) return least + unit + " and more";
  return least + " to " + std::to_string(allowed.most) + unit;
}

template <class T>
void CheckOption(const char* name, const T& value, Range allowed, const char* help) {
  if constexpr (kIsNumber<T>) {
    const int64_t count = CountOf(value);
    if (count >= allowed.least && count <= allowed.most) return;
    const char* const unit = UnitOf(value);
    throw UsageError(std::string("EngineOptions::") + name + " = " + std::to_string(count) + unit +
                     "; allowed: " + Allowed(allowed, unit) + " (" + help + ")");
  }
}

// The one place that reads the environment.
const char* InEnvironment(const char* variable) { return *variable ? std::getenv(variable) : nullptr; }

template <class T>
void ReadOption(const char* variable, T& value, Range allowed, const char* help) {
  const char* const text = InEnvironment(variable);
  if (!text) return;
  if constexpr (std::is_same_v<T, Policy>) {
    try {
      value = PolicyByName(text);
    } catch (const UsageError& error) {
      throw UsageError(std::string(variable) + "='" + text + "': " + error.what());
    }
  } else if constexpr (kIsNumber<T>) {
    if constexpr (std::is_same_v<T, int>) allowed.most = std::min<int64_t>(allowed.most, INT32_MAX);
    int64_t count = 0;
    const char* const end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, count);
    if (error != std::errc{} || stop != end || count < allowed.least || count > allowed.most)
      throw UsageError(std::string(variable) + "='" + text + "'; allowed: an integer, " +
                       Allowed(allowed, UnitOf(value)) + " (" + help + ")");
    value = static_cast<T>(count);
  }
}

}  // namespace

int EngineOptions::DefaultWorkers() { return detail::UsableProcessors(); }

EngineOptions EngineOptions::FromEnv() { return FromEnv(EngineOptions()); }

EngineOptions EngineOptions::FromEnv(EngineOptions o) {
#define ENGINE_READ_OPTION(kind, name, initial, allowed, variable, help) \
  ReadOption(variable, o.name, option::allowed, help);
  ENGINE_OPTIONS(ENGINE_READ_OPTION)
#undef ENGINE_READ_OPTION
  o.hard_max_pending = std::max(o.hard_max_pending, o.max_pending);
  return o;
}

namespace detail {

EngineOptions CheckedOptions(EngineOptions o) {
#define ENGINE_CHECK_OPTION(kind, name, initial, allowed, variable, help) \
  CheckOption(#name, o.name, option::allowed, help);
  ENGINE_OPTIONS(ENGINE_CHECK_OPTION)
#undef ENGINE_CHECK_OPTION
  static_assert(kMaxLanes == 32 && kMaxDevices == 8 && kMostSteps == 16777215, "the table of options says these");
  if (o.hard_max_pending < o.max_pending)
    throw UsageError("EngineOptions::hard_max_pending = " + std::to_string(o.hard_max_pending) +
                     "; allowed: max_pending, which is " + std::to_string(o.max_pending) + ", and more");
  o.spin = std::min<std::chrono::microseconds>(o.spin, std::chrono::seconds(1));
  const auto most = [](const char* field, size_t size, size_t allowed) {
    if (size > allowed)
      throw UsageError(std::string("EngineOptions::") + field + ".size() = " + std::to_string(size) +
                       "; allowed: at most " + std::to_string(allowed));
  };
  most("devices", o.devices.size(), kMaxDevices);
  for (size_t i = 0; i < o.devices.size(); ++i)
    if (!o.devices[i])
      throw UsageError("EngineOptions::devices[" + std::to_string(i) + "] is null; make it with MakeDevice");
  most("pools", o.pools.size(), 32);
  for (const PoolOptions& pool : o.pools) {
    if (pool.name.empty()) throw UsageError("EngineOptions::pools has a pool without a name; give it one");
    if (pool.name == "cpu" || pool.name == "io")
      throw UsageError("EngineOptions::pools has a pool named '" + pool.name +
                       "', as one of the engine's own; give it another name");
    if (pool.threads < 1 || pool.threads > 4096)
      throw UsageError("pool '" + pool.name + "' has " + std::to_string(pool.threads) + " threads; allowed: 1 to 4096");
    int same = 0;
    for (const PoolOptions& other : o.pools) same += other.name == pool.name;
    if (same > 1)
      throw UsageError("EngineOptions::pools has two pools named '" + pool.name + "'; their names must differ");
  }
  if (o.workers == -1) o.workers = EngineOptions::DefaultWorkers();
  return o;
}

}  // namespace detail
}  // namespace engine
