#include "simulator.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

#include "engine/rank_queue.h"

namespace engine::costmodel {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Batches as nodes of a smaller graph.
struct Tasks {
  std::vector<std::vector<uint32_t>> nodes;
  std::vector<double> cost, rank;
  Dag dag;
};

Tasks Merge(const Dag& dag, std::span<const double> cost, std::span<const double> rank,
            std::span<const uint32_t> batch) {
  Tasks tasks;
  std::vector<uint32_t> task_of(dag.size());
  uint32_t most = 0;
  for (const uint32_t b : batch) most = std::max(most, b);
  std::vector<uint32_t> number(batch.empty() ? 0 : most + 1, kNone);
  for (const uint32_t n : dag.order) {
    uint32_t task = static_cast<uint32_t>(tasks.nodes.size());
    if (!batch.empty() && number[batch[n]] != kNone) task = number[batch[n]];
    if (task == tasks.nodes.size()) {
      tasks.nodes.emplace_back();
      tasks.cost.push_back(0);
      tasks.rank.push_back(0);
      if (!batch.empty()) number[batch[n]] = task;
    }
    task_of[n] = task;
    tasks.nodes[task].push_back(n);
    tasks.cost[task] += cost[n];
    tasks.rank[task] = std::max(tasks.rank[task], rank[n]);
  }
  std::vector<Graph::Edge> edges;
  for (uint32_t n = 0; n < dag.size(); ++n)
    for (const uint32_t s : dag.After(n))
      if (task_of[n] != task_of[s]) edges.push_back({task_of[n], task_of[s], Graph::Edge::Kind::kOrder});
  if (!batch.empty()) {
    const auto key = [](const Graph::Edge& e) { return std::pair(e.from, e.to); };
    std::sort(edges.begin(), edges.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  }
  tasks.dag = Dag(static_cast<uint32_t>(tasks.nodes.size()), edges);
  return tasks;
}

}  // namespace

Simulated Simulate(const Dag& dag, std::span<const double> cost, std::span<const double> rank,
                   std::span<const uint32_t> batch, int workers, double pick, double dispatch,
                   std::vector<double>* begin) {
  const Tasks tasks = Merge(dag, cost, rank, batch);
  const uint32_t n = tasks.dag.size();
  std::vector<uint32_t> by_urgency(n), urgency(n), missing = tasks.dag.predecessors;
  std::iota(by_urgency.begin(), by_urgency.end(), 0u);
  std::sort(by_urgency.begin(), by_urgency.end(), [&](uint32_t a, uint32_t b) {
    return tasks.rank[a] != tasks.rank[b] ? tasks.rank[a] > tasks.rank[b] : a < b;
  });
  for (uint32_t i = 0; i < n; ++i) urgency[by_urgency[i]] = i;
  std::vector<uint64_t> words(RankQueue::WordsFor(n));
  RankQueue ready(words.data(), n);
  if (begin) begin->assign(dag.size(), 0);

  Simulated out{.tasks = n};
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
    double at = queue_free + dispatch;
    if (begin)
      for (const uint32_t node : tasks.nodes[task]) at = ((*begin)[node] = at) + cost[node];
    ends.push({queue_free + dispatch + tasks.cost[task], worker, task});
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
    for (const uint32_t s : tasks.dag.After(end.task))
      if (--missing[s] == 0) ready.Add(urgency[s]);
    idle.push(end.worker);
    // All that end at one moment first: who is taken next must not hang on whose end was looked at first.
    if (ends.empty() || ends.top().at > end.at) fill(end.at);
  }
  return out;
}

}  // namespace engine::costmodel
