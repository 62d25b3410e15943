// PlanCore: a plan's program, in arrays that a replay walks. RunState: the frame of one run.
//
// Words: a *share* is ready tasks of a run that another worker gets. A *ticket* is an op that stands for a node or task
// which ends on another thread. A run is *in order* if one thread runs the tasks in the plan's order (inline, naive).
// The *team* of a run is the threads that take its ready tasks from one queue (replay_together.cc). The run's *home* is
// the pool of the tasks without a placement.
//
// Threads:   a PlanCore does not change, except its pool of frames. The threads that run a run's tasks use its
//            RunState; the edges order them, so that one of them at a time uses a node's data.
// Ownership: a run in flight and its handle each have a count in `refs`. A run keeps its plan alive; the plan keeps its
//            frames.
// Counters:  a task with several predecessors has a 4-byte counter; whoever arrives last sets it back. While one thread
//            alone runs the tasks, counting needs no read-modify-write; counting becomes atomic before a second thread
//            joins.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/sleeper.h"
#include "core/completion_state.h"
#include "core/device_side.h"
#include "engine/spi/cost_model.h"
#include "engine/spi/rank_queue.h"
#include "graph/gates.h"
#include "graph/plan_layout.h"

namespace engine::detail {

struct WideLoop;

struct PlanTask {
  uint32_t first, end;  // nodes
  uint32_t successors, successors_end;
  uint32_t predecessors;
  uint32_t ticket;   // its place among the tasks that an in-order run does not finish on the spot; kNoIndex: none
  uint32_t urgency;  // its place in the queue of ready tasks; 0 comes first
  uint32_t
      async : 23;  // how many of its last nodes are not over when they have run: 1 if asynchronous; on a device: all
  uint32_t device : 1;  // a bulk on a device (device/plan_tasks.cc)
  uint32_t pool : 8;    // kDefaultPool: the pool that the run's policy says
};
static_assert(sizeof(PlanTask) <= 32);

// An edge. It names the counter, so that a task is looked at only when it is ready.
struct PlanSuccessor {
  uint32_t task;
  uint32_t counter;  // kNoIndex: this is the only edge to the task
};

struct PlanEffect {
  uint32_t var;
  AccessMode mode;
};

// A task on a device whose nodes may be one op, because its graph is there from an earlier run of the frame
// (device/plan_segment.cc). Of other tasks it is empty.
struct PlanSegment {
  Name name;                          // "first ... last (9 nodes)"
  int priority = 0;                   // the highest of its nodes
  std::vector<PlanEffect> effects;    // each Var once, with all that the nodes do with it
  std::vector<PlanLayout::End> ends;  // the Vars that these nodes are the last to need
  bool empty() const { return !*name.c_str(); }
};

struct RunState {
  enum Watch : uint32_t {
    kErrors = 1,
    kCancel = 2,
    kDeadline = 4,
    kTimes = 8,
    kBusy = 16,
    kOutputs = 32,
    kShowsErrors = 64,
    kForked =
        128  // the process is a child that was forked inside a node: no other node runs, and the Vars are not its own
  };

  std::shared_ptr<PlanCore> plan;  // only while a run uses the frame
  PlanCore* owner = nullptr;
  EngineCore* core = nullptr;
  OpRecord* op = nullptr;
  Var done;  // the run writes it when it ends; the handle waits for it. A failed run takes it along: then null
  std::vector<Var> task_vars;            // by ticket of a device task: its task Var, which orders its nodes
  std::vector<std::vector<Var>> behind;  // by ticket of a device task: the task Vars of the device tasks before it
  std::vector<KeptGraph> graphs;         // by ticket of a device task: that of an earlier run. Written by the issuer
  uint64_t frame_key = 0;                // different from that of every other frame ever made
  std::vector<Access*> together;         // what a start that needs it registers (ListTogether)
  Value* values = nullptr;
  std::atomic<uint32_t>* counters = nullptr;
  uint32_t* next = nullptr;        // by task: the next task in a list of ready tasks
  ErrorRecord** errors = nullptr;  // by value, then by Var; all null while kErrors is not in `watch`
  OpRecord** tickets = nullptr;    // of in-order runs
  uint8_t home = 0;                // the pool of the tasks without a placement
  uint8_t level = 0;               // of its ops: their priority
  bool in_order = false;
  bool narrow = false;  // each node uses one thread: a cost model measures what that costs
  std::chrono::steady_clock::time_point deadline{};
  std::span<NodeTime> times;
  Site site;
  // By output: its own Var (RunOptions::outputs) has been released. Empty: the outputs have no Vars of their own. Whoever
  // settles the output's node writes it, and afterwards whoever ends the run.
  std::vector<uint8_t> released;
  std::vector<uint32_t> awaited;  // the inputs that have Vars of their own, by number
  uint32_t first_own = 0;         // in the op's accesses: that of the first output's own Var, or what comes there
  RunGates* gates = nullptr;      // null: it has none
  std::unique_ptr<RunGates> gates_kept;  // the frame's

