// This engine's plans on the replay cases of peers/.
// Threads:   `workers` of the engine's own, and not the thread that starts runs; under "inline" only that thread.
// Variants: "": the edges that the peers get. "vars": the same program captured, with a Var for each that it names,
// which also orders the runs among other ops. "inline": the policy. "waits": each run is waited for before the next one
// starts. "loop": no engine, the kernels are called in a row. "static", "inline_static": static_alloc and static_shape.
#include <engine/plan.h>

#include <functional>
#include <string>
#include <vector>

#include "peers/hand_deps.h"
#include "peers/runner.h"

namespace {

using namespace perf;

class Plans {
 public:
  explicit Plans(const Config& config) : variant_(config.variant), engine_(Options(config)) {
    for (VarId v = 0; v < kAllVars; ++v) vars_.push_back(engine_.NewVar());
  }

  std::string WhyNot(std::string_view name) const {
    return name.starts_with(kReplay) || name == "startup" || name == "short_steps"
               ? std::string()
               : "plans are measured by their replay";
  }

  template <std::size_t R, std::size_t U>
  void Push(const Op<R, U>& op) {
    if (variant_ == "loop") return kernels_.push_back([] { Body(); });
    if (variant_ == "vars") {
      std::vector<engine::Var> reads, updates;
      for (const VarId v : op.reads) reads.push_back(vars_[v]);
      for (const VarId v : op.updates) updates.push_back(vars_[v]);
      return engine::Capture(graph_).Push({.name = "node", .reads = reads, .updates = updates}, [] { Body(); });
    }
    const engine::NodeId node = graph_.Add({.name = "node"}, [] { Body(); });
    before_.clear();
    deps_.Collect(op, before_);
    for (const engine::NodeId& earlier : before_) graph_.Order(earlier, node);
    deps_.Record(op, node);
  }
  void PushBlocked(VarId, Gate&) {}
  void WaitAll() { engine_.WaitAll(); }
  void Wait(VarId) {}

  void Rerun() {
    if (variant_ == "loop") {
      for (const auto& kernel : kernels_) kernel();
      return;
    }
    if (!plan_) plan_ = graph_.Compile(engine_);
    plan_.Start().Wait();
  }
  // Several runs are in flight, as in a training loop that does not look at each step's result at once; with "waits"
  // one run.
  void RerunMany(std::size_t runs) {
    if (variant_ == "loop" || variant_ == "waits") {
      for (std::size_t i = 0; i < runs; ++i) Rerun();
      return;
    }
    constexpr std::size_t kAtOnce = 16;
    std::vector<engine::Run> before, now;
    for (std::size_t i = 0; i < runs; ++i) {
      now.push_back(plan_.Start());
      if (now.size() < kAtOnce) continue;
      if (!before.empty()) before.back().Wait();
      before.swap(now);
      now.clear();
    }
    engine_.WaitAll();
  }
  // A short step: five rows of six nodes, each behind the row before, of 5 us each. Between two steps the program does 30 us of
  // something else, which is not counted.
  Answer ShortSteps(std::size_t runs) {
    const auto work = [](std::chrono::microseconds how_long) {
      for (const auto end = Clock::now() + how_long; Clock::now() < end;) {
      }
    };
    engine::Graph graph;
    std::vector<engine::NodeId> before, row;
    for (int rows = 0; rows < 5; ++rows, before.swap(row)) {
      row.clear();
      for (int i = 0; i < 6; ++i) {
        row.push_back(graph.Add({.name = "node"}, [work] { work(std::chrono::microseconds(5)); }));
        for (const engine::NodeId& earlier : before) graph.Order(earlier, row.back());
      }
    }
    const engine::Plan plan = graph.Compile(engine_);
    const uint64_t woken = engine_.stats().wakeups;
    double ns = 0;
    for (std::size_t i = 0; i < runs; ++i) {
      const auto start = Clock::now();
      plan.Start().Wait();
      ns += NsBetween(start, Clock::now());
      work(std::chrono::microseconds(30));
    }
    const double all = static_cast<double>(runs);
    return {
        {{"step_us", ns / all / 1e3}, {"wakeups_per_step", static_cast<double>(engine_.stats().wakeups - woken) / all}},
        {}};
  }

  // A plan of one node, so that the figure is the start of a run and its end.
  Answer Extra(std::string_view name, std::size_t runs) {
    if (name == "short_steps") return ShortSteps(runs);
    const bool is_static = variant_.ends_with("static");
    engine::Graph graph;
    std::vector<engine::ValueId> inputs;
    for (int i = 0; i < 8; ++i) inputs.push_back(graph.Input<std::size_t>("x"));
    const std::vector<engine::Var> reads(vars_.begin(), vars_.begin() + 8);
    const engine::NodeId node =
        graph.Add({.name = "node", .inputs = inputs, .outputs = 8, .reads = reads}, [](engine::NodeContext& ctx) {
          for (std::size_t i = 0; i < 8; ++i) ctx.Reuse<std::size_t>(i) = ctx.In<std::size_t>(i) + 1;
        });
    for (uint32_t i = 0; i < 8; ++i) graph.Output(node[i]);
    const engine::Plan plan = graph.Compile(engine_, {.static_alloc = is_static, .static_shape = is_static});
    const Meter meter;
    for (std::size_t i = 0; i < runs; ++i) {
      engine::Value given[] = {i, i, i, i, i, i, i, i};
      engine::Run run = plan.Start(given);
      if (run.Output<std::size_t>(7) != i + 1) return Answer::Skip("a wrong result");
    }
    return meter.Stop(runs);
  }
  void Clear() {
    kernels_.clear();
    plan_ = {};
    graph_ = {};
    deps_.Clear();
  }

 private:
  static engine::EngineOptions Options(const Config& config) {
    engine::EngineOptions options;
    options.workers = config.workers;
    if (config.variant.starts_with("inline")) options.policy = engine::Policy::kInline;
    return options;
  }

  const std::string variant_;
  engine::Engine engine_;
  std::vector<engine::Var> vars_;  // their handles go before the engine does
  engine::Graph graph_;
  engine::Plan plan_;
  std::vector<engine::NodeId> before_;
  HandDeps<engine::NodeId> deps_;
  std::vector<std::function<void()>> kernels_;
};

}  // namespace

int main(int argc, char** argv) { return perf::Main<Plans>(argc, argv); }
