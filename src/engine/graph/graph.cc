// Recording: what a graph knows, checked when it is given.
#include "engine/graph.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <unordered_map>

#include "core/core.h"

namespace engine {

using detail::Quote;

static uint32_t NextNumber() {
  static constinit std::atomic<uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

Graph::Graph() : number_(NextNumber()) {}
Graph::Graph(const Graph&) = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(const Graph&) = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

ValueId Graph::Input(Name name, const std::type_info* type) {
  const ValueId id{static_cast<uint32_t>(values_.size()), number_};
  values_.push_back({.name = name, .type = type, .consumers = {}});
  inputs_.push_back(id);
  return id;
}

void Graph::CheckValue(ValueId value, const char* what, Name node, Site site) const {
  if (value.index >= values_.size() || IsOther(value.graph))
    throw UsageError(std::string(what) + " of node " + Quote(node) + " added at " + detail::At(site) +
                     " is no value of this graph, which has " + std::to_string(values_.size()) + " values");
}

NodeId Graph::Append(Node node, std::span<const ValueId> inputs, uint32_t outputs) {
  for (ValueId input : inputs) CheckValue(input, "an input", node.name, node.site);
  const NodeId id{static_cast<uint32_t>(nodes_.size()), static_cast<uint32_t>(values_.size()), outputs, number_};
  node.inputs.assign(inputs.begin(), inputs.end());
  node.outputs.clear();
  for (uint32_t i = 0; i < outputs; ++i) {
    node.outputs.push_back({static_cast<uint32_t>(values_.size()), number_});
    values_.push_back({.name = node.name, .producer = id.index, .consumers = {}});
  }
  for (ValueId input : inputs) {
    std::vector<uint32_t>& consumers = values_[input.index].consumers;
    if (consumers.empty() || consumers.back() != id.index) consumers.push_back(id.index);
  }
  nodes_.push_back(std::move(node));
  return id;
}

namespace {

// Lists each Var once, in its strongest mode: a read or an update together with a write is an update (op.h).
void AddEffect(std::vector<Effect>& effects, Effect effect) {
  for (Effect& e : effects) {
    if (e.var != effect.var) continue;
    if (e.mode != effect.mode) e.mode = AccessMode::kUpdate;
    return;
  }
  effects.push_back(std::move(effect));
}

}  // namespace

NodeId Graph::AddNode(const NodeDesc& desc, detail::ClosureRef fn, Site site) {
  detail::CheckPriority(desc.priority, desc.name, site);
  Node node;
  node.name = desc.name;
  node.cost_key = desc.cost_key;
  node.site = site;
  node.place = desc.place;
  node.graph = desc.graph;
  node.priority = desc.priority;
  node.async = fn.type->async;
  node.run_always = desc.run_always;
  if (desc.threads < 0 || desc.threads > UINT8_MAX)
    throw UsageError("node " + Quote(desc.name) + " added at " + detail::At(site) + " asks for " +
                     std::to_string(desc.threads) + " threads; 0 to 255 are allowed");
  node.threads = desc.threads;
  node.collective = desc.collective;
  const auto add = [&](const VarSet& set, AccessMode mode) {
    for (const VarRef& ref : set) {
      if (!ref)
        throw UsageError(std::string("a null Var among the ") + AccessModeName(mode) + " of node " + Quote(desc.name) +
                         " added at " + detail::At(site) + "; make Vars with Engine::NewVar");
      AddEffect(node.effects, {Var(ref), mode});
    }
  };
  add(desc.reads, AccessMode::kRead);
  add(desc.updates, AccessMode::kUpdate);
  add(desc.writes, AccessMode::kWrite);
  if (const CancelScope* scope = desc.cancel ? desc.cancel : detail::t_scopes.cancel)
    node.cancelled = detail::EngineCore::ScopeOf(*scope);
  node.kernel = std::make_shared<detail::Kernel>(fn);
  return Append(std::move(node), desc.inputs, desc.outputs);
}

NodeId Graph::AddChecked(NodeDesc desc, detail::ClosureRef fn, std::span<const std::type_info* const> inputs,
                         std::span<const std::type_info* const> outputs, Site site) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError("node " + Quote(desc.name) + " added at " + detail::At(site) + " " + why);
  };
  if (desc.inputs.size() != inputs.size())
    refuse("has " + std::to_string(desc.inputs.size()) + " inputs, but its function takes " +
           std::to_string(inputs.size()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckValue(desc.inputs[i], "an input", desc.name, site);
    const ValueInfo& value = values_[desc.inputs[i].index];
    const std::type_info* const known = value.type ? value.type : value.returned;
    if (known && inputs[i] && *known != *inputs[i])
      refuse("has an input " + std::to_string(i) + " of type " + detail::TypeText(known) +
             ", but its function takes it as " + detail::TypeText(inputs[i]));
  }
  if (desc.outputs != 0 && desc.outputs != outputs.size())
    refuse("says outputs = " + std::to_string(desc.outputs) + ", but its function returns " +
           std::to_string(outputs.size()));
  desc.outputs = static_cast<uint32_t>(outputs.size());
  const NodeId id = AddNode(desc, fn, site);
  for (uint32_t i = 0; i < id.outputs; ++i) values_[id[i].index].returned = outputs[i];
  return id;
}

NodeId Graph::AddCopy(const Graph& from, uint32_t node, std::span<const ValueId> inputs,
                      std::optional<Placement> place) {
  if (node >= from.nodes_.size())
    throw UsageError("AddCopy of node " + std::to_string(node) + " of a graph that has " +
                     std::to_string(from.nodes_.size()));
  const Node& source = from.nodes_[node];
  if (inputs.size() != source.inputs.size())
    throw UsageError("AddCopy of node " + Quote(source.name) + " with " + std::to_string(inputs.size()) +
                     " inputs; it has " + std::to_string(source.inputs.size()));
  Node copy = source;
  if (place) copy.place = *place;
  std::vector<const std::type_info*> returned;  // copied: `from` may be this graph
  for (ValueId output : source.outputs) returned.push_back(from.values_[output.index].returned);
  const NodeId id = Append(std::move(copy), inputs, static_cast<uint32_t>(returned.size()));
  for (uint32_t i = 0; i < id.outputs; ++i) values_[id[i].index].returned = returned[i];
  return id;
}

std::vector<ValueId> Graph::AddGraph(const Graph& inner, std::span<const ValueId> inputs) {
  if (inputs.size() != inner.inputs_.size())
    throw UsageError("a graph that takes " + std::to_string(inner.inputs_.size()) + " inputs is nested with " +
                     std::to_string(inputs.size()));
  std::vector<ValueId> here(inner.values_.size());
  for (size_t i = 0; i < inputs.size(); ++i) here[inner.inputs_[i].index] = inputs[i];
  std::vector<NodeId> ids;
  std::vector<ValueId> mapped;
  const auto nodes = static_cast<uint32_t>(inner.nodes_.size());
  for (uint32_t n = 0; n < nodes; ++n) {
    mapped.clear();
    for (ValueId input : inner.nodes_[n].inputs) mapped.push_back(here[input.index]);
    ids.push_back(AddCopy(inner, n, mapped));
    for (uint32_t i = 0; i < ids[n].outputs; ++i) here[inner.nodes_[n].outputs[i].index] = ids[n][i];
  }
  const std::vector<Edge> orders = inner.orders_;  // a copy: `inner` may be this graph
  for (const Edge& e : orders) Order(ids[e.from], ids[e.to]);
  std::vector<ValueId> outputs;
  for (ValueId output : inner.outputs_) outputs.push_back(here[output.index]);
  return outputs;
}

void Graph::Order(NodeId before, NodeId after) {
  if (before.index >= nodes_.size() || after.index >= nodes_.size() || IsOther(before.graph) || IsOther(after.graph))
    throw UsageError("Order names a node that is not of this graph, which has " + std::to_string(nodes_.size()) +
                     " nodes");
  orders_.push_back({before.index, after.index, Edge::Kind::kOrder});
}

void Graph::Output(ValueId value) {
  if (value.index >= values_.size() || IsOther(value.graph))
    throw UsageError("Output of a value that is not of this graph, which has " + std::to_string(values_.size()) +
                     " values");
  outputs_.push_back(value);
}

std::vector<Graph::Edge> Graph::Edges() const {
  std::vector<Edge> edges = orders_;
  struct Users {
    uint32_t writer = UINT32_MAX;
    std::vector<uint32_t> readers;
  };
  std::unordered_map<detail::VarCore*, Users> users;
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    for (ValueId input : nodes_[n].inputs)
      if (const uint32_t from = values_[input.index].producer; from != UINT32_MAX)
        edges.push_back({from, n, Edge::Kind::kValue});
    for (const Effect& effect : nodes_[n].effects) {
      Users& u = users[effect.var.core()];
      if (effect.mode == AccessMode::kRead) {
        if (u.writer != UINT32_MAX) edges.push_back({u.writer, n, Edge::Kind::kVar});
        u.readers.push_back(n);
        continue;
      }
      if (u.readers.empty() && u.writer != UINT32_MAX) edges.push_back({u.writer, n, Edge::Kind::kVar});
      for (uint32_t reader : u.readers) edges.push_back({reader, n, Edge::Kind::kVar});
      u.readers.clear();
      u.writer = n;
    }
  }
  const auto key = [](const Edge& e) { return std::tuple(e.to, e.from, e.kind); };
  std::sort(edges.begin(), edges.end(), [&](const Edge& a, const Edge& b) { return key(a) < key(b); });
  const auto same = [](const Edge& a, const Edge& b) { return a.from == b.from && a.to == b.to; };
  edges.erase(std::unique(edges.begin(), edges.end(), same), edges.end());
  return edges;
}

void Capture::Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  NodeDesc node{.name = desc.name,
                .reads = desc.reads,
                .updates = desc.updates,
                .writes = desc.writes,
                .place = desc.place,
                .priority = desc.priority,
                .run_always = desc.run_always,
                .cancel = desc.cancel,
                .graph = desc.graph};
  graph_.AddNode(node, fn, site);
}

}  // namespace engine