  // For a run that a cost model measures or compares; else null.
  std::shared_ptr<CostModel> model;
  uint64_t model_step = 0;            // its CostModel::Step::number
  std::vector<NodeTime> model_times;  // what `times` is if the caller gave none
  std::vector<DeviceTimer> timers;    // by node: how long it takes on its device
  std::chrono::steady_clock::time_point began{};

  // One count for the handle, one for the run. acq_rel: whoever drops the last one sees what the others did.
  std::atomic<uint32_t> refs{0};
  // Read, relaxed, in each node: the edges order whoever sets kErrors before all nodes that the error concerns.
  std::atomic<uint32_t> watch{0};
  bool forked() const { return watch.load(std::memory_order_relaxed) & kForked; }
  // Somebody waits for the end of the run's work on devices. seq_cst: see Devices::Ask.
  std::atomic<bool> asked{false};
  // How many tasks have not ended; an asynchronous one counts twice (body, completion). acq_rel: whoever takes it to
  // zero ends the run, and sees what all others did.
  alignas(64) std::atomic<uint32_t> remaining{0};

  // The ready tasks, for the run's team; how many threads are in the team, or invited; how many of them look for a task.
  alignas(64) Mutex ready_mu;
  RankQueue ready GUARDED_BY(ready_mu);
  uint32_t team GUARDED_BY(ready_mu) = 0;
  uint32_t idle GUARDED_BY(ready_mu) = 0;
  WideLoop* wide GUARDED_BY(ready_mu) = nullptr;  // open loops of nodes that may use several threads, the last first
  OpRecord* invitation GUARDED_BY(ready_mu) = nullptr;  // the last share that invites a thread, until that thread comes
  // How many tasks are ready, for a look without the lock. relaxed: whoever takes one locks first.
  std::atomic<uint32_t> ready_count{0};
  std::atomic<bool> wide_open{false};  // whether `wide` has a loop, for a look without the lock; relaxed, likewise
  // A thread that waits for the run takes part in it. relaxed, as a hint for whoever would invite a worker instead; seq_cst
  // where a thread parks: partner is `remaining` (see Runs::Park).
  std::atomic<bool> waiter{false};
  // Who waits for the run, takes part, and sleeps because it found no task: kNobody, kNoIndex (it sleeps), or the task that
  // it has been given. Changes under ready_mu; atomic, because the thread sleeps on it.
  static constexpr uint32_t kNobody = kNoIndex - 1;
  std::atomic<uint32_t> parked{kNobody};
  Sleeper sleeper GUARDED_BY(ready_mu);  // that thread
  // How long the team's threads worked, in nanoseconds. relaxed: `remaining` publishes it to whoever ends the run.
  std::atomic<int64_t> worked{0};

  Mutex mu;
  ErrorRecord* first_error GUARDED_BY(mu) = nullptr;  // counted; the error of the failed node that was recorded first
  uint32_t first_failed GUARDED_BY(mu) = kNoIndex;

  std::unique_ptr<std::byte[], void (*)(std::byte*)> block{nullptr, nullptr};
};

struct PlanCore : std::enable_shared_from_this<PlanCore> {
  PlanCore(EngineCore& engine_core, const Graph& recorded, const PlanOptions& plan_options);
  ~PlanCore();

