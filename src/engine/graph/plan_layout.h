// PlanLayout: a graph put in the order in which it is replayed. Pure: takes values, returns values, knows no engine.
//
// Nodes are merged into tasks (chains, or the batches of a schedule), tasks are numbered in topological order, and the
// nodes of a task lie side by side. Edges are those between tasks, without what follows from others.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan.h"

namespace engine::detail {

inline constexpr uint32_t kNoIndex = UINT32_MAX;

struct PlanLayout {
  struct Task {
    uint32_t first, end;               // nodes, by position
    std::vector<uint32_t> successors;  // the one to run next comes last
    uint32_t predecessors = 0;
  };
  // The last use of a value or Var: after it the value is destroyed, the Var released. With several nodes that may be
  // the last, each counts down, and the one that comes last does it.
  struct End {
    uint32_t what;     // a value, or kVarEnd + place in `vars`
    uint32_t counter;  // kNoIndex: this node alone
  };
  static constexpr uint32_t kVarEnd = uint32_t{1} << 31;

  std::vector<uint32_t> order;  // position -> node as recorded
  std::vector<Task> tasks;
  std::vector<std::vector<End>> ends;  // by position
  std::vector<uint32_t> counters;      // initial counts: of tasks with several predecessors first, then of ends
  std::vector<uint32_t> task_counter;  // by task; kNoIndex
  std::vector<uint32_t> by_urgency;    // tasks, the most urgent first; empty: the schedule has no ranks
  std::vector<Var> vars;               // that the graph names
  std::vector<Role> modes;             // of a whole run, by place in `vars`
};

// Throws UsageError for a cycle, and for a schedule that does not fit.
PlanLayout LayOut(const Graph& graph, const PlanOptions& options);

// The edges without those that follow from others, as predecessors by node. `bound` limits the search for each node: what is
// not found within it is kept, which costs a little time and is never wrong.
std::vector<std::vector<uint32_t>> Reduce(std::vector<std::vector<uint32_t>> predecessors, uint32_t bound);

}  // namespace engine::detail
