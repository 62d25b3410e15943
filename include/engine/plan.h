// Plan: a graph made ready to run. Immutable and re-entrant: any number of runs at once, each with a frame of its own.
//
//   engine::Run run = plan.Start(inputs, {.priority = 1});   // returns at once
//   Tensor y = run.Take<Tensor>(0);                          // waits; throws OpError if the run failed
//
// To the engine a run is one op on the plan's Vars, whatever number of nodes it has: it takes its place in the order at
// Start, begins when all its Vars are granted, and releases each Var after the last node that needs it.
// A run counts as one write of each Var that it changes.
//
// Neighbouring nodes on one GPU lane are one task, which is pushed as a bulk. Those behind it on a device, of this run or the
// next, are ordered behind it there; what needs it on the host comes when the device has done it. With PlanOptions::static_alloc and a GraphKey on each of them it is launched as a graph from a frame's third run on:
// the key then speaks of what the bodies do to the frame's values, whose objects stay (NodeContext::Reuse), and of nothing
// that a run brings.
//
// Threads:   Start on any thread, inside ops too. A Run is used by one thread at a time.
// Ownership: plans, runs and frames may outlive the graph; a run that is dropped goes on, and its errors are reported by WaitAll.
//            Frames come from the plan's pool: after warm-up a run allocates nothing.
// Errors:    per node, as for ops (error.h): a node that throws poisons its outputs and the Vars that it would have
//            written; nodes that read these are skipped; the others run. The plan may be run again. Every call on an empty
//            Plan or Run (default-made, moved from, from a TryStart without room) throws UsageError.
// Source:    MXNet's CachedOp (hybridize) and Taskflow's run; each run's order is that of the recorded versions.
#pragma once

#include <chrono>
#include <optional>

#include "engine/graph.h"
#include "engine/timeout.h"

namespace engine {

// What a scheduler decides, by node as recorded. Pure data; empty vectors leave it to the plan.
struct Schedule {
  std::vector<double> rank = {};     // ready nodes with the highest rank first; must not grow along a dependency
  std::vector<uint32_t> batch = {};  // nodes of one number run one after the other as one task; must not form a cycle
};

struct PlanOptions {
  Name name = "plan";
  // Values keep their place and their object from run to run of a frame (NodeContext::Reuse): stable addresses.
  bool static_alloc = false;
  // Inputs are trusted to be of the types that the first run brought: checked once instead of at each Start.
  bool static_shape = false;
  Schedule schedule = {};
};

// When and where a node ran; nanoseconds of the steady clock. begin == end == 0: it was skipped.
struct NodeTime {
  int64_t begin = 0;
  int64_t end = 0;
  int worker = -1;     // -1: a caller's thread, or a device
  int64_t busy = -1;   // processor time of its thread meanwhile, or time on the device; of runs that a cost model
                       // measures, else -1
  uint64_t bytes = 0;  // of its outputs, as these say it (Value::bytes); of an asynchronous node 0
};

struct RunOptions {
  std::optional<Policy> policy = {};  // none: the calling thread's scope, or the engine's
  std::optional<int> priority = {};   // of the whole run among ready ops; none: the highest of its nodes'
  CancelScope* cancel = nullptr;  // none: the calling thread's scope. Nodes not begun are skipped with CancelledError
  // Nodes that have not begun at this time are skipped with DeadlineError.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  // Filled by the run, by node as recorded; it must be as long as the graph and live until the run has ended.
  std::span<NodeTime> times = {};
  // cost_model: runs of another shape class (sizes of what they are given) are measured and scheduled by themselves.
  uint64_t shape = 0;
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
  // Written by the run when it ends: what reads it comes after the run, and inherits its error. For as long as the Run
  // lives; its frame is another run's afterwards.
  const Var& var() const;
  // Waits until every node has settled; throws the OpError of the failed node that was recorded first, each time
  // afresh. Inside an op as Engine::Wait; refused if the run needs a Var that the waiting op itself holds.
  void Wait(Site site = std::source_location::current());
  bool WaitFor(Timeout timeout, Site site = std::source_location::current());
  // Output by position. Waits first.
  Value& Output(size_t output, Site site = std::source_location::current());
  // As Output, but null for a value that a failed node should have made, and no error of the run.
  Value* OutputIf(size_t output, Site site = std::source_location::current());
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

  // Starts a run. The inputs are moved from, unless the call is refused: UsageError for a wrong number or type of inputs,
  // a deleted Var, options that cannot be honoured; BackPressureError.
  engine::Run Start(std::span<Value> inputs = {}, const RunOptions& options = {},
                    Site site = std::source_location::current()) const;

  // As Start, but returns an empty Run, and leaves the inputs, instead of waiting at the soft bound of pending ops.
  engine::Run TryStart(std::span<Value> inputs = {}, const RunOptions& options = {},
                       Site site = std::source_location::current()) const;

  // The same program under another schedule.
  Plan With(Schedule schedule) const;
  // What the policy cost_model knows about this plan (cost_model.h); it is shared by copies of the plan.
  std::shared_ptr<CostModel> cost_model() const;

  // --- what it is

  // Nodes are grouped in tasks: a chain or a batch, which one thread runs in a go. Both are in topological order.
  struct Task {
    std::vector<uint32_t> nodes;       // as recorded
    std::vector<uint32_t> successors;  // tasks, after transitive reduction
    uint32_t predecessors = 0;
    bool device = false;  // a bulk on a device
  };
  const Graph& graph() const;
  const PlanOptions& options() const;
  std::vector<Task> tasks() const;
  size_t edges() const;     // between tasks
  size_t counters() const;  // 4-byte counters of a frame: tasks with several predecessors, shared last uses
  size_t frames() const;    // made so far: the most runs that were alive at once
  // As text: one line a task; as DOT: nodes, effects and dependencies.
  std::string Describe() const;
  std::string Dot() const;

 private:
  friend class Graph;
  engine::Run StartRun(std::span<Value> inputs, const RunOptions& options, Site site, bool may_wait) const;
  detail::PlanCore& Core(const char* call) const;  // refuses an empty Plan
  std::shared_ptr<detail::PlanCore> core_;
};

}  // namespace engine
