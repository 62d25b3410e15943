// Graph: a recorded program, built by hand or captured, to be compiled into a Plan (plan.h) and replayed.
//
//   engine::Graph graph;
//   engine::ValueId x = graph.Input<Tensor>("x");
//   engine::NodeId y = graph.Add({.name = "dense", .inputs = {x}, .outputs = 1, .reads = {w}},
//                                [&](engine::NodeContext& ctx) { ctx.Return(0, Dot(ctx.In<Tensor>(0), weights)); });
//   graph.Output(y[0]);
//   engine::Plan plan = graph.Compile(eng);
//
//   engine::Capture capture(graph);   // a Submitter: the same code that pushes to an engine records itself
//   Step(capture);
//
// A node has values (inputs and outputs that live for one run) beside effects on Vars (state that lasts). What depends
// on what follows from values, from the order in which nodes that share a Var were recorded, and from Order(); never
// from what had finished while it was recorded.
//
// Threads:   a Graph is built by one thread at a time. Kernels are shared by runs and may run concurrently with
//            themselves. Ownership: a graph keeps its kernels and handles of its Vars.
// Errors:    UsageError for a value of another graph, a null Var, a wrong number of inputs; see Compile for the rest.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <vector>

#include "engine/engine.h"
#include "engine/submitter.h"
#include "engine/value.h"

namespace engine {

class Graph;
class Plan;
struct PlanOptions;

namespace detail {
struct Kernel;
struct RunState;

// What a plan's arrays say of a node; here because its kernel looks its values up.
struct alignas(64) PlanNode {
  enum Flags : uint8_t { kEndsLater = 1, kAlways = 2, kHasScope = 4, kWatched = kEndsLater | kHasScope };
  void (*run)(void* closure, RunContext& ctx, Completion* done);
  void* closure;
  const char* name;
  const char* file;
  uint32_t line;
  uint32_t recorded;  // its number in the graph
  // Where its lists begin; they end where the next node's begin.
  uint32_t inputs, outputs, effects, ends;
  uint8_t flags;
};
static_assert(sizeof(PlanNode) == 64);
}  // namespace detail

// A value of one graph: an input of it, or an output of one of its nodes.
struct ValueId {
  uint32_t index = UINT32_MAX;
  friend bool operator==(ValueId, ValueId) noexcept = default;
};

// A node of one graph, and its outputs. Nodes are numbered in the order in which they were recorded.
struct NodeId {
  uint32_t index = UINT32_MAX;
  uint32_t first_output = 0;
  uint32_t outputs = 0;
  ValueId operator[](uint32_t output) const noexcept { return {output < outputs ? first_output + output : UINT32_MAX}; }
};

struct Effect {
  Var var;
  Role role;
  friend bool operator==(const Effect&, const Effect&) noexcept = default;
};

// Written in the call that adds the node; the fields that OpDesc has mean the same.
struct NodeDesc {
  Name name = {};
  std::vector<ValueId> inputs = {};
  uint32_t outputs = 0;
  VarSet reads = {};
  VarSet updates = {};
  VarSet writes = {};
  Placement place = {};
  int priority = 0;
  bool run_always = false;
  CancelScope* cancel = nullptr;  // none: the calling thread's current scope, if it has one
  Name cost_key = {};             // nodes of one key share their measured cost; "": a key of its own, from the name
  GraphKey graph = {};            // on a device, under PlanOptions::static_alloc: see plan.h
  bool collective = false;        // every process runs such nodes in one order: SmartStage leaves them in the step
};

// What a kernel sees. Values are this node's, by position.
class NodeContext : public RunContext {
 public:
  size_t inputs() const noexcept { return (node_ + 1)->inputs - node_->inputs; }
  Value& In(size_t input) {
    if (input >= inputs()) [[unlikely]]
      NoSuchInput(input);
    return values_[input_list_[node_->inputs + input]];
  }
  template <class T>
  T& In(size_t input) {
    if (T* held = In(input).template If<T>()) [[likely]]
      return *held;
    WrongInput(input, typeid(T));
  }
  // Moves the input out. Only the value's one consumer may (UsageError).
  template <class T>
  T Take(size_t input) {
    CheckTake(input);
    T taken(std::move(In<T>(input)));
    In(input).Reset();
    return taken;
  }
  size_t outputs() const noexcept { return (node_ + 1)->outputs - node_->outputs; }
  // The place of an output. Under PlanOptions::static_alloc it still holds what the frame's run before left there.
  Value& Out(size_t output) {
    if (output >= outputs()) [[unlikely]]
      NoSuchOutput(output);
    return values_[output_list_[node_->outputs + output]];
  }
  template <class T>
  void Return(size_t output, T&& object) {
    Out(output) = Value(std::forward<T>(object));
  }
  // The output as a T that is made once a run, or, under static_alloc, once a frame and then used again.
  template <class T>
  T& Reuse(size_t output) {
    Value& out = Out(output);
    if (T* held = out.If<T>()) return *held;
    return out.Emplace<T>();
  }

