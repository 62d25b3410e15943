// Plans under cost_model, or under "threaded" if the variant says so. Variant "wide": cost_model, and nodes that were recorded with
// two threads may use two.
#include <engine/spi/cost_model.h>

#include "makespan.h"

namespace {

using namespace perf;

class Ours {
 public:
  Ours(const Config& config, const Program& program) : engine_(Engine(config)), variant_(config.variant) {
    engine::Graph graph;
    for (size_t n = 0; n < program.cost.size(); ++n) {
      const double cost = program.cost[n], two = n < program.with_two.size() ? program.with_two[n] : 0;
      if (variant_ == "wide" && two > 0) {
        graph.Add({.name = "wide", .threads = 2}, [cost, two](engine::NodeContext& ctx) {
          constexpr size_t kPieces = 8;
          ctx.ParallelFor(kPieces, 1, [&](size_t begin, size_t end) {
            Work(end - begin == kPieces ? cost : two * 2 * static_cast<double>(end - begin) / kPieces);
          });
        });
      } else {
        graph.Add({.name = "node"}, [cost] { Work(cost); });
      }
    }
    for (const auto& e : program.edges) graph.Order({e.from, 0, 0}, {e.to, 0, 0});
    plan_ = graph.Compile(*engine_);
  }
  void Prepare() {
    if (variant_ == "threaded") {
      for (int i = 0; i < 10; ++i) Step();
      return;
    }
    engine_->SetPolicy(engine::Policy::kCostModel, {.start_step = 5, .stop_step = 35});
    for (int i = 0; i < 1000 && State() != Scheduled::kScheduled && State() != Scheduled::kWentBack; ++i) Step();
    std::fprintf(stderr, "%s\n", engine::Explain(plan_).said.c_str());  // the log
  }
  void Step() { plan_.Start().Wait(); }
  double Kept() const { return variant_ == "threaded" ? 1 : State() == Scheduled::kScheduled; }

 private:
  using Scheduled = engine::Explanation::State;
  Scheduled State() const { return engine::Explain(plan_).state; }
  // One engine for all programs, because the workers of several would disturb each other.
  static std::shared_ptr<engine::Engine> Engine(const Config& config) {
    static std::weak_ptr<engine::Engine> shared;
    auto engine = shared.lock();
    if (engine) return engine;
    engine::EngineOptions options = engine::EngineOptions::FromEnv();
    options.workers = config.workers;
    shared = engine = std::make_shared<engine::Engine>(options);
    return engine;
  }
  std::shared_ptr<engine::Engine> engine_;
  const std::string variant_;
  engine::Plan plan_;
};

}  // namespace

int main(int argc, char** argv) { return perf::MakespanMain<Ours>(argc, argv); }
