#include "batching.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace engine::costmodel {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr double kLongChain = 4;
constexpr double kMostNodes = 256;

// One sweep in topological order. A node's `start` counts all batches before it; its `rank`, without batches, counts
// what comes after it. As long as start + rank stays within the limit for each node, every path stays within it.
class Sweep {
 public:
  // `critical`: computed from costs that include a dispatch for each node.
  Sweep(const Dag& dag, std::span<const double> cost, const Critical& critical, std::span<const uint32_t> kind,
        const BatchLimits& limits)
      : dag_(dag),
        cost_(cost),
        rank_(critical.rank),
        kind_(kind),
        workers_(limits.workers),
        dispatch_(limits.dispatch),
        worth_(kWorth * limits.dispatch),
        // A little more, so that rounding errors of sums do not forbid what is just allowed.
        longest_((1 + 1e-9) *
                 std::max(std::accumulate(cost.begin(), cost.end(), 0.0) / limits.workers / 2, critical.length)),
        batch_(dag.size(), kNone),
        missing_(dag.predecessors),
        start_(dag.size(), 0),
        behind_(dag.size(), kNone) {}

  std::vector<uint32_t> Run() {
    std::vector<uint32_t> ready, next;
    for (uint32_t n = 0; n < dag_.size(); ++n)
      if (missing_[n] == 0) ready.push_back(n);
    while (!ready.empty()) {
      // Nodes behind one batch stand side by side, the most urgent first.
      std::sort(ready.begin(), ready.end(), [&](uint32_t a, uint32_t b) {
        if (behind_[a] != behind_[b]) return behind_[a] < behind_[b];
        if (kind_[a] != kind_[b]) return kind_[a] < kind_[b];
        return rank_[a] != rank_[b] ? rank_[a] > rank_[b] : a < b;
      });
      found_.clear();
      for (size_t from = 0; from < ready.size();) {
        size_t to = from;
        const auto like = [&](uint32_t a, uint32_t b) { return behind_[a] == behind_[b] && kind_[a] == kind_[b]; };
        while (to < ready.size() && like(ready[from], ready[to])) ++to;
        MergeSiblings({ready.data() + from, to - from});
        from = to;
      }
      ready.swap(found_);
    }
    return std::move(batch_);
  }

 private:
  // The longest path behind the node.
  double After(uint32_t n) const { return rank_[n] - cost_[n] - dispatch_; }
  bool Short(uint32_t n) const { return kind_[n] != kAlone && cost_[n] < worth_; }

  void MergeSiblings(std::span<const uint32_t> siblings) {
    double short_ones = 0;
    share_ = 0;
    for (const uint32_t n : siblings) {
      share_ += (cost_[n] + dispatch_) / workers_;
      if (Short(n)) {
        short_ones += cost_[n];
        continue;
      }
      Open(n);
      Close();
    }
    if (siblings.size() <= static_cast<size_t>(workers_)) share_ = 0;
    // Batches of equal size, so that the last one does not get a small rest.
    const double full = short_ones / std::max(1.0, std::floor(short_ones / worth_)) * (1 + 1e-9);
    for (const uint32_t n : siblings) {
      if (!Short(n)) continue;
      if (!members_.empty() && (total_ + cost_[n] > full || !Fits(n))) Close();
      if (members_.empty()) {
        Open(n);
      } else {
        Add(n);
      }
    }
    if (!members_.empty()) Close();
  }

  void Open(uint32_t n) {
    members_.assign(1, n);
    total_ = cost_[n];
    begin_ = start_[n];
    below_ = After(n);
  }
  void Add(uint32_t n) {
    members_.push_back(n);
    total_ += cost_[n];
    begin_ = std::max(begin_, start_[n]);
    below_ = std::max(below_, After(n));
  }
  // If there are more siblings than workers, the last sibling cannot end before every worker has run its share of them.
  // A batch that is no longer than such a share delays nothing.
  bool Fits(uint32_t n) const {
    const double takes = dispatch_ + total_ + cost_[n];
    return takes <= share_ || std::max(begin_, start_[n]) + takes + std::max(below_, After(n)) <= longest_;
  }

