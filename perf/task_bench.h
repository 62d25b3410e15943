// The patterns of Task Bench (Slaughter et al., SC 2020) on this engine: a grid of tasks, `kWidth` in each step. A task
// reads the fields of those tasks of the step before that its pattern names, and writes its own field. Two rows of Vars
// take turns, as in Task Bench's own programs. A body spins for a given number of rounds, some 0.3 ns each, so that its
// task does something, unlike those of workload.h.
// Threads:   the calling thread pushes.
#pragma once

#include <engine/engine.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

#include "peers/measure.h"

namespace perf {

class TaskBench {
 public:
  static constexpr std::string_view kPrefix = "task_bench_";

  explicit TaskBench(engine::Engine& eng) : engine_(eng) {
    for (auto& field : fields_)
      for (int x = 0; x < kWidth; ++x) field.push_back(eng.NewVar());
  }

  // `name`: PATTERN_ROUNDS, without the prefix.
  Answer Run(std::string_view name, std::size_t n) {
    const std::size_t at = name.rfind('_');
    const std::string_view pattern = name.substr(0, at);
    int rounds = 0;
    std::from_chars(name.data() + at + 1, name.data() + name.size(), rounds);
    const std::size_t steps = n / kWidth;
    std::vector<std::vector<engine::Var>> reads(2 * kWidth * kPeriod);
    for (std::size_t t = 0; t < kPeriod; ++t)
      for (int x = 0; x < kWidth; ++x)
        for (const int from : Dependencies(pattern, t, x)) {
          if (from < 0) return Answer::Skip("no such pattern");
          for (std::size_t parity = 0; parity < 2; ++parity)
            reads[(2 * t + parity) * kWidth + static_cast<std::size_t>(x)].push_back(
                fields_[1 - parity][static_cast<std::size_t>(from)]);
        }
    const Meter meter;
    for (std::size_t t = 0; t < steps; ++t) {
      const std::size_t parity = t % 2;
      for (std::size_t x = 0; x < kWidth; ++x)
        engine_.Push(
            {.name = "task", .reads = reads[(2 * (t % kPeriod) + parity) * kWidth + x], .writes = {fields_[parity][x]}},
            [rounds] {
              for (int i = 0; i < rounds; ++i) asm volatile("");
            });
    }
    engine_.WaitAll();
    return meter.Stop(steps * kWidth);
  }

 private:
  static constexpr int kWidth = 16;
  static constexpr std::size_t kPeriod = 12;  // after so many steps fft and spread repeat

  // The tasks of the step before that task x of step t reads; {-1} if there is no such pattern.
  static std::vector<int> Dependencies(std::string_view pattern, std::size_t t, int x) {
    const auto inside = [](std::vector<int> all) {
      std::erase_if(all, [](int at) { return at < 0 || at >= kWidth; });
      return all;
    };
    const int step = static_cast<int>(t);
    if (pattern == "trivial") return {};
    if (pattern == "no_comm") return {x};
    if (pattern == "stencil") return inside({x - 1, x, x + 1});
    if (pattern == "dom") return inside({x - 1, x});
    if (pattern == "tree") return {x / 2};
    if (pattern == "fft") return inside({x - (1 << step % 4), x, x + (1 << step % 4)});
    if (pattern == "nearest") return inside({x - 2, x - 1, x, x + 1, x + 2});
    if (pattern == "spread") {
      std::vector<int> all;
      for (int i = 0; i < 5; ++i) all.push_back((x + i * kWidth / 5 + (i > 0 ? step : 0)) % kWidth);
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      return all;
    }
    if (pattern == "all_to_all") {
      std::vector<int> all;
      for (int i = 0; i < kWidth; ++i) all.push_back(i);
      return all;
    }
    return {-1};
  }

  engine::Engine& engine_;
  std::array<std::vector<engine::Var>, 2> fields_;
};

}  // namespace perf
