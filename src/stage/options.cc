// Checks StageOptions, and makes the texts that name a stage.
#include <atomic>
#include <string>
#include <thread>

#include "area_state.h"

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
  const auto range = [&](const char* field, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return;
    refuse(field, std::to_string(value), std::to_string(least) + " … " + std::to_string(most) + " is expected");
  };
  constexpr std::chrono::milliseconds kTenYears = std::chrono::days(3650);
  const auto time = [&](const char* field, std::chrono::milliseconds value) {
    if (value.count() >= 0 && value <= kTenYears) return;
    refuse(field, Amount(value), "0 s … " + Amount(kTenYears) + " is expected");
  };
  range("capacity", static_cast<int64_t>(options.capacity), 1, 1 << 30);
  range("num_threads", options.num_threads, 1, 1024);
  range("num_clients", options.num_clients, 1, 1 << 20);
  time("timeout", options.timeout);
  time("take_timeout", options.take_timeout);
  range("ignored_budget", options.ignored_budget, 0, 1 << 30);
  if (options.max_threads == 0 && options.autotune)  // because the count asks the system
    options.max_threads = static_cast<int>(std::thread::hardware_concurrency());
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
