// Graph: a recorded program, built by hand or captured, to be compiled into a Plan (plan.h) and replayed.
//
//   engine::Graph graph;
//   engine::ValueId x = graph.Input<Tensor>("x");
//   engine::NodeId y = graph.Add({.name = "dense", .inputs = {x}}, reads(weights),
//                                [](const Tensor& in, const Tensor& w) { return Dot(in, w); });
//   graph.Output(y[0]);
//   engine::Plan plan = graph.Compile(eng);
//
//   engine::Capture capture(graph);   // a Submitter: the same code that pushes to an engine records itself
//   Step(capture);
//
// A node has values (inputs and outputs that live for one run) and effects on Vars (state that lasts). Node B depends
// on node A if a value leads from A to B, if both share a Var that one of them changes and A was recorded first, or if
// Order() says so. The dependencies never depend on what had finished during the recording.
//
// Threads:   a Graph is built by one thread at a time. Runs share its kernels, so a kernel may run concurrently with
//            itself.
// Ownership: a graph keeps its kernels and handles of its Vars.
// Errors:    UsageError for a value of another graph, a null Var, a wrong number of inputs; see Compile for the rest.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <vector>

#include "engine/engine.h"
#include "engine/node.h"
#include "engine/submitter.h"
#include "engine/typed_node.h"

namespace engine {

class Graph;
class Plan;
struct PlanOptions;

namespace detail {
struct Kernel;

template <class F>
concept SyncKernel = !TypedKernel<F> && (std::is_invocable_v<std::decay_t<F>&, NodeContext&> || SyncBody<F>);
template <class F>
concept AsyncKernel = std::is_invocable_v<std::decay_t<F>&, NodeContext&, Completion>;

// Inside a plan, every body gets a NodeContext.
template <class F>
struct KernelBody {
  F fn;
  void operator()(RunContext& ctx)
    requires SyncKernel<F>
  {
    if constexpr (std::is_invocable_v<F&, NodeContext&>) {
      fn(static_cast<NodeContext&>(ctx));
    } else if constexpr (std::is_invocable_v<F&, RunContext&>) {
      fn(ctx);
    } else {
      fn();
    }
  }
  void operator()(RunContext& ctx, Completion done)
    requires AsyncKernel<F>
  {
    fn(static_cast<NodeContext&>(ctx), std::move(done));
  }
};
}  // namespace detail

class Graph {
 public:
  Graph();
  Graph(const Graph&);  // the copy shares the kernels
  Graph(Graph&&) noexcept;
  Graph& operator=(const Graph&);
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  // Adds a value that each run is given. If `type` is not null, a run that brings an object of another type is refused.
  ValueId Input(Name name, const std::type_info* type = nullptr);
  template <class T>
  ValueId Input(Name name) {
    return Input(name, &typeid(T));
  }
  // Adds a node whose function takes its inputs and returns its outputs: fn(const X&, Y) -> Z. See typed_node.h.
  // UsageError: the function takes another number of inputs, or an input that is known to be of another type; `outputs`
  // is neither 0 nor the number of the function's results.
  template <detail::TypedKernel F>
  NodeId Add(const NodeDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return AddTyped(desc, detail::TypedKernelBody<std::decay_t<F>>{std::forward<F>(fn), {}}, site);
  }
  // The same with Data: Add({.inputs = {x}}, reads(w), [](const X&, const W&) -> Z {...}). See data.h.
  template <class... Args>
    requires detail::TypedPush<Args...>
  NodeId Add(NodeDesc desc, Args&&... args) {
    const auto make = [&]<class F, class First, class... Uses>(F&& fn, const First& first, const Uses&... uses) {
      VarRef vars[] = {first.var, uses.var...};
      detail::NameUses(desc, vars, first.site, first, uses...);
      using Body = detail::TypedKernelBody<std::decay_t<F>, First, Uses...>;
      return AddTyped(desc, Body{std::forward<F>(fn), {first.Pin(), uses.Pin()...}}, first.site);
    };
    return detail::BodyFirst(make, std::forward<Args>(args)...);
  }
  // Adds a node: fn(NodeContext&), or what Submitter::Push takes.
  template <detail::SyncKernel F>
  NodeId Add(const NodeDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return AddNode(desc, detail::RefClosure(detail::KernelBody<std::decay_t<F>>{std::forward<F>(fn)}), site);
  }
  // Adds a node that ends when its Completion is called: fn(NodeContext&, Completion).
  template <detail::AsyncKernel F>
  NodeId AddAsync(const NodeDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return AddNode(desc, detail::RefClosure<true>(detail::KernelBody<std::decay_t<F>>{std::forward<F>(fn)}), site);
  }
  // Adds a node of another graph, with its kernel, effects and description, over values of this graph. With `place` it
  // runs there instead.
  NodeId AddCopy(const Graph& from, uint32_t node, std::span<const ValueId> inputs,
                 std::optional<Placement> place = {});
  // Adds all nodes of another graph (of a plan's: Plan::graph) over values of this graph. Returns the values that are
  // the other graph's outputs here.
  std::vector<ValueId> AddGraph(const Graph& inner, std::span<const ValueId> inputs);
  // Node `before` ends before node `after` starts, whatever the two touch.
  void Order(NodeId before, NodeId after);
  // Makes a value an output of a run. Outputs are numbered in the order of these calls.
  void Output(ValueId value);