 private:
  friend class detail::EngineCore;
  NodeContext(detail::EngineCore* core, detail::OpRecord* op, int worker, detail::RunState* run) noexcept;
  [[noreturn]] void NoSuchInput(size_t input) const;
  [[noreturn]] void NoSuchOutput(size_t output) const;
  [[noreturn]] void WrongInput(size_t input, const std::type_info& wanted);
  void CheckTake(size_t input) const;
  detail::RunState* const run_;
  Value* const values_;  // the run's
  const uint32_t* const input_list_;
  const uint32_t* const output_list_;
  const detail::PlanNode* node_ = nullptr;
};

namespace detail {
template <class F>
concept SyncKernel = std::is_invocable_v<std::decay_t<F>&, NodeContext&> || SyncBody<F>;
template <class F>
concept AsyncKernel = std::is_invocable_v<std::decay_t<F>&, NodeContext&, Completion>;

// Every body that a plan runs is given a NodeContext.
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
  Graph(const Graph&);  // shares the kernels
  Graph(Graph&&) noexcept;
  Graph& operator=(const Graph&);
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  // A value that each run is given. With a type, a run that brings another one is refused.
  ValueId Input(Name name, const std::type_info* type = nullptr);
  template <class T>
  ValueId Input(Name name) {
    return Input(name, &typeid(T));
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
  // A node of another graph with its kernel, effects and description, over values of this one; `place`: elsewhere.
  NodeId AddCopy(const Graph& from, uint32_t node, std::span<const ValueId> inputs,
                 std::optional<Placement> place = {});
  // All nodes of another graph (a plan's: Plan::graph), over values of this one; returns what its outputs are here.
  std::vector<ValueId> AddGraph(const Graph& inner, std::span<const ValueId> inputs);
  // `before` ends before `after` starts, whatever they touch.
  void Order(NodeId before, NodeId after);
  // Marks a value as a result of a run, in the order of the calls.
  void Output(ValueId value);

  // --- what was recorded

  struct Node {
    Name name;
    Name cost_key;
    Site site;
    Placement place;
    GraphKey graph;
    int priority = 0;
    bool async = false;
    bool run_always = false;
    bool collective = false;
    std::vector<ValueId> inputs;
    std::vector<ValueId> outputs;
    std::vector<Effect> effects;  // each Var once, in the caller's listing
    std::shared_ptr<detail::Kernel> kernel;
    std::shared_ptr<std::atomic<bool>> cancelled;  // of its scope, or null
  };
  struct ValueInfo {
    Name name;                             // of an input
    const std::type_info* type = nullptr;  // null: any
    uint32_t producer = UINT32_MAX;        // node; UINT32_MAX: an input
    std::vector<uint32_t> consumers;       // nodes, ascending
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
  // Dependencies: each pair once, its strongest reason first (value, Var, order), ascending by (to, from).
  // What follows from others is included; Compile removes that.
  std::vector<Edge> Edges() const;

  // Makes it ready to run on `eng`. UsageError: a cycle (by Order; named node by node), Vars of another engine, more Vars
  // than an op may name, an unknown pool. The graph may be used and compiled again.
  Plan Compile(Engine& eng, const PlanOptions& options) const;
  Plan Compile(Engine& eng) const;

 private:
  friend class Capture;
  NodeId AddNode(const NodeDesc& desc, detail::ClosureRef fn, Site site);
  NodeId Append(Node node, std::span<const ValueId> inputs, uint32_t outputs);
  void CheckValue(ValueId value, const char* what, Name node, Site site) const;

  std::vector<Node> nodes_;
  std::vector<ValueInfo> values_;
  std::vector<ValueId> inputs_;
  std::vector<ValueId> outputs_;
  std::vector<Edge> orders_;  // as given
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
