#include "partition.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>

namespace engine::detail {
namespace {

using Node = StepGraph::Node;
constexpr uint32_t kNobody = UINT32_MAX;

class Partitioner {
 public:
  Partitioner(const StepGraph& graph, const HandOverCost& cost) : graph_(graph), cost_(cost) {
    Check();
    FindReach();
  }

  Cut Find(Choice choice) {
    std::vector<bool> most = Largest();
    if (choice == Choice::kBest) MakeGroups(most);
    Cut best = Describe(choice == Choice::kBest ? std::vector<bool>(graph_.nodes.size(), false) : most);
    const auto consider = [&](const std::vector<bool>& staged) {
      Cut cut = Describe(staged);
      if (Better(cut, best)) best = std::move(cut);
    };
    if (groups_.size() <= kExhaustive) {
      Every(consider);
    } else {
      Prefixes(consider);
    }
    Improve(best);
    std::set<uint32_t> chosen(best.staged.begin(), best.staged.end());
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!reasons_[n].empty()) {
        best.rejected.push_back({n, reasons_[n]});
      } else if (!chosen.contains(n)) {
        best.left_over.push_back(n);
      }
    }
    return best;
  }

 private:
  static constexpr size_t kExhaustive = 12;  // of so many groups every set is looked at: at most 4096