  // --- what was recorded

  struct Node {
    Name name;
    Name cost_key;
    Site site;
    Placement place;
    GraphKey graph;
    int priority = 0;
    int threads = 0;
    bool async = false;
    bool run_always = false;
    bool collective = false;
    std::vector<ValueId> inputs;
    std::vector<ValueId> outputs;
    std::vector<Effect> effects;  // each Var once, in the caller's order
    std::shared_ptr<detail::Kernel> kernel;
    std::shared_ptr<std::atomic<bool>> cancelled;  // flag of the node's cancel scope, or null
  };
  struct ValueInfo {
    Name name;                                 // of an input
    const std::type_info* type = nullptr;      // of an input; null: any
    const std::type_info* returned = nullptr;  // of an output of a typed node; null: not known
    uint32_t producer = UINT32_MAX;            // number of the node that makes it; UINT32_MAX: an input
    std::vector<uint32_t> consumers;           // nodes, ascending
  };
  struct Edge {
    enum class Kind : uint8_t { kValue, kVar, kOrder };
    uint32_t from;
    uint32_t to;
    Kind kind;
    friend bool operator==(const Edge&, const Edge&) noexcept = default;
  };
  const std::vector<Node>& nodes() const noexcept { return nodes_; }
  const std::vector<ValueInfo>& values() const noexcept { return values_; }
  const std::vector<ValueId>& inputs() const noexcept { return inputs_; }
  const std::vector<ValueId>& outputs() const noexcept { return outputs_; }
  // All dependencies: each pair of nodes once, with its strongest reason (value before Var before order), ascending by
  // (to, from). Includes dependencies that follow from others; Compile removes those.
  std::vector<Edge> Edges() const;

  // Makes the graph ready to run on `eng`. UsageError: a cycle (made by Order; the error names each node of it), Vars
  // of another engine, more Vars than an op may name, an unknown pool. The graph may be used and compiled again.
  Plan Compile(Engine& eng, const PlanOptions& options) const;
  Plan Compile(Engine& eng) const;

 private:
  friend class Capture;
  NodeId AddNode(const NodeDesc& desc, detail::ClosureRef fn, Site site);
  template <class Body>
  NodeId AddTyped(const NodeDesc& desc, Body body, Site site) {
    return AddChecked(desc, detail::RefClosure(std::move(body)), Body::kInputs, Body::Outputs::kTypes, site);
  }
  // A null entry of `types` accepts any type.
  NodeId AddChecked(NodeDesc desc, detail::ClosureRef fn, std::span<const std::type_info* const> inputs,
                    std::span<const std::type_info* const> outputs, Site site);
  NodeId Append(Node node, std::span<const ValueId> inputs, uint32_t outputs);
  void CheckValue(ValueId value, const char* what, Name node, Site site) const;
  bool IsOther(uint32_t graph) const { return graph != 0 && graph != number_; }

  uint32_t number_;  // in the process; copies have the same
  std::vector<Node> nodes_;
  std::vector<ValueInfo> values_;
  std::vector<ValueId> inputs_;
  std::vector<ValueId> outputs_;
  std::vector<Edge> orders_;  // the pairs of Order()
};

// Capture: records pushes into a graph instead of running them. The bodies must be able to run more than once.
// Threads: one at a time.
class Capture final : public Submitter {
 public:
  explicit Capture(Graph& graph) noexcept : graph_(graph) {}

 private:
  void Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) override;
  Graph& graph_;
};

}  // namespace engine
