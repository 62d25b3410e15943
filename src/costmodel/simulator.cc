#include "simulator.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

#include "engine/spi/rank_queue.h"

namespace engine::costmodel {

Simulated Simulate(const Dag& dag, std::span<const double> cost, std::span<const double> rank, int workers, double pick,
                   double dispatch, std::vector<double>* begin) {
  const uint32_t n = dag.size();
  std::vector<uint32_t> by_urgency(n), urgency(n), missing = dag.predecessors;
  std::iota(by_urgency.begin(), by_urgency.end(), 0u);
  std::sort(by_urgency.begin(), by_urgency.end(),
            [&](uint32_t a, uint32_t b) { return rank[a] != rank[b] ? rank[a] > rank[b] : a < b; });
  for (uint32_t i = 0; i < n; ++i) urgency[by_urgency[i]] = i;
  std::vector<uint64_t> words(RankQueue::WordsFor(n));
  RankQueue ready(words.data(), n);
  if (begin) begin->assign(n, 0);

  Simulated out;
  struct End {
    double at;
    int worker;
    uint32_t task;
    bool operator>(const End& other) const { return std::tie(at, worker) > std::tie(other.at, other.worker); }
  };
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  std::priority_queue<int, std::vector<int>, std::greater<>> idle;
  for (int w = 0; w < workers; ++w) idle.push(w);
  double queue_free = 0;
  const auto take = [&](double now, int worker) {
    const uint32_t task = by_urgency[ready.TakeFirst()];
    const double from = std::max(now, queue_free);
    queue_free = from + pick;
    out.queued += queue_free - now;
    if (begin) (*begin)[task] = queue_free + dispatch;
    ends.push({queue_free + dispatch + cost[task], worker, task});
    ++out.ran;
  };
  const auto fill = [&](double now) {
    for (; ready.size() != 0 && !idle.empty(); idle.pop()) take(now, idle.top());
  };
  for (uint32_t t = 0; t < n; ++t)
    if (missing[t] == 0) ready.Add(urgency[t]);
  fill(0);
  while (!ends.empty()) {
    const End end = ends.top();
    ends.pop();
    out.makespan = end.at;
    for (const uint32_t s : dag.After(end.task))
      if (--missing[s] == 0) ready.Add(urgency[s]);
    idle.push(end.worker);
    // All tasks that end at the same moment are settled first, so that the next task does not depend on the order of
    // looking.
    if (ends.empty() || ends.top().at > end.at) fill(end.at);
  }
  return out;
}

}  // namespace engine::costmodel
