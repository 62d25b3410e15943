// PlanLayout: a graph in the order in which it is replayed. Pure: it takes values, returns values, and knows no engine.
//
// Nodes are merged into tasks (chains, or the batches of a schedule). Tasks are numbered in topological order, and the
// nodes of a task lie side by side. Edges lead between tasks; those that follow from others are left out.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan.h"

namespace engine::detail {

inline constexpr uint32_t kNoIndex = UINT32_MAX;

struct PlanLayout {
  struct Task {
    uint32_t first, end;               // positions of its nodes
    std::vector<uint32_t> successors;  // the one that runs next comes last
    uint32_t predecessors = 0;
  };
  // The last use of a value or Var: after it the value is destroyed, or the Var released. If several nodes may be the
  // last, each counts down, and the one that arrives last does it.
  struct End {
    uint32_t what;     // a value, or kVarEnd + place in `vars`
    uint32_t counter;  // kNoIndex: this node is the only one
  };
  static constexpr uint32_t kVarEnd = uint32_t{1} << 31;

  std::vector<uint32_t> order;  // position -> number of the node in the graph
  std::vector<Task> tasks;
  std::vector<std::vector<End>> ends;  // by position
  std::vector<uint32_t> counters;      // initial counts: first of tasks with several predecessors, then of ends
  std::vector<uint32_t> task_counter;  // by task; kNoIndex: it has none
  // Tasks, the most urgent first: by priority, then by the schedule's ranks. Without ranks, by how many nodes the longest
  // chain behind has.
  std::vector<uint32_t> by_urgency;
  std::vector<Graph::Edge> orders;  // the edges that are only Graph::Order's, ascending by (to, from)
  std::vector<Var> vars;            // the Vars that the graph names
  std::vector<AccessMode> modes;    // by place in `vars`: how the whole run uses the Var
};

// UsageError for a cycle, and for a schedule that does not fit the graph.
PlanLayout LayOut(const Graph& graph, const PlanOptions& options);

// Leaves out the edges that follow from others; takes and returns the predecessors of each node. `bound` limits the
// search for each node: an edge that is not found within it stays, which costs a little time and is never wrong.
std::vector<std::vector<uint32_t>> Reduce(std::vector<std::vector<uint32_t>> predecessors, uint32_t bound);

}  // namespace engine::detail
