// This engine's plans as a server. Variants: "": the policy inline. "threaded". "vars": inline, and every lookup reads
// a Var, as in a model whose parameters are updated while it serves. "loop": no engine, the kernels are called in a
// row.
// Threads: under inline, those of the clients.
#include <engine/plan.h>

#include <memory>
#include <optional>

#include "load.h"

namespace {

using namespace perf;
using namespace perf::serving;
using Buffer = std::vector<float>;

class Ours {
 public:
  Ours(const Config& config, const Model& model)
      : variant_(config.variant), model_(model), engine_({.workers = config.workers}), parameters_(engine_.NewVar()) {
    engine::Graph graph;
    const engine::ValueId request = graph.Input<const float*>("request");
    std::vector<engine::ValueId> values;
    for (const Node& node : model.nodes()) {
      std::vector<engine::ValueId> inputs;
      for (const int input : node.inputs)
        inputs.push_back(input == kRequest ? request : values[static_cast<std::size_t>(input)]);
      std::vector<engine::Var> reads;
      if (variant_ == "vars" && node.weights) reads.push_back(parameters_);
      const engine::Name name = engine::Name::Intern(node.kind);
      values.push_back(graph.Add({.name = name, .inputs = inputs, .outputs = 1, .reads = reads},
                                 [&node](engine::NodeContext& ctx) { Run(node, ctx); })[0]);
    }
    graph.Output(values.back());
    plan_ = graph.Compile(engine_, {.static_alloc = true, .static_shape = true});
  }

  class Client {
   public:
    explicit Client(Ours& server)
        : plan_(server.plan_),
          policy_(server.variant_ == "threaded" ? engine::Policy::kThreaded : engine::Policy::kInline) {
      if (server.variant_ == "loop") loop_.emplace(server.model_);
    }
    const float* Ask(const float* request) {
      if (loop_) return loop_->Run(request);
      engine::Value inputs[] = {request};
      run_ = plan_.Start(inputs, {.policy = policy_});
      return run_.Output<Buffer>(0).data();
    }

   private:
    const engine::Plan plan_;
    const engine::Policy policy_;
    engine::Run run_;
    std::optional<Loop> loop_;
  };
  Client MakeClient() { return Client(*this); }

 private:
  static void Run(const Node& node, engine::NodeContext& ctx) {
    const float* in[kMostInputs];
    const std::size_t n = node.inputs.size();
    for (std::size_t i = 0; i < n; ++i)
      in[i] = node.inputs[i] == kRequest ? ctx.In<const float*>(i) : ctx.In<Buffer>(i).data();
    Buffer& out = ctx.Reuse<Buffer>(0);
    out.resize(static_cast<std::size_t>(kBatch * node.width));
    node.run(node, in, out.data());
  }

  const std::string variant_;
  const Model& model_;
  engine::Engine engine_;
  engine::Var parameters_;
  engine::Plan plan_;
};

}  // namespace

int main(int argc, char** argv) { return perf::serving::Main<Ours>(argc, argv); }