  void Check() {
    producer_.assign(graph_.values.size(), kNobody);
    const auto check = [](uint32_t index, size_t size, const Node& node, const char* what) {
      if (index >= size) throw std::invalid_argument("node '" + node.name + "' names a " + what + " that is not there");
    };
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      for (uint32_t v : node.outputs) {
        check(v, graph_.values.size(), node, "value");
        producer_[v] = n;
      }
      for (uint32_t v : node.inputs) {
        check(v, graph_.values.size(), node, "value");
      }
      for (uint32_t m : node.after) {
        check(m, graph_.nodes.size(), node, "node before it");
        if (m == n) throw std::invalid_argument("node '" + node.name + "' comes after itself");
      }
      for (const auto& effect : node.effects) check(effect.var, graph_.vars.size(), node, "Var");
    }
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      for (uint32_t v : graph_.nodes[n].inputs) {
        if (producer_[v] == kNobody || producer_[v] < n) continue;
        throw std::invalid_argument("node '" + graph_.nodes[n].name + "' reads a value that is made after it");
      }
    }
  }

  // Finds what is downstream of a source, because a node that does not depend on the data has nothing to run ahead of; and
  // constants, which need nothing of the step, so that they go with the staged nodes that need them.
  void FindReach() {
    reaches_.assign(graph_.nodes.size(), false);
    constant_.assign(graph_.nodes.size(), false);
    consumers_.resize(graph_.nodes.size());
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const auto made_by = [&](const auto& which) {
        return [&](uint32_t v) { return producer_[v] != kNobody && which[producer_[v]]; };
      };
      reaches_[n] = node.source || std::any_of(node.inputs.begin(), node.inputs.end(), made_by(reaches_));
      constant_[n] = !node.source && !node.copy && node.effects.empty() && node.after.empty() &&
                     std::all_of(node.inputs.begin(), node.inputs.end(), made_by(constant_));
      for (uint32_t v : node.inputs)
        if (producer_[v] != kNobody) consumers_[producer_[v]].push_back(n);
    }
  }
  bool Feeds(uint32_t n, const std::vector<bool>& staged) const {
    return std::any_of(consumers_[n].begin(), consumers_[n].end(), [&](uint32_t m) { return staged[m]; });
  }

  std::string Name(uint32_t n) const { return "'" + graph_.nodes[n].name + "'"; }

  // Why node n may not be staged together with the nodes `staged`; empty if it may.
  std::string Objection(uint32_t n, const std::vector<bool>& staged) const {
    const Node& node = graph_.nodes[n];
    if (node.target) return "is a marked target";
    if (node.collective) return "is a collective: every process must run it in the same order";
    if (!node.kept.empty()) return node.kept;
    if (!reaches_[n] && !(constant_[n] && Feeds(n, staged))) return "does not depend on the source";
    for (uint32_t v : node.inputs) {
      const uint32_t from = producer_[v];
      if (from == kNobody) return "reads '" + graph_.values[v].name + "', which each step is given";
      if (!staged[from]) return "needs " + Name(from) + ", which is not staged";
    }
    for (uint32_t before : node.after) {
      if (!staged[before]) return "comes after " + Name(before) + ", which is not staged";
    }
    for (const auto& mine : node.effects) {
      for (uint32_t m = 0; m < graph_.nodes.size(); ++m) {
        if (staged[m] || m == n) continue;
        for (const auto& other : graph_.nodes[m].effects) {
          if (other.var != mine.var || (mine.mode == AccessMode::kRead && other.mode == AccessMode::kRead)) continue;
          const std::string var = "'" + graph_.vars[mine.var] + "'";
          return mine.mode == AccessMode::kRead ? "reads Var " + var + ", which " + Name(m) + " changes"
                                                : "changes Var " + var + ", which " + Name(m) + " touches";
        }
      }
    }
    return "";
  }

  // Takes nodes out until there is no objection. The result is the largest legal set, because an objection against a
  // node in a set also holds in every smaller set.
  std::vector<bool> Largest() {
    std::vector<bool> staged(graph_.nodes.size(), true);
    reasons_.assign(graph_.nodes.size(), "");
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
        if (!staged[n]) continue;
        reasons_[n] = Objection(n, staged);
        if (reasons_[n].empty()) continue;
        staged[n] = false;
        changed = true;
      }
    }
    return staged;
  }

  // Puts nodes that share a Var which one of them changes into one group: they are staged together or not at all.
  void MakeGroups(const std::vector<bool>& most) {
    std::vector<uint32_t> root(graph_.nodes.size());
    for (uint32_t n = 0; n < root.size(); ++n) root[n] = n;
    const auto find = [&](uint32_t n) {
      while (root[n] != n) n = root[n];
      return n;
    };
    for (uint32_t a = 0; a < root.size(); ++a) {
      for (uint32_t b = 0; b < a; ++b) {
        if (!most[a] || !most[b]) continue;
        for (const auto& x : graph_.nodes[a].effects) {
          for (const auto& y : graph_.nodes[b].effects) {
            if (x.var == y.var && (x.mode != AccessMode::kRead || y.mode != AccessMode::kRead)) root[find(a)] = find(b);
          }
        }
      }
    }
    std::map<uint32_t, std::vector<uint32_t>> by_root;
    for (uint32_t n = 0; n < root.size(); ++n) {
      if (most[n] && !graph_.nodes[n].copy && !constant_[n]) by_root[find(n)].push_back(n);
    }
    for (auto& [first, group] : by_root) groups_.push_back(std::move(group));
    std::sort(groups_.begin(), groups_.end(), [](const auto& a, const auto& b) { return a.back() < b.back(); });
  }

  bool Legal(const std::vector<bool>& staged) const {
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      if (staged[n] && !Objection(n, staged).empty()) return false;
    }
    return true;
  }

  template <class F>
  void Every(const F& consider) const {
    for (uint64_t set = 1; set < uint64_t{1} << groups_.size(); ++set) {
      std::vector<bool> staged(graph_.nodes.size(), false);
      for (size_t g = 0; g < groups_.size(); ++g) {
        if (set >> g & 1) Put(staged, g, true);
      }
      PutFollowers(staged);
      if (Legal(staged)) consider(staged);
    }
  }

  template <class F>
  void Prefixes(const F& consider) const {
    std::vector<bool> staged(graph_.nodes.size(), false);
    for (size_t g = 0; g < groups_.size(); ++g) {
      Put(staged, g, true);
      PutFollowers(staged);
      if (Legal(staged)) consider(staged);
    }
  }

  // Moves single groups across the cut while that helps.
  void Improve(Cut& best) const {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t g = 0; g < groups_.size(); ++g) {
        std::vector<bool> staged(graph_.nodes.size(), false);
        for (uint32_t n : best.staged) staged[n] = true;
        Put(staged, g, !staged[groups_[g].front()]);
        PutFollowers(staged);
        if (!Legal(staged)) continue;
        Cut cut = Describe(staged);
        if (!Better(cut, best)) continue;
        best = std::move(cut);
        changed = true;
      }
    }
  }

  void Put(std::vector<bool>& staged, size_t group, bool where) const {
    for (uint32_t n : groups_[group]) staged[n] = where;
  }

  // Stages the constants that staged nodes need and the copies of staged values, and no others.
  void PutFollowers(std::vector<bool>& staged) const {
    for (uint32_t n = static_cast<uint32_t>(staged.size()); n-- > 0;)
      if (constant_[n]) staged[n] = reasons_[n].empty() && Feeds(n, staged);
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!graph_.nodes[n].copy) continue;
      const uint32_t from = producer_[graph_.nodes[n].inputs[0]];
      staged[n] = from != kNobody && staged[from] && reasons_[n].empty();
    }
  }

  static bool Better(const Cut& a, const Cut& b) {
    if (a.step_seconds != b.step_seconds) return a.step_seconds < b.step_seconds;
    return a.bytes < b.bytes;
  }

  Cut Describe(const std::vector<bool>& staged) const {
    Cut cut;
    cut.serial_seconds = cut.main_seconds = graph_.caller_seconds;
    std::set<uint32_t> boundary;
    double reading = 0;  // of nodes that one thread at a time runs
    bool changes = false;
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      cut.serial_seconds += node.seconds;
      (!staged[n] ? cut.main_seconds : node.copy ? cut.copy_seconds : cut.stage_seconds) += node.seconds;
      if (staged[n]) {
        cut.staged.push_back(n);
        if (node.source) reading += node.seconds;
        for (const auto& effect : node.effects) changes |= effect.mode != AccessMode::kRead;
        for (uint32_t v : node.outputs) {
          if (graph_.values[v].fetched) boundary.insert(v);
        }
      } else {
        for (uint32_t v : node.inputs) {
          if (producer_[v] != kNobody && staged[producer_[v]]) boundary.insert(v);
        }
      }
    }
    cut.boundary.assign(boundary.begin(), boundary.end());
    for (uint32_t v : cut.boundary) cut.bytes += graph_.values[v].bytes;
    if (!cut.staged.empty()) {
      if (!changes) cut.stage_seconds = std::max(reading, cut.stage_seconds / cost_.threads);
      cut.stage_seconds += cost_.seconds + cost_.seconds_per_byte * static_cast<double>(cut.bytes);
      cut.main_seconds += cost_.seconds;
    }
    cut.step_seconds = std::max({cut.stage_seconds, cut.copy_seconds, cut.main_seconds});
    return cut;
  }

  const StepGraph& graph_;
  const HandOverCost cost_;
  std::vector<uint32_t> producer_;  // by value
  std::vector<bool> reaches_, constant_;
  std::vector<std::vector<uint32_t>> consumers_;  // by node: the nodes that take its values
  std::vector<std::string> reasons_;
  std::vector<std::vector<uint32_t>> groups_;
};

