// oneTBB flow graph of continue_nodes: a push adds a node and its edges, and the wait runs the graph.
// Threads:   an arena with one slot for the pushing thread, which also runs nodes while it waits.
// Ownership: nodes live until Clear(), which is not timed; a rerun uses the same nodes.
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <deque>
#include <memory>
#include <vector>

#include "hand_deps.h"
#include "runner.h"

namespace {

using namespace perf;
using Node = tbb::flow::continue_node<tbb::flow::continue_msg>;

class TbbFlow {
 public:
  explicit TbbFlow(const Config& config)
      : threads_(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(Threads(config))),
        arena_(Threads(config), 1) {
    Clear();
  }

  std::string WhyNot(std::string_view name) const {
    if (name == kPushLatency) return "a push only adds a node; the whole graph is run afterwards";
    if (name == kDisjoint || name == kOverlap) return "a graph is built by one thread";
    return {};
  }

  template <class F>
  void Session(F&& body) {
    arena_.execute(body);
  }
  template <class AnyOp>
  void Push(const AnyOp& op) {
    Add(op, [](const tbb::flow::continue_msg& msg) {
      Body();
      return msg;
    });
  }
  void PushBlocked(VarId v, Gate& gate) {
    Add(Writer{{}, {v}}, [&gate](const tbb::flow::continue_msg& msg) {
      gate.wait();
      return msg;
    });
  }
  void WaitAll() { Rerun(); }
  void Wait(VarId) { Rerun(); }

  void Rerun() {
    for (Node* root : roots_) root->try_put(tbb::flow::continue_msg());
    graph_->wait_for_all();
  }
  void Clear() {
    deps_.Clear();
    roots_.clear();
    nodes_.clear();
    graph_ = std::make_unique<tbb::flow::graph>();
  }

 private:
  // Variant "alone": only the calling thread.
  static int Threads(const Config& config) { return config.variant == "alone" ? 1 : config.Team(); }

  template <class AnyOp, class F>
  void Add(const AnyOp& op, F&& body) {
    Node& node = nodes_.emplace_back(*graph_, body);
    before_.clear();
    deps_.Collect(op, before_);
    for (Node* earlier : before_) tbb::flow::make_edge(*earlier, node);
    if (before_.empty()) roots_.push_back(&node);
    deps_.Record(op, &node);
  }

  tbb::global_control threads_;
  tbb::task_arena arena_;
  std::unique_ptr<tbb::flow::graph> graph_;
  std::deque<Node> nodes_;  // never moves a node
  std::vector<Node*> roots_;
  std::vector<Node*> before_;
  HandDeps<Node*> deps_;
};

}  // namespace

int main(int argc, char** argv) { return perf::Main<TbbFlow>(argc, argv); }
