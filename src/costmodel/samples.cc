#include "samples.h"

#include <algorithm>
#include <numeric>

namespace engine::costmodel {

Estimate EstimateOf(std::vector<double>& samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double q) {
    return samples[static_cast<size_t>(q * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  const size_t half = samples.size() / 2;
  const double median = samples.size() % 2 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
  return {samples.size(), median, at(0.75) - at(0.25)};
}

void Samples::Add(double nanos) {
  ++seen_;
  if (kept_.size() < kKept) return kept_.push_back(nanos);
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  if (const uint64_t at = (random_ >> 33) % seen_; at < kKept) kept_[at] = nanos;
}

Estimate Samples::Tell() const {
  std::vector<double> sorted = kept_;
  Estimate told = EstimateOf(sorted);
  told.samples = seen_;
  return told;
}

double DispatchOf(const Dag& dag, std::span<const NodeTime> times, std::span<const uint32_t> task, double clock) {
  std::vector<int64_t> ready(times.size(), INT64_MIN);
  for (uint32_t n = 0; n < dag.size(); ++n)
    for (const uint32_t s : dag.After(n)) ready[s] = std::max(ready[s], times[n].end);
  std::vector<uint32_t> begun;
  for (uint32_t n = 0; n < dag.size(); ++n)
    if (times[n].begin != 0 && times[n].worker >= 0) begun.push_back(n);
  std::sort(begun.begin(), begun.end(), [&](uint32_t a, uint32_t b) {
    return times[a].worker != times[b].worker ? times[a].worker < times[b].worker : times[a].begin < times[b].begin;
  });
  std::vector<double> waits;
  for (size_t i = 1; i < begun.size(); ++i) {
    const NodeTime &before = times[begun[i - 1]], &now = times[begun[i]];
    if (before.worker != now.worker || task[begun[i - 1]] == task[begun[i]]) continue;
    const auto wait = static_cast<double>(now.begin - std::max(before.end, ready[begun[i]]));
    if (wait > 0) waits.push_back(std::max(0.0, wait - clock));
  }
  return EstimateOf(waits).nanos;
}

}  // namespace engine::costmodel
