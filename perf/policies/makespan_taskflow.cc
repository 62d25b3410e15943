// Taskflow's static graphs, run again and again.
#include <taskflow/taskflow.hpp>

#include "makespan.h"

namespace {

using namespace perf;

class Taskflow {
 public:
  Taskflow(const Config& config, const Program& program) : executor_(Executor(config)) {
    std::vector<tf::Task> tasks;
    for (const double cost : program.cost) tasks.push_back(graph_.emplace([cost] { Work(cost); }));
    for (const auto& e : program.edges) tasks[e.from].precede(tasks[e.to]);
  }
  void Prepare() {
    for (int i = 0; i < 10; ++i) Step();
  }
  void Step() { executor_->run(graph_).wait(); }

 private:
  static std::shared_ptr<tf::Executor> Executor(const Config& config) {
    static auto shared = std::make_shared<tf::Executor>(static_cast<std::size_t>(config.workers));
    return shared;
  }
  std::shared_ptr<tf::Executor> executor_;
  tf::Taskflow graph_;
};

}  // namespace

int main(int argc, char** argv) { return perf::MakespanMain<Taskflow>(argc, argv); }
