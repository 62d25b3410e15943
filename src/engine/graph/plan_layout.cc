#include "graph/plan_layout.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "base/tuning.h"
#include "order/error_record.h"

namespace engine::detail {
namespace {

using Lists = std::vector<std::vector<uint32_t>>;

Lists Successors(const Lists& predecessors) {
  Lists successors(predecessors.size());
  for (uint32_t n = 0; n < predecessors.size(); ++n)
    for (uint32_t p : predecessors[n]) successors[p].push_back(n);
  return successors;
}

// Numbers nodes in topological order; of those that may come next, the smallest by `before` does. The result is shorter
// than the graph if there is a cycle.
std::vector<uint32_t> Topological(const Lists& predecessors, const Lists& successors,
                                  const std::function<bool(uint32_t, uint32_t)>& before) {
  std::vector<uint32_t> missing(predecessors.size()), order;
  const auto later = [&](uint32_t a, uint32_t b) { return before(b, a); };
  std::priority_queue<uint32_t, std::vector<uint32_t>, decltype(later)> ready(later);
  for (uint32_t n = 0; n < predecessors.size(); ++n) {
    missing[n] = static_cast<uint32_t>(predecessors[n].size());
    if (missing[n] == 0) ready.push(n);
  }
  order.reserve(predecessors.size());
  while (!ready.empty()) {
    const uint32_t n = ready.top();
    ready.pop();
    order.push_back(n);
    for (uint32_t s : successors[n])
      if (--missing[s] == 0) ready.push(s);
  }
  return order;
}

// Finds one cycle among the nodes that no topological order reaches: walks back over predecessors that it does not
// reach either.
std::string CycleText(const Graph& graph, const Lists& predecessors, const std::vector<uint32_t>& order) {
  std::vector<char> ordered(predecessors.size()), seen(predecessors.size());
  for (uint32_t n : order) ordered[n] = 1;
  uint32_t at = 0;
  while (ordered[at]) ++at;
  std::vector<uint32_t> walk;
  while (!seen[at]) {
    seen[at] = 1;
    walk.push_back(at);
    at = *std::find_if(predecessors[at].begin(), predecessors[at].end(), [&](uint32_t p) { return !ordered[p]; });
  }
  std::string text;
  const auto start = std::find(walk.begin(), walk.end(), at);
  const auto name = [&](uint32_t n) { return "node " + std::to_string(n) + " " + Quote(graph.nodes()[n].name); };
  for (auto it = walk.end(); it != start;) text += name(*--it) + " -> ";
  return text + name(*(walk.end() - 1));
}

void CheckSchedule(const Graph& graph, const Schedule& schedule) {
  const size_t n = graph.nodes().size();
  const auto check = [&](const char* what, size_t size) {
    if (size != 0 && size != n)
      throw UsageError(std::string("Schedule::") + what + " has " + std::to_string(size) + " entries for a graph of " +
                       std::to_string(n) + " nodes");
  };
  check("rank", schedule.rank.size());
  check("batch", schedule.batch.size());
  check("threads", schedule.threads.size());
}

bool SamePlace(const Graph::Node& a, const Graph::Node& b) {
  return a.place.kind == b.place.kind && a.place.index == b.place.index && a.place.lane == b.place.lane;
}

// Nodes on a GPU lane share a task with all nodes of that lane between the same changes of placement. No path leads out
// of such a task and back into it, because each change of placement counts one more. No bulk can hold an asynchronous
// node, so it is a task by itself, and counts as a change on either side.
void JoinOnDevice(const Graph& graph, const Lists& predecessors, const std::vector<uint32_t>& order,
                  std::vector<uint32_t>& task) {
  std::vector<uint32_t> changes(order.size());
  std::map<std::tuple<uint16_t, uint8_t, uint32_t>, uint32_t> first;
  for (uint32_t n : order) {
    const Graph::Node& node = graph.nodes()[n];
    for (uint32_t p : predecessors[n])
      changes[n] =
          std::max(changes[n],
                   changes[p] + (SamePlace(graph.nodes()[p], node) && !graph.nodes()[p].async && !node.async ? 0 : 1));
    if (node.place.kind != Placement::Kind::kGpu) continue;
    task[n] = n;
    if (!node.async)
      task[n] = first.emplace(std::tuple(node.place.index, node.place.lane, changes[n]), n).first->second;
  }
}

// Finds the task of each node: a node joins the task of its only predecessor if it is that predecessor's only
// successor. An asynchronous node ends its task, because the thread that completes it runs nothing.
std::vector<uint32_t> Chains(const Graph& graph, const Lists& predecessors, const Lists& successors,
                             const std::vector<uint32_t>& order) {
  std::vector<uint32_t> task(order.size());
  for (uint32_t n : order) {
    task[n] = n;
    if (predecessors[n].size() != 1) continue;
    const uint32_t p = predecessors[n][0];
    const Graph::Node &before = graph.nodes()[p], &node = graph.nodes()[n];
    if (successors[p].size() == 1 && !before.async && SamePlace(before, node) && before.priority == node.priority)
      task[n] = task[p];
  }
  JoinOnDevice(graph, predecessors, order, task);
  return task;
}

std::vector<uint32_t> Batches(const Graph& graph, const Schedule& schedule) {
  std::unordered_map<uint32_t, uint32_t> first;
  std::vector<uint32_t> task(schedule.batch.size());
  for (uint32_t n = 0; n < task.size(); ++n) {
    const uint32_t head = first.emplace(schedule.batch[n], n).first->second;
    const Graph::Node &a = graph.nodes()[head], &b = graph.nodes()[n];
    if (head != n && (a.async || b.async || !SamePlace(a, b)))
      throw UsageError("Schedule::batch puts node " + std::to_string(n) + " " + Quote(b.name) +
                       " in one batch with node " + std::to_string(head) + " " + Quote(a.name) +
                       "; nodes of a batch share their placement, and asynchronous nodes are alone");
    task[n] = head;
  }
  return task;
}

struct Uses {
  uint32_t what;
  std::vector<uint32_t> last;  // numbers of nodes: after all of them nobody needs it
};

std::vector<Uses> LastUses(const Graph& graph, const PlanOptions& options, PlanLayout& layout) {
  std::vector<Uses> uses;
  std::vector<char> kept(graph.values().size(), options.static_alloc ? 1 : 0);
  for (ValueId output : graph.outputs()) kept[output.index] = 1;
  for (uint32_t v = 0; v < graph.values().size(); ++v) {
    const Graph::ValueInfo& value = graph.values()[v];
    if (kept[v]) continue;
    if (!value.consumers.empty()) {
      uses.push_back({v, value.consumers});
    } else if (value.producer != UINT32_MAX) {
      uses.push_back({v, {value.producer}});
    }
  }
  const size_t values = uses.size();
  std::unordered_map<VarCore*, uint32_t> place;
  for (uint32_t n = 0; n < graph.nodes().size(); ++n) {
    for (const Effect& effect : graph.nodes()[n].effects) {
      const auto [at, fresh] = place.emplace(effect.var.core(), static_cast<uint32_t>(layout.vars.size()));
      if (fresh) {
        uses.push_back({PlanLayout::kVarEnd + at->second, {}});
        layout.vars.push_back(effect.var);
        layout.modes.push_back(effect.mode);
      }
      Uses& u = uses[values + at->second];
      // A reader may run beside the readers before it; a writer has waited for all of them.
      if (effect.mode != AccessMode::kRead || (!fresh && u.last.size() == 1 && [&] {
            for (const Effect& e : graph.nodes()[u.last[0]].effects)
              if (e.var == effect.var) return e.mode != AccessMode::kRead;
            return false;
          }()))
        u.last.clear();
      u.last.push_back(n);
      if (!fresh && effect.mode != AccessMode::kRead && layout.modes[at->second] == AccessMode::kRead)
        layout.modes[at->second] = AccessMode::kUpdate;
    }
  }
  return uses;
}

}  // namespace

std::vector<std::vector<uint32_t>> Reduce(Lists predecessors, uint32_t bound) {
  std::vector<uint32_t> reached(predecessors.size(), kNoIndex), todo;
  for (uint32_t n = 0; n < predecessors.size(); ++n) {
    std::vector<uint32_t>& own = predecessors[n];
    if (own.size() < 2) continue;
    const uint32_t least = *std::min_element(own.begin(), own.end());
    // Search backwards from each predecessor, over lists that are reduced already. No node before the smallest
    // predecessor matters.
    uint32_t visits = 0;
    todo = own;
    while (!todo.empty() && visits < bound) {
      const uint32_t at = todo.back();
      todo.pop_back();
      for (uint32_t p : predecessors[at]) {
        if (p < least || reached[p] == n || ++visits > bound) continue;
        reached[p] = n;
        todo.push_back(p);
      }
    }
    std::erase_if(own, [&](uint32_t p) { return reached[p] == n; });
  }
  return predecessors;
}

PlanLayout LayOut(const Graph& graph, const PlanOptions& options) {
  const auto n_nodes = static_cast<uint32_t>(graph.nodes().size());
  const Schedule& schedule = options.schedule;
  CheckSchedule(graph, schedule);

  Lists predecessors(n_nodes);
  std::vector<Graph::Edge> orders;
  for (const Graph::Edge& e : graph.Edges()) {
    predecessors[e.to].push_back(e.from);
    if (e.kind == Graph::Edge::Kind::kOrder) orders.push_back(e);
  }
  const std::vector<uint32_t> recorded = Topological(predecessors, Successors(predecessors), std::less<uint32_t>());
  if (recorded.size() != n_nodes)
    throw UsageError("the graph has a cycle: " + CycleText(graph, predecessors, recorded) +
                     "; leave out one of the calls of Graph::Order between these nodes");
  // Reduce needs nodes numbered by position, so that every predecessor is smaller.
  std::vector<uint32_t> position(n_nodes);
  for (uint32_t i = 0; i < n_nodes; ++i) position[recorded[i]] = i;
  Lists by_position(n_nodes);
  for (uint32_t n = 0; n < n_nodes; ++n)
    for (uint32_t p : predecessors[n]) by_position[position[n]].push_back(position[p]);
  by_position = Reduce(std::move(by_position), tuning::kReductionVisits);
  for (uint32_t i = 0; i < n_nodes; ++i) {
    predecessors[recorded[i]].clear();
    for (uint32_t p : by_position[i]) predecessors[recorded[i]].push_back(recorded[p]);
  }

  const std::vector<uint32_t> head = schedule.batch.empty()
                                         ? Chains(graph, predecessors, Successors(predecessors), recorded)
                                         : Batches(graph, schedule);
  // Tasks are numbered by their first node in the order of recording. From here on everything is between tasks.
  std::vector<uint32_t> task_of(n_nodes, kNoIndex), heads;
  for (uint32_t n : recorded) {
    if (task_of[head[n]] == kNoIndex) {
      task_of[head[n]] = static_cast<uint32_t>(heads.size());
      heads.push_back(n);
    }
    task_of[n] = task_of[head[n]];
  }
  Lists before(heads.size());
  for (uint32_t n : recorded)
    for (uint32_t p : predecessors[n])
      if (task_of[p] != task_of[n]) before[task_of[n]].push_back(task_of[p]);
  for (auto& list : before) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  const bool ranked = !schedule.rank.empty();
  std::vector<double> rank(ranked ? heads.size() : 0, -std::numeric_limits<double>::infinity());
  for (uint32_t n = 0; ranked && n < n_nodes; ++n) rank[task_of[n]] = std::max(rank[task_of[n]], schedule.rank[n]);
  const auto urgent = [&](uint32_t a, uint32_t b, bool by_rank) {
    const Graph::Node &x = graph.nodes()[heads[a]], &y = graph.nodes()[heads[b]];
    if (x.priority != y.priority) return x.priority > y.priority;
    if (by_rank && rank[a] != rank[b]) return rank[a] > rank[b];
    return a < b;
  };
  const auto first = [&](uint32_t a, uint32_t b) { return ranked ? urgent(a, b, true) : a < b; };
  Lists after = Successors(before);
  const std::vector<uint32_t> order = Topological(before, after, first);
  if (order.size() != heads.size()) throw UsageError("Schedule::batch makes a cycle: its batches depend on each other");

  PlanLayout layout;
  layout.orders = std::move(orders);
  Lists members(heads.size());
  for (uint32_t n : recorded) members[task_of[n]].push_back(n);
  std::vector<uint32_t> number(heads.size()), place(n_nodes);
  for (uint32_t i = 0; i < order.size(); ++i) number[order[i]] = i;
  for (uint32_t task : order) {
    PlanLayout::Task t;
    t.first = static_cast<uint32_t>(layout.order.size());
    for (uint32_t n : members[task]) {
      place[n] = static_cast<uint32_t>(layout.order.size());
      layout.order.push_back(n);
    }
    t.end = static_cast<uint32_t>(layout.order.size());
    t.predecessors = static_cast<uint32_t>(before[task].size());
    std::sort(after[task].begin(), after[task].end(), [&](uint32_t a, uint32_t b) { return urgent(b, a, ranked); });
    for (uint32_t s : after[task]) t.successors.push_back(number[s]);
    layout.tasks.push_back(std::move(t));
    layout.task_counter.push_back(kNoIndex);
    if (layout.tasks.back().predecessors > 1) {
      layout.task_counter.back() = static_cast<uint32_t>(layout.counters.size());
      layout.counters.push_back(layout.tasks.back().predecessors);
    }
  }

  if (!ranked) {  // nothing is known of costs, so each node counts the same
    rank.resize(heads.size());
    for (auto task = order.rbegin(); task != order.rend(); ++task) {
      double behind = 0;
      for (uint32_t s : after[*task]) behind = std::max(behind, rank[s]);
      rank[*task] = static_cast<double>(members[*task].size()) + behind;
    }
  }
  std::vector<uint32_t> sorted(heads.size());
  std::iota(sorted.begin(), sorted.end(), 0u);
  std::sort(sorted.begin(), sorted.end(), [&](uint32_t a, uint32_t b) { return urgent(a, b, true); });
  for (uint32_t task : sorted) layout.by_urgency.push_back(number[task]);

  layout.ends.resize(n_nodes);
  for (Uses& use : LastUses(graph, options, layout)) {
    // The nodes of a task run one after the other, so only the last of each task counts.
    std::unordered_map<uint32_t, uint32_t> last;
    for (uint32_t n : use.last) {
      uint32_t& at = last.emplace(task_of[n], place[n]).first->second;
      at = std::max(at, place[n]);
    }
    uint32_t counter = kNoIndex;
    if (last.size() > 1) {
      counter = static_cast<uint32_t>(layout.counters.size());
      layout.counters.push_back(static_cast<uint32_t>(last.size()));
    }
    for (const auto& [task, at] : last) layout.ends[at].push_back({use.what, counter});
  }
  for (auto& ends : layout.ends)
    std::sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.what < b.what; });
  return layout;
}

}  // namespace engine::detail
