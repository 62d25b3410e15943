#include "dag.h"

#include <algorithm>
#include <numeric>

namespace engine::costmodel {

Dag::Dag(uint32_t nodes, std::span<const Graph::Edge> edges) : first(nodes + 1), to(edges.size()), predecessors(nodes) {
  for (const Graph::Edge& e : edges) {
    ++first[e.from + 1];
    ++predecessors[e.to];
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<uint32_t> at(first.begin(), first.end() - 1);
  for (const Graph::Edge& e : edges) to[at[e.from]++] = e.to;
  std::vector<uint32_t> missing = predecessors;
  order.reserve(nodes);
  for (uint32_t n = 0; n < nodes; ++n)
    if (missing[n] == 0) order.push_back(n);
  for (size_t i = 0; i < order.size(); ++i)
    for (const uint32_t s : After(order[i]))
      if (--missing[s] == 0) order.push_back(s);
}

double Critical::Bound(int workers) const { return std::max(work / workers, length); }

Critical FindCritical(const Dag& dag, std::span<const double> cost) {
  Critical out;
  const uint32_t n = dag.size();
  out.rank.assign(n, 0);
  std::vector<double> earliest(n, 0);
  for (const uint32_t v : dag.order)
    for (const uint32_t s : dag.After(v)) earliest[s] = std::max(earliest[s], earliest[v] + cost[v]);
  for (auto it = dag.order.rbegin(); it != dag.order.rend(); ++it) {
    double below = 0;
    for (const uint32_t s : dag.After(*it)) below = std::max(below, out.rank[s]);
    out.rank[*it] = cost[*it] + below;
  }
  for (uint32_t v = 0; v < n; ++v) {
    out.work += cost[v];
    out.length = std::max(out.length, out.rank[v]);
  }
  out.slack.resize(n);
  for (uint32_t v = 0; v < n; ++v) out.slack[v] = out.length - earliest[v] - out.rank[v];
  // One of the longest paths: it starts at a source of the highest rank, and follows the highest rank.
  uint32_t at = UINT32_MAX;
  for (uint32_t v = 0; v < n; ++v)
    if (dag.predecessors[v] == 0 && (at == UINT32_MAX || out.rank[v] > out.rank[at])) at = v;
  while (at != UINT32_MAX) {
    out.path.push_back(at);
    uint32_t next = UINT32_MAX;
    for (const uint32_t s : dag.After(at))
      if (next == UINT32_MAX || out.rank[s] > out.rank[next]) next = s;
    at = next;
  }
  return out;
}

}  // namespace engine::costmodel