std::string Seconds(double seconds) {
  char text[40];
  std::snprintf(text, sizeof text, "%.4g ms", seconds * 1e3);
  return text;
}

}  // namespace

Cut Partition(const StepGraph& graph, const HandOverCost& cost, Choice choice) {
  return Partitioner(graph, cost).Find(choice);
}

std::vector<std::vector<uint32_t>> Levels(const StepGraph& graph, const Cut& cut, int most) {
  std::vector<uint32_t> all;
  for (uint32_t n : cut.staged)
    if (!graph.nodes[n].copy) all.push_back(n);
  if (all.empty()) return {};
  // Whether the next level may begin at node all[i]: not between two nodes that share a Var which one of them changes,
  // and not against an order.
  std::vector<bool> may(all.size(), true);
  const auto apart = [&](size_t a, size_t b) {  // a < b
    for (size_t i = a + 1; i <= b; ++i) may[i] = false;
  };
  for (size_t b = 0; b < all.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      const Node &x = graph.nodes[all[a]], &y = graph.nodes[all[b]];
      if (std::count(x.after.begin(), x.after.end(), all[b])) apart(a, b);
      for (const auto& e : x.effects) {
        for (const auto& f : y.effects) {
          if (e.var == f.var && (e.mode != AccessMode::kRead || f.mode != AccessMode::kRead)) apart(a, b);
        }
      }
    }
  }
  // best[k][i]: the time of the slowest of k levels over the first i nodes, and where the last level begins.
  const size_t n = all.size(), levels = std::min(n, static_cast<size_t>(std::max(1, most)));
  struct Best {
    double seconds = std::numeric_limits<double>::infinity();
    size_t begin = 0;
  };
  std::vector<std::vector<Best>> best(levels + 1, std::vector<Best>(n + 1));
  best[0][0].seconds = 0;
  for (size_t k = 1; k <= levels; ++k) {
    for (size_t end = 1; end <= n; ++end) {
      double last = 0;
      for (size_t begin = end; begin-- > 0;) {
        last += graph.nodes[all[begin]].seconds;
        const double slowest = std::max(last, best[k - 1][begin].seconds);
        if (may[begin] && slowest < best[k][end].seconds) best[k][end] = {slowest, begin};
      }
    }
  }
  size_t count = 1;
  for (size_t k = 2; k <= levels; ++k) {
    if (best[k][n].seconds < best[count][n].seconds) count = k;
  }
  std::vector<std::vector<uint32_t>> out(count);
  for (size_t end = n; count > 0; --count) {
    const size_t begin = best[count][end].begin;
    out[count - 1].assign(all.begin() + static_cast<ptrdiff_t>(begin), all.begin() + static_cast<ptrdiff_t>(end));
    end = begin;
  }
  return out;
}