  RunState* TakeFrame();
  void ReturnFrame(RunState* run);  // the frame is again as TakeFrame returns it
  std::unique_ptr<RunState> NewFrame();
  Var NewDone();
  void MakeDone(RunState& run);
  void FindHostFirst();
  void FindSegments();
  void FindUsers();
  void NoteTaskNanos(int64_t mean) const;
  std::span<const PlanSuccessor> SuccessorsOf(const PlanTask& task) const {
    return Part(successors, task.successors, task.successors_end);
  }
  // A node's parts of the lists of all nodes; the next node's parts begin where they end.
  std::span<const uint32_t> InputsOf(const PlanNode& node) const {
    return Part(node_inputs, node.inputs, (&node + 1)->inputs);
  }
  std::span<const uint32_t> OutputsOf(const PlanNode& node) const {
    return Part(node_outputs, node.outputs, (&node + 1)->outputs);
  }
  std::span<const PlanEffect> EffectsOf(const PlanNode& node) const {
    return Part(node_effects, node.effects, (&node + 1)->effects);
  }
  std::span<const PlanLayout::End> EndsOf(const PlanNode& node) const {
    return Part(node_ends, node.ends, (&node + 1)->ends);
  }
  // Where RunState::errors has the Var's error: behind those of the values.
  size_t ErrorPlace(uint32_t var) const { return graph.values().size() + var; }
  // The same for a place of a gate.
  size_t ErrorOfPlace(uint32_t place) const {
    const size_t shared = accesses.size();
    return place < shared ? ErrorPlace(var_of[place]) : graph.inputs()[place - shared].index;
  }
  std::span<const uint32_t> UsersOf(uint32_t place) const { return Part(users, users_of[place], users_of[place + 1]); }
  template <class T>
  static std::span<const T> Part(const std::vector<T>& list, uint32_t from, uint32_t to) {
    return {list.data() + from, list.data() + to};
  }

  EngineCore* const core;  // keeps the core alive
  const Graph graph;
  const PlanOptions options;

  std::vector<PlanNode> nodes;  // in topological order, and one more, whose lists are empty and end the others
  std::vector<PlanTask> tasks;
  std::vector<PlanSuccessor> successors;
  std::vector<uint32_t> sources;      // tasks without predecessors; the one that runs first comes last
  std::vector<uint32_t> node_inputs;  // numbers of values
  std::vector<uint32_t> node_outputs;
  std::vector<PlanEffect> node_effects;
  std::vector<PlanLayout::End> node_ends;
  std::vector<uint32_t> counters;                          // initial counts
  std::vector<uint32_t> left_over;                         // values whose use no node ends: outputs, unused inputs
  std::vector<bool> single_use;                            // by value: it has one consumer, which may take it
  std::vector<PlanSegment> segments;                       // by ticket
  std::vector<std::vector<uint32_t>> awaited;              // by task: the tickets that an in-order run awaits before it
  std::vector<std::shared_ptr<std::atomic<bool>>> scopes;  // by node
  std::vector<Graph::Edge> orders;  // the edges that are only Graph::Order's, ascending; traces name them
  uint32_t tickets = 0;
  uint32_t remaining = 0;            // what RunState::remaining starts with
  int priority = 0;                  // the highest priority of its nodes
  bool concurrent = false;           // some tasks have other placements, so counters are atomic from the start
  bool has_device = false;           // some tasks are on a device
  bool has_wide = false;             // some nodes may use several threads of the run's team
  std::vector<bool> ordered_there;   // by access: the host touches the Var behind a write on a device, or not at all
  std::vector<uint32_t> by_urgency;  // tasks, the most urgent first
  std::vector<Var> vars;
  struct AccessTemplate {
    VarCore* var;
    uint64_t word;
  };
  std::vector<AccessTemplate> accesses;  // by address, as a registration needs them, without the run's own Var
  std::vector<uint32_t> access_of;       // by Var
  std::vector<uint32_t> var_of;          // by access
  std::vector<uint32_t> task_of;         // by node
  // For gates, by place: the nodes that wait for it, the first of each task; whether every task that comes first begins
  // with one of them.
  std::vector<uint32_t> users, users_of;
  std::vector<bool> needed_first;
  bool may_have_gates = false;
  std::vector<uint32_t> output_of;  // by value: the output that ends with its node; kNoIndex: none, or later
  uint32_t reads = 0;
  // How long a task took lately; 0: not known. relaxed: it only decides how a run is run. Written when that changes.
  mutable std::atomic<int64_t> task_nanos{0};
  // A thread that waited came to the team of the last run that a worker began. relaxed: a hint.
  mutable std::atomic<bool> waited_for{false};
  // static_shape: the first run's types have been checked. relaxed: it is only ever set, and any run may check again.
  mutable std::atomic<bool> shape_checked{false};

