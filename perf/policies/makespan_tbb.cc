// oneTBB's flow graph of continue_nodes, run again and again. The waiting thread is one of the team.
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <deque>

#include "makespan.h"

namespace {

using namespace perf;
using Node = tbb::flow::continue_node<tbb::flow::continue_msg>;

class TbbFlow {
 public:
  TbbFlow(const Config& config, const Program& program)
      : threads_(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(config.workers)),
        arena_(config.workers, 1) {
    arena_.execute([&] {
      graph_ = std::make_unique<tbb::flow::graph>();
      std::vector<char> waits(program.cost.size());
      for (const double cost : program.cost)
        nodes_.emplace_back(*graph_, [cost](const tbb::flow::continue_msg& msg) {
          Work(cost);
          return msg;
        });
      for (const auto& e : program.edges) {
        tbb::flow::make_edge(nodes_[e.from], nodes_[e.to]);
        waits[e.to] = 1;
      }
      for (std::size_t n = 0; n < nodes_.size(); ++n)
        if (!waits[n]) roots_.push_back(&nodes_[n]);
    });
  }
  void Prepare() {
    for (int i = 0; i < 10; ++i) Step();
  }
  void Step() {
    arena_.execute([&] {
      for (Node* root : roots_) root->try_put(tbb::flow::continue_msg());
      graph_->wait_for_all();
    });
  }

 private:
  tbb::global_control threads_;
  tbb::task_arena arena_;
  std::unique_ptr<tbb::flow::graph> graph_;
  std::deque<Node> nodes_;  // never moves a node
  std::vector<Node*> roots_;
};

}  // namespace

int main(int argc, char** argv) { return perf::MakespanMain<TbbFlow>(argc, argv); }
