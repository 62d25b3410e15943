// Checks StageOptions as their table says (engine/stage_options.h), and makes the texts that name a stage.
#include <atomic>
#include <limits>
#include <string>
#include <utility>

#include "area_state.h"
#include "base/processors.h"

namespace engine::detail {

std::string StageLabel(const StageOptions& options) { return "stage '" + options.name + "': "; }

std::string Amount(std::chrono::milliseconds time) {
  if (time.count() % 1000 == 0) return std::to_string(time.count() / 1000) + " s";
  return std::to_string(time.count()) + " ms";
}

std::string Amount(uint64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

namespace {

struct SteadyClock final : StageClock {
  Time Now() override { return std::chrono::steady_clock::now(); }
  void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time until) override {
    until == Time::max() ? changed.wait(lock) : static_cast<void>(changed.wait_until(lock, until));
  }
};

template <class T>
std::string Expected(option::Range allowed) {
  const std::string least = std::to_string(allowed.least);
  if (std::cmp_greater_equal(allowed.most, std::numeric_limits<T>::max())) return "at least " + least + " is expected";
  return least + " … " + std::to_string(allowed.most) + " is expected";
}

}  // namespace

StageOptions Checked(StageOptions options) {
  static SteadyClock steady;
  if (!options.clock) options.clock = &steady;
  // relaxed: only makes the names differ.
  static std::atomic<uint64_t> made{0};
  if (options.name.empty()) options.name = "stage-" + std::to_string(1 + made.fetch_add(1, std::memory_order_relaxed));
  const std::string label = StageLabel(options);
  const auto refuse = [&](const char* field, const std::string& value, const std::string& allowed) {
    throw UsageError(label + field + " is " + value + "; " + allowed);
  };
  const auto check = [&]<class T>(const char* field, const T& value, option::Range allowed) {
    if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
      if (value.count() < allowed.least || value.count() > allowed.most)
        refuse(field, Amount(value), Amount(T(allowed.least)) + " … " + Amount(T(allowed.most)) + " is expected");
    } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      if (std::cmp_less(value, allowed.least) || std::cmp_greater(value, allowed.most))
        refuse(field, std::to_string(value), Expected<T>(allowed));
    }
  };
#define ENGINE_CHECK_STAGE_OPTION(kind, name, initial, allowed, ...) check(#name, options.name, stage_option::allowed);
  ENGINE_STAGE_OPTIONS(ENGINE_CHECK_STAGE_OPTION)
#undef ENGINE_CHECK_STAGE_OPTION
  if (options.max_threads == 0 && options.autotune)  // because the count asks the system
    options.max_threads = detail::UsableProcessors();
  options.max_threads = std::max(options.max_threads, options.num_threads);
  options.max_capacity = std::max(options.max_capacity, options.capacity);
  const int lanes = StageLanes(options.engine, options.device);
  if (options.stage_subgraph_stream_id < 0 || options.stage_subgraph_stream_id >= lanes) {
    const std::string most = std::to_string(lanes - 1);
    refuse("stage_subgraph_stream_id", std::to_string(options.stage_subgraph_stream_id),
           lanes == 1 ? "without a device only 0, the main lane, is there"
                      : "0 … " + most + " is expected (multi_stream_num - 1)");
  }
  return options;
}

}  // namespace engine::detail