  // The batch is complete. Nodes that waited only for it join it, if they may; the others that are ready go to
  // `found_`.
  void Close() {
    const uint32_t number = batches_++;
    for (const uint32_t n : members_) batch_[n] = number;
    longest_ = std::max(longest_, begin_ + dispatch_ + total_ + below_);
    released_.clear();
    pending_.clear();
    for (const uint32_t n : members_) Release(n, number);
    for (double extra = 0; Extend(number, extra);) {
    }
    const double end = begin_ + dispatch_ + total_;
    for (const uint32_t s : pending_) {
      if (end >= start_[s]) {
        start_[s] = end;
        behind_[s] = number;
      }
    }
    for (const uint32_t s : released_) found_.push_back(s);
    members_.clear();
  }

  // Adds the successors of a member to `pending_`, each once, and those that wait for no other node to `released_`.
  void Release(uint32_t n, uint32_t number) {
    for (const uint32_t s : dag_.After(n)) {
      if (seen_.size() <= s) seen_.resize(dag_.size(), kNone);
      if (seen_[s] != number) {
        seen_[s] = number;
        pending_.push_back(s);
      }
      if (--missing_[s] == 0) released_.push_back(s);
    }
  }

  // Makes one released node that waited for this batch alone a member: the next of a chain, or a node that costs less
  // than its dispatch. `extra` is the cost of what was added so; a node that costs next to nothing counts with a
  // minimum. It is bounded, because a worker does not leave a batch when a more urgent node becomes ready.
  bool Extend(uint32_t number, double& extra) {
    const uint32_t first = members_[0];
    const bool chain = pending_.size() == 1;
    if (kind_[first] == kAlone || extra > (chain ? kLongChain * worth_ : worth_)) return false;
    for (size_t i = 0; i < released_.size(); ++i) {
      const uint32_t n = released_[i];
      if (kind_[n] != kind_[first] || behind_[n] != kNone || !(total_ < worth_ || Short(n))) continue;
      if (!chain && cost_[n] > dispatch_) continue;
      double below = After(n);
      for (const uint32_t s : pending_)
        if (s != n) below = std::max(below, rank_[s]);
      if (!chain && begin_ + dispatch_ + total_ + cost_[n] + below > longest_) continue;
      members_.push_back(n);
      batch_[n] = number;
      total_ += cost_[n];
      extra += std::max(cost_[n], worth_ / kMostNodes);
      released_.erase(released_.begin() + static_cast<std::ptrdiff_t>(i));
      pending_.erase(std::find(pending_.begin(), pending_.end(), n));
      Release(n, number);
      return true;
    }
    return false;
  }

  const Dag& dag_;
  const std::span<const double> cost_;
  const std::vector<double>& rank_;
  const std::span<const uint32_t> kind_;
  const int workers_;
  const double dispatch_, worth_;
  double longest_;  // path
  double share_ = 0;
  std::vector<uint32_t> batch_, missing_;
  std::vector<double> start_;     // by node: the latest end, so far, of the batches before it
  std::vector<uint32_t> behind_;  // by node: the batch that ends then
  std::vector<uint32_t> found_, released_, pending_, seen_;
  // The batch that is being made.
  std::vector<uint32_t> members_;
  double total_ = 0, begin_ = 0, below_ = 0;
  uint32_t batches_ = 0;
};

}  // namespace

std::vector<uint32_t> Batch(const Dag& dag, std::span<const double> cost, std::span<const uint32_t> kind,
                            const BatchLimits& limits) {
  std::vector<double> dispatched(cost.begin(), cost.end());
  for (double& c : dispatched) c += limits.dispatch;
  const Critical critical = FindCritical(dag, dispatched);
  return Sweep(dag, cost, critical, kind, limits).Run();
}

Contracted Contract(const Dag& dag, std::span<const double> cost, std::span<const uint32_t> batch) {
  Contracted out;
  out.task_of.resize(dag.size());
  std::vector<uint32_t> number;
  for (const uint32_t n : dag.order) {
    if (number.size() <= batch[n]) number.resize(batch[n] + 1, kNone);
    uint32_t& task = number[batch[n]];
    if (task == kNone) {
      task = static_cast<uint32_t>(out.cost.size());
      out.cost.push_back(0);
    }
    out.task_of[n] = task;
    out.cost[task] += cost[n];
  }
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (uint32_t n = 0; n < dag.size(); ++n)
    for (const uint32_t s : dag.After(n))
      if (out.task_of[n] != out.task_of[s]) pairs.emplace_back(out.task_of[n], out.task_of[s]);
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  std::vector<Graph::Edge> edges;
  for (const auto& [from, to] : pairs) edges.push_back({from, to, Graph::Edge::Kind::kOrder});
  out.dag = Dag(static_cast<uint32_t>(out.cost.size()), edges);
  return out;
}

}  // namespace engine::costmodel
