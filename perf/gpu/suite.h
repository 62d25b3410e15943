// Suite: cases measured beside the same work written by hand, in turns, in one process. Every figure of every round is
// printed as a line of JSON; suite.py judges.
//
// A case returns figures of one round, in the order of its metrics, less being better unless the limit is kAtLeast.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "by_hand.h"
#include "target.h"

namespace engine::perf {

enum class LimitKind {
  kNone,        // told only
  kRatio,       // ours / peer at most
  kDifference,  // ours - peer at most
  kValue,       // ours at most
  kAtLeast,     // ours / peer at least; more is better
};
struct Limit {
  LimitKind kind = LimitKind::kNone;
  double value = 0;
};
struct Metric {
  std::string name;
  std::string unit;
  Limit limit;
};
using Figures = std::vector<double>;
struct Case {
  int row;
  std::string name;
  std::string peer_name;  // empty: none
  std::vector<Metric> metrics;
  std::function<Figures()> ours;
  std::function<Figures()> peer;
};

struct Suite {
  Target& target;
  int rounds;
  bool quick;
  std::vector<int> only;  // rows; empty: all

  bool Wants(int row) const { return only.empty() || std::find(only.begin(), only.end(), row) != only.end(); }
  int Count(int full) const { return quick ? std::max(1, full / 5) : full; }
  void Calibrate();
  void Measure(const Case& measured);
  void Absent(int row, const std::string& why);
  void Timeline(int row, const std::string& name, const std::function<void()>& run);
};

// The rows of the table.
void SubmitRows(Suite& suite);      // 1 to 3
void OverlapRows(Suite& suite);     // 6, 7, 15
void HostRows(Suite& suite);        // 8, 9
void GraphRows(Suite& suite);       // 10, 14
void MemoryRows(Suite& suite);      // 11
void TrainingRows(Suite& suite);    // 12
void CollectiveRows(Suite& suite);  // 13
void SmartRows(Suite& suite);       // 16, 17
void TuningRows(Suite& suite);      // 18, 19, 21
void StfRows(Suite& suite);         // 22

std::string Json(const std::string& text);  // quoted
double Median(std::vector<double> values);

constexpr Limit Ratio(double most) { return {LimitKind::kRatio, most}; }

using SteadyClock = std::chrono::steady_clock;
// Nanoseconds that `run` takes, by `n`.
template <class F>
double NanosOf(F&& run, double n = 1) {
  const auto begin = SteadyClock::now();
  run();
  return std::chrono::duration<double, std::nano>(SteadyClock::now() - begin).count() / n;
}
inline void SpinFor(Nanos time) {
  for (const auto end = SteadyClock::now() + time; SteadyClock::now() < end;) {
  }
}

}  // namespace engine::perf
