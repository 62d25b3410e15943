#include "step_graph.h"

#include <algorithm>

namespace engine::detail {
namespace {

bool IsOutput(const Graph& graph, ValueId value) {
  return std::find(graph.outputs().begin(), graph.outputs().end(), value) != graph.outputs().end();
}

// Why a node stays in the step, besides the reasons that Partition finds; empty: none is known.
std::string Kept(const Graph& graph, const Graph::Node& node, const SmartStageOptions& options) {
  const bool used = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
    return !graph.values()[v.index].consumers.empty() || IsOutput(graph, v);
  });
  if (!used && node.effects.empty())
    return "has neither a result that is used nor an effect: it runs for what nobody declared";
  if (options.stage_subgraph_on_cpu && node.place.kind == Placement::Kind::kGpu)
    return "is placed on a GPU, and stage_subgraph_on_cpu keeps the stage off it";
  for (const Effect& e : node.effects)
    if (e.mode != AccessMode::kRead &&
        std::find(options.input_state.begin(), options.input_state.end(), e.var) == options.input_state.end())
      return "changes Var '" + std::string(e.var.name()) +
             "', which is no input_state: others may look at it between steps";
  return "";
}

}  // namespace

StepGraph ToStepGraph(const Graph& graph, std::span<const ValueId> sourced, const std::vector<bool>& copies,
                      const SmartStageOptions& options) {
  StepGraph step;
  std::vector<const Var*> seen;
  const auto number_of = [&](const Var& var) {
    for (uint32_t i = 0; i < seen.size(); ++i)
      if (*seen[i] == var) return i;
    seen.push_back(&var);
    step.vars.emplace_back(var.name());
    return static_cast<uint32_t>(seen.size() - 1);
  };
  for (uint32_t v = 0; v < graph.values().size(); ++v) {
    const auto& info = graph.values()[v];
    step.values.push_back({.name = info.name.c_str(), .bytes = 0, .fetched = IsOutput(graph, {v})});
  }
  const auto listed = [](const std::vector<uint32_t>& nodes, uint32_t n) {
    return std::find(nodes.begin(), nodes.end(), n) != nodes.end();
  };
  StepGraph::Node& source = step.nodes.emplace_back();
  source.name = "the source";
  source.source = true;
  for (ValueId v : sourced) source.outputs.push_back(v.index);
  for (uint32_t n = 0; n < graph.nodes().size(); ++n) {
    const Graph::Node& node = graph.nodes()[n];
    StepGraph::Node& out = step.nodes.emplace_back();
    out.name = node.name.c_str();
    for (ValueId v : node.inputs) out.inputs.push_back(v.index);
    for (ValueId v : node.outputs) out.outputs.push_back(v.index);
    for (const Effect& e : node.effects) out.effects.push_back({number_of(e.var), e.mode});
    out.target = listed(options.targets, n);
    out.collective =
        node.collective || listed(options.collectives, n) || node.place.kind == Placement::Kind::kCommunicator;
    out.copy = !copies.empty() && copies[n];
    if (out.copy) out.name += ": " + step.values[out.inputs[0]].name;
    out.kept = Kept(graph, node, options);
  }
  for (const Graph::Edge& e : graph.Edges())
    if (e.kind == Graph::Edge::Kind::kOrder) step.nodes[e.to + 1].after.push_back(e.from + 1);
  return step;
}

std::vector<ValueId> BoundaryValues(const Graph& graph, std::span<const ValueId> sourced,
                                    const std::vector<bool>& before, const std::vector<bool>& after) {
  std::vector<ValueId> out;
  for (uint32_t v = 0; v < graph.values().size(); ++v) {
    const Graph::ValueInfo& info = graph.values()[v];
    const bool made = info.producer == UINT32_MAX
                          ? std::find(sourced.begin(), sourced.end(), ValueId{v}) != sourced.end()
                          : before[info.producer];
    if (!made) continue;
    const bool needed = std::any_of(info.consumers.begin(), info.consumers.end(), [&](uint32_t n) { return after[n]; });
    if (needed || IsOutput(graph, {v})) out.push_back({v});
  }
  return out;
}

Graph PartOf(const Graph& graph, const std::vector<bool>& part, std::span<const ValueId> in,
             std::span<const ValueId> out, uint8_t lane) {
  Graph result;
  std::vector<ValueId> here(graph.values().size());
  for (ValueId v : in) here[v.index] = result.Input(graph.values()[v.index].name, graph.values()[v.index].type);
  std::vector<NodeId> ids(part.size());
  std::vector<ValueId> inputs;
  for (uint32_t n = 0; n < part.size(); ++n) {
    if (!part[n]) continue;
    const Graph::Node& node = graph.nodes()[n];
    inputs.clear();
    for (ValueId v : node.inputs) inputs.push_back(here[v.index]);
    std::optional<Placement> place;
    if (node.place.kind == Placement::Kind::kGpu && node.place.lane == Placement::kAnyLane)
      place = Gpu(node.place.index, lane);
    ids[n] = result.AddCopy(graph, n, inputs, place);
    for (uint32_t i = 0; i < node.outputs.size(); ++i) here[node.outputs[i].index] = ids[n][i];
  }
  for (const Graph::Edge& e : graph.Edges())
    if (e.kind == Graph::Edge::Kind::kOrder && part[e.from] && part[e.to]) result.Order(ids[e.from], ids[e.to]);
  for (ValueId v : out) result.Output(here[v.index]);
  return result;
}

}  // namespace engine::detail
