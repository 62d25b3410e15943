// Plan: a graph that was made ready to run. It is immutable, and may have any number of runs at once, each with a frame
// of its own.
//
//   engine::Run run = plan.Start(inputs, {.priority = 1});   // returns at once
//   Tensor y = run.Take<Tensor>(0);                          // waits; throws OpError if the run failed
//
// To the engine a run is one op on the plan's Vars, however many nodes it has: it takes its place in the order at
// Start, and releases each Var after the last node that needs that Var. A run counts as one write of each Var that it
// changes. Each node starts when its own Vars are granted; under inline and naive, for plans with nodes on devices, and
// while a cost model measures, when all the run's Vars are.
//
// Neighbouring nodes on one GPU lane are one task, which is pushed as a bulk. On the device, later nodes of this run
// and of the next run are ordered behind it; nodes on the host that need it start when the device has done it. If
// PlanOptions::static_alloc is set and each of the nodes has a GraphKey, the task is launched as a device graph from
// the third run of a frame on. The GraphKey must then describe what the bodies do to the frame's values, whose objects
// stay (NodeContext::Reuse), and nothing that differs from run to run.
//
// Threads:   Start may be called on any thread, also inside ops. A Run is used by one thread at a time.
// Ownership: plans, runs and frames may outlive the graph. A run whose handle is dropped goes on; WaitAll reports its
//            errors. Frames come from the plan's pool: once there are enough of them, a run allocates nothing.
// Errors:    per node, as for ops (error.h): a node that throws poisons its outputs and the Vars that it would have
//            changed; nodes that read these are skipped; the others run. The plan may be run again. Every call on an
//            empty Plan or Run (default-made, moved from, or returned by a TryStart without room) throws UsageError.
// Source:    MXNet's CachedOp (hybridize) and Taskflow's run. Here each run takes its place in the order of the Vars,
//            as an op does.
#pragma once

#include <chrono>
#include <optional>

#include "engine/graph.h"
#include "engine/timeout.h"