std::string Explain(const StepGraph& graph, const Cut& cut) {
  std::string text;
  const auto name = [&](uint32_t n) { return graph.nodes[n].name; };
  if (cut.staged.empty()) text += "nothing is staged: no cut is faster than the step as it is\n";
  for (uint32_t n : cut.staged) text += "staged " + name(n) + "\n";
  if (std::any_of(cut.staged.begin(), cut.staged.end(), [&](uint32_t n) { return graph.nodes[n].copy; }))
    text += "staged copies are packed into one an item, from pinned memory, on the copy lane\n";
  for (uint32_t n : cut.left_over) text += "left in the step " + name(n) + ": the step is no slower with it\n";
  for (const auto& rejected : cut.rejected) text += "not staged " + name(rejected.node) + ": " + rejected.reason + "\n";
  for (uint32_t v : cut.boundary) {
    text += "handed over " + graph.values[v].name + ": " + std::to_string(graph.values[v].bytes) + " bytes\n";
  }
  const std::string copies = cut.copy_seconds > 0 ? ", copies " + Seconds(cut.copy_seconds) : "";
  return text + "predicted " + Seconds(cut.step_seconds) + " a step (stage " + Seconds(cut.stage_seconds) + copies +
         ", rest " + Seconds(cut.main_seconds) + "), without a stage " + Seconds(cut.serial_seconds) +
         (graph.caller_seconds > 0 ? "; the caller itself takes " + Seconds(graph.caller_seconds) + " of the rest\n"
                                   : "\n");
}

}  // namespace engine::detail
