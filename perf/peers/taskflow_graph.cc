// Taskflow's static graphs: a push adds a task and its edges, and the wait runs the graph.
// Threads:   the executor's workers; the pushing thread is not one of them.
// Ownership: tasks live until Clear(), which is not timed; a rerun uses the same tasks.
#include <taskflow/taskflow.hpp>

#include <vector>

#include "hand_deps.h"
#include "runner.h"

namespace {

using namespace perf;

class TaskflowGraph {
 public:
  explicit TaskflowGraph(const Config& config) : executor_(static_cast<std::size_t>(config.workers)) {}

  std::string WhyNot(std::string_view name) const {
    if (name == kPushLatency) return "a push only adds a node; the whole graph is run afterwards";
    if (name == kDisjoint || name == kOverlap) return "a graph is built by one thread";
    return {};
  }

  template <class AnyOp>
  void Push(const AnyOp& op) {
    Add(op, Body);
  }
  void PushBlocked(VarId v, Gate& gate) {
    Add(Writer{{}, {v}}, [&gate] { gate.wait(); });
  }
  void WaitAll() { Rerun(); }
  void Wait(VarId) { Rerun(); }

  void Rerun() { executor_.run(graph_).wait(); }
  void RerunMany(std::size_t runs) { executor_.run_n(graph_, runs).wait(); }
  void Clear() {
    deps_.Clear();
    graph_.clear();
  }

 private:
  template <class AnyOp, class F>
  void Add(const AnyOp& op, F&& body) {
    tf::Task task = graph_.emplace(body);
    before_.clear();
    deps_.Collect(op, before_);
    for (tf::Task& earlier : before_) earlier.precede(task);
    deps_.Record(op, task);
  }

  tf::Executor executor_;
  tf::Taskflow graph_;
  std::vector<tf::Task> before_;
  HandDeps<tf::Task> deps_;
};

}  // namespace

int main(int argc, char** argv) { return perf::Main<TaskflowGraph>(argc, argv); }