namespace engine {

// Schedule: what a scheduler decides, by the number of the node in the graph. Plain data; an empty vector leaves the
// decision to the plan.
struct Schedule {
  // Of ready nodes the highest rank goes first; a rank must not grow along a dependency.
  std::vector<double> rank = {};
  // Nodes of one number run one after the other, as one task; batches must not form a cycle.
  std::vector<uint32_t> batch = {};
  std::vector<uint8_t> threads = {};  // how many threads each node's ParallelFor may use; instead of NodeDesc::threads
};

struct PlanOptions {
  Name name = "plan";
  // Each value keeps its place and its object from one run of a frame to the next (NodeContext::Reuse), so addresses
  // stay.
  bool static_alloc = false;
  // The types of the inputs are checked at the first run only; later runs trust them.
  bool static_shape = false;
  Schedule schedule = {};
};

// When and where a node ran, in nanoseconds of the steady clock. begin == end == 0: the node was skipped.
struct NodeTime {
  int64_t begin = 0;
  int64_t end = 0;
  int worker = -1;  // -1: a caller's thread, or a device
  // Processor time of the node's thread, or time on the device; -1 unless a cost model measures the run.
  int64_t busy = -1;
  uint64_t bytes = 0;  // size of the node's outputs (Value::bytes); 0 for an asynchronous node
};

struct RunOptions {
  std::optional<Policy> policy = {};  // none: the policy of the calling thread's scope, or else the engine's
  std::optional<int> priority = {};   // of the whole run among ready ops; none: the highest priority of its nodes
  // Null: the calling thread's scope. Nodes that have not begun are skipped with CancelledError.
  CancelScope* cancel = nullptr;
  // Nodes that have not begun at this time are skipped with DeadlineError.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  // The run fills it, by the number of the node. It must be as long as the graph and live until the run has ended.
  std::span<NodeTime> times = {};
  // Output i of the run writes outputs[i], a Var of its own: as soon as the node that makes the output has settled (on a
  // device, or if nodes use the output: when the run ends), with that node's error and no other's. Empty, or as long as
  // the plan's outputs. UsageError: a Var stands twice here or in `inputs`, is among the plan's, or of another engine.
  std::span<const Var> outputs = {};
  // Input i is there once its Var has been written: the run reads it, and nodes that use the input start behind its
  // writers. Nodes that use the input of a poisoned one are skipped. Null: the input is there. Empty, or as long as the
  // plan's inputs. Each Var stands once, as in `outputs`.
  std::span<const Var> inputs = {};
  // For cost_model: runs of different shape classes (sizes of their inputs) are measured and scheduled separately.
  uint64_t shape = 0;
  // Whoever starts the run shows its nodes' errors: by Run::Wait, or by what comes behind the run. WaitAll and
  // on_unobserved leave them out.
  bool shows_errors = false;
};

namespace detail {
struct PlanCore;
struct RunState;
}  // namespace detail

// Run: a run in flight, and its outputs.
class Run {
 public:
  Run() noexcept = default;
  Run(Run&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Run& operator=(Run&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Run();
  explicit operator bool() const noexcept { return state_ != nullptr; }

  bool done() const;
  // The Var that the run writes when it ends: an op that reads it comes after the run, and inherits the run's error.
  // Valid as long as this Run lives; afterwards another run may use the frame and its Var.
  const Var& var() const;
  // Waits until every node has settled. Under threaded and cost_model the waiting thread runs ready nodes of the run
  // meanwhile, in the place of an idle worker. Throws the OpError of the failed node that was recorded first, a new one
  // at each call. Inside an op it runs nothing, and waits as Engine::Wait does; UsageError if the run needs a Var that
  // the waiting op names.
  void Wait(Site site = std::source_location::current());
  bool WaitFor(Timeout timeout, Site site = std::source_location::current());
  // The output of that number. Waits first.
  Value& Output(size_t output, Site site = std::source_location::current());
  // As Output, but returns null, instead of throwing the run's error, if a failed node should have made this output.
  Value* OutputIf(size_t output, Site site = std::source_location::current());
  // The output without a wait, for an op that reads its Var of RunOptions::outputs. Null: a node failed that should have
  // made it.
  Value* Settled(size_t output);
  template <class T>
  T& Output(size_t output, Site site = std::source_location::current()) {
    return Output(output, site).template Get<T>();
  }
  template <class T>
  T Take(size_t output, Site site = std::source_location::current()) {
    return Output(output, site).template Take<T>();
  }

 private:
  friend class Plan;
  explicit Run(detail::RunState* counted) noexcept : state_(counted) {}
  detail::RunState* state_ = nullptr;
};

class CostModel;

class Plan {
 public:
  Plan() noexcept = default;
  Plan(const Plan&) = default;
  Plan(Plan&&) = default;
  Plan& operator=(const Plan&) = default;
  Plan& operator=(Plan&&) = default;
  ~Plan();
  explicit operator bool() const noexcept { return core_ != nullptr; }

  // Starts a run. Moves from the inputs, unless the call is refused. UsageError for a wrong number or type of inputs, a
  // deleted Var, or options that cannot be honoured; BackPressureError at the hard bound.
  engine::Run Start(std::span<Value> inputs = {}, const RunOptions& options = {},
                    Site site = std::source_location::current()) const;

  // As Start; but where Start would wait at the soft bound of pending ops, returns an empty Run and leaves the inputs
  // alone.
  engine::Run TryStart(std::span<Value> inputs = {}, const RunOptions& options = {},
                       Site site = std::source_location::current()) const;

  // The same program under another schedule.
  Plan With(Schedule schedule) const;
  // What the policy cost_model knows about this plan (spi/cost_model.h). Copies of the plan share it.
  std::shared_ptr<CostModel> cost_model() const;

  // --- how the plan is made up

  // The nodes are grouped in tasks: a chain or a batch, which one thread runs in one go. Tasks, and the nodes in them,
  // are in topological order.
  struct Task {
    std::vector<uint32_t> nodes;       // numbers in the graph
    std::vector<uint32_t> successors;  // tasks, after transitive reduction
    uint32_t predecessors = 0;
    bool device = false;  // a bulk on a device
  };
  const Graph& graph() const;
  const PlanOptions& options() const;
  std::vector<Task> tasks() const;
  size_t edges() const;  // between tasks
  // 4-byte counters of a frame: one for each task with several predecessors and for each value with several last users.
  size_t counters() const;
  size_t frames() const;  // made so far, which is the most runs that were alive at once
  // Describe: as text, one line for each task. Dot: as DOT, with nodes, effects and dependencies.
  std::string Describe() const;
  std::string Dot() const;

 private:
  friend class Graph;
  Plan(detail::EngineCore& core, const Graph& graph, const PlanOptions& options);
  engine::Run StartRun(std::span<Value> inputs, const RunOptions& options, Site site, bool may_wait) const;
  detail::PlanCore& Core(const char* call) const;  // throws UsageError for an empty Plan
  std::shared_ptr<detail::PlanCore> core_;
};

}  // namespace engine