  Mutex model_mu;
  std::shared_ptr<CostModel> model GUARDED_BY(model_mu);  // made when it is first asked for

  struct alignas(64) Place {
    // Taking a frame exchanges with acquire, returning it with release, so that its content goes along.
    std::atomic<RunState*> frame{nullptr};
  };
  // Free frames, one on each cache line, so that threads share none if each has a run of its own. There are at least as
  // many places as frames, so that a returned frame finds one. Only making a frame takes the lock.
  struct Places {
    std::array<Place, 16> place;
    // release: publishes empty places. Partner: the acquire load of whoever goes on to them.
    std::atomic<Places*> more{nullptr};
  };
  Places places;
  Mutex frames_mu;
  std::vector<std::unique_ptr<RunState>> frames GUARDED_BY(frames_mu);     // all frames
  std::vector<std::unique_ptr<Places>> more_places GUARDED_BY(frames_mu);  // those behind `places`
};

// What a cost model said at the start of a run. `model` is null unless it asked to be told of the run's end.
struct ModelStep : CostModel::Step {
  std::shared_ptr<CostModel> model;
};

// How the closure of each op of a plan begins.
struct PlanShare {  // of a run's op, or of a share: tasks for another worker
  RunState* run;
  uint32_t head = kNoIndex;  // list of tasks by RunState::next
  bool counted = false;      // whoever gets the share has been counted in the run's team
  uint32_t ends = 0;         // what the share counts in `remaining`, besides its tasks
};
struct PlanTicket {  // of an asynchronous node, or, in an in-order run, of a task with another placement
  RunState* run;
  uint32_t task;
  // The node whose outcome must be settled; kNoIndex: none. Of a device task: the first node that was not pushed.
  uint32_t node;
  bool lost = false;     // of a device task: `error` is that of all its nodes, not only of those that were not pushed
  bool whole = false;    // of a device task: its nodes were pushed as one op
  bool settled = false;  // in an in-order run
  ErrorRecord* error = nullptr;   // counted; the release of kDone publishes it
  std::atomic<uint32_t> word{0};  // has the states of a WaitNode
  // Likewise, in an in-order run: the body has returned, which may be long after its Completion was called.
  std::atomic<uint32_t> returned{0};
};
struct PlanIssue {  // of a node on a device, a member of its task's bulk
  RunState* run;
  uint32_t node;
  uint32_t task;
  void operator()(RunContext& ctx) const;
};
struct PlanIssueAsync : PlanIssue {  // of an asynchronous node on a device, which is in no bulk
  void operator()(RunContext& ctx, Completion done) const;
};
struct PlanIssueAll {  // of a segment
  RunState* run;
  uint32_t task;
  void operator()(RunContext& ctx) const;
  const PlanSegment& segment() const { return run->owner->segments[run->owner->tasks[task].ticket]; }
};
inline RunState* RunOf(OpRecord* op) { return *static_cast<RunState**>(op->closure()); }

// Calls fn(VarCore*, AccessMode) for the Vars of a node on a device; the node's run has the accesses.
template <class Fn>
void ForNodeVars(OpRecord* op, Fn&& fn) {
  const PlanCore& plan = *RunOf(op)->owner;
  for (const PlanEffect& effect : plan.EffectsOf(plan.nodes[static_cast<PlanIssue*>(op->closure())->node]))
    fn(CoreOf(plan.vars[effect.var].core()), effect.mode);
}

// Enters a plan into the list that a fork walks (plan_fork.cc).
void EnlistPlan(const std::shared_ptr<PlanCore>& plan);

}  // namespace engine::detail
