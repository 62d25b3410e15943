#include "widths.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

namespace engine::costmodel {
namespace {

struct Running {
  uint32_t node;
  uint32_t most;  // threads
  uint32_t here;  // threads at work
  double left;    // nanoseconds of one thread
};

}  // namespace

double SimulateWide(const Dag& dag, std::span<const double> cost, std::span<const Width> wide,
                    std::span<const uint8_t> threads, int workers) {
  // What all threads of a node work together, with what it costs to share.
  std::vector<double> work(cost.begin(), cost.end()), span(cost.begin(), cost.end());
  for (uint32_t n = 0; n < dag.size(); ++n) {
    if (threads[n] == 1) continue;
    span[n] = wide[n].nanos;
    work[n] = wide[n].nanos * threads[n];
  }
  const Critical critical = FindCritical(dag, span);
  const auto later = [&](uint32_t a, uint32_t b) {
    return critical.rank[a] != critical.rank[b] ? critical.rank[a] < critical.rank[b] : a > b;
  };
  std::priority_queue<uint32_t, std::vector<uint32_t>, decltype(later)> ready(later);
  std::vector<uint32_t> missing = dag.predecessors;
  for (uint32_t n = 0; n < dag.size(); ++n)
    if (missing[n] == 0) ready.push(n);

  std::vector<Running> running;
  int idle = workers;
  double now = 0;
  const auto place = [&] {
    while (idle > 0) {
      const auto room = std::find_if(running.begin(), running.end(), [](const Running& r) { return r.here < r.most; });
      if (room != running.end()) {
        ++room->here;
      } else if (!ready.empty()) {
        const uint32_t n = ready.top();
        ready.pop();
        running.push_back({n, threads[n], 1, work[n]});
      } else {
        return;
      }
      --idle;
    }
  };
  for (place(); !running.empty(); place()) {
    double step = std::numeric_limits<double>::infinity();
    for (const Running& r : running) step = std::min(step, r.left / r.here);
    now += step;
    for (Running& r : running) r.left -= step * r.here;
    std::erase_if(running, [&](const Running& r) {
      if (r.left > 1e-6) return false;
      idle += static_cast<int>(r.here);
      for (const uint32_t s : dag.After(r.node))
        if (--missing[s] == 0) ready.push(s);
      return true;
    });
  }
  return now;
}

std::vector<uint8_t> ChooseWidths(const Dag& dag, std::span<const double> cost, std::span<const Width> wide,
                                  int workers) {
  std::vector<uint8_t> chosen(dag.size(), 1);
  std::vector<uint32_t> tried;
  for (uint32_t n = 0; n < dag.size(); ++n)
    if (workers > 1 && wide[n].threads > 1 && wide[n].nanos > 0 && wide[n].nanos < cost[n]) tried.push_back(n);
  if (tried.empty()) return chosen;
  std::sort(tried.begin(), tried.end(),
            [&](uint32_t a, uint32_t b) { return cost[a] != cost[b] ? cost[a] > cost[b] : a < b; });
  if (tried.size() > kMostTried) tried.resize(kMostTried);
  double best = SimulateWide(dag, cost, wide, chosen, workers);
  for (const uint32_t n : tried) {
    chosen[n] = static_cast<uint8_t>(std::min<uint32_t>(wide[n].threads, static_cast<uint32_t>(workers)));
    const double took = SimulateWide(dag, cost, wide, chosen, workers);
    if (took < best) {
      best = took;
    } else {
      chosen[n] = 1;
    }
  }
  return chosen;
}

}  // namespace engine::costmodel
