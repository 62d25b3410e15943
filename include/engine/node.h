// Node: what is said of a node of a graph when it is added, and what its kernel sees when it runs.
//
// A NodeDesc is written in the call that adds the node (graph.h). A kernel that takes a NodeContext& finds its inputs
// and outputs there by position; a kernel that is written as a function of its inputs gets them as arguments
// (typed_node.h).
//
// Threads:   a NodeContext is valid only inside its kernel's call. The run orders all nodes that touch the same value.
// Errors:    UsageError for an input or output that does not exist or is of another type, and for taking an input that
//            other nodes need.
#pragma once

#include <cstdint>
#include <typeinfo>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/value.h"

namespace engine {

namespace detail {
class Runs;
struct RunState;

// PlanNode: what a plan's arrays say of a node. It is in this header because NodeContext looks the node's values up in
// it.
struct alignas(64) PlanNode {
  enum Flags : uint8_t { kEndsLater = 1, kAlways = 2, kHasScope = 4, kWatched = kEndsLater | kHasScope };
  void (*run)(void* closure, RunContext& ctx, Completion* done);
  void* closure;
  const char* name;
  const char* file;
  uint32_t line;
  uint32_t recorded;  // the node's number in the graph
  // Where the node's lists begin in the plan's arrays. They end where the next node's begin.
  uint32_t inputs, outputs, effects, ends;
  uint8_t flags;
  uint8_t threads;  // the most that its ParallelFor uses, of the run's team; 0: it uses the pool's intra-op threads
};
static_assert(sizeof(PlanNode) == 64);
}  // namespace detail

// A value of one graph: an input of it, or an output of one of its nodes.
struct ValueId {
  uint32_t index = UINT32_MAX;
  uint32_t graph = 0;  // which one, or a copy of it; 0: not said, and then not checked
  friend bool operator==(ValueId a, ValueId b) noexcept { return a.index == b.index; }
};

// A node of one graph, and its outputs. Nodes are numbered in the order in which they were recorded.
struct NodeId {
  uint32_t index = UINT32_MAX;
  uint32_t first_output = 0;
  uint32_t outputs = 0;
  uint32_t graph = 0;  // as in ValueId
  ValueId operator[](uint32_t output) const noexcept {
    return {output < outputs ? first_output + output : UINT32_MAX, graph};
  }
};

struct Effect {
  Var var;
  AccessMode mode;
  friend bool operator==(const Effect&, const Effect&) noexcept = default;
};

// Written in the call that adds the node. The fields that OpDesc has too mean the same here.
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
  CancelScope* cancel = nullptr;  // null: the calling thread's current scope, if it has one
  // How many threads the node's ParallelFor may use at most: those of the run's team that have nothing else to do or have
  // just ended a node, up to 255. Under cost_model the model decides whether one thread or so many. 0: the pool's
  // intra-op threads, which are none of the run's. On a device, and under inline and naive, it changes nothing.
  int threads = 0;
  // Nodes of one key share their measured cost; "": the node has a key of its own, made from its name.
  Name cost_key = {};
  GraphKey graph = {};  // for nodes on a device, under PlanOptions::static_alloc: see plan.h
  // Every process runs such nodes in the same order, so SmartStage leaves them in the step.
  bool collective = false;
};

// What a kernel sees. Inputs and outputs are those of its node, by position.
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
  // Moves the input out. UsageError unless this node is the value's only consumer.
  template <class T>
  T Take(size_t input) {
    CheckTake(input);
    T taken(std::move(In<T>(input)));
    In(input).Reset();
    return taken;
  }
  size_t outputs() const noexcept { return (node_ + 1)->outputs - node_->outputs; }
  // Where the output is put. Under PlanOptions::static_alloc the Value still holds what the previous run of this frame
  // left there.
  Value& Out(size_t output) {
    if (output >= outputs()) [[unlikely]]
      NoSuchOutput(output);
    return values_[output_list_[node_->outputs + output]];
  }
  template <class T>
  void Return(size_t output, T&& object) {
    Out(output) = Value(std::forward<T>(object));
  }
  // The output as a T. The T is made once for each run; under static_alloc once for each frame, and then used again.
  template <class T>
  T& Reuse(size_t output) {
    Value& out = Out(output);
    if (T* held = out.If<T>()) return *held;
    return out.Emplace<T>();
  }

 private:
  friend class detail::Runs;
  NodeContext(detail::EngineCore* core, detail::OpRecord* op, int worker, detail::RunState* run) noexcept;
  [[noreturn]] void NoSuchInput(size_t input) const;
  [[noreturn]] void NoSuchOutput(size_t output) const;
  [[noreturn]] void WrongInput(size_t input, const std::type_info& wanted);
  void CheckTake(size_t input) const;
  detail::RunState* const run_;
  Value* const values_;  // all values of the run
  const uint32_t* const input_list_;
  const uint32_t* const output_list_;
  const detail::PlanNode* node_ = nullptr;
};

}  // namespace engine
