// PlanCore: a plan's program, in arrays that a replay walks; RunState: the frame of one run.
//
// Threads:   a PlanCore is immutable but for its pool of frames. A RunState is used by the threads that run its tasks,
//            each node's data by one of them at a time, as the edges say.
// Ownership: a run in flight and its handle each count in `refs`; a run keeps its plan; the plan keeps its frames.
// Counters:  a task with several predecessors has a 4-byte counter, which whoever arrives last sets back. As long as one
//            thread alone runs the tasks, counting takes no read-modify-write; it becomes atomic before a second one joins.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "core/completion_state.h"
#include "engine/spi/cost_model.h"
#include "engine/spi/rank_queue.h"
#include "graph/plan_layout.h"

namespace engine::detail {

struct PlanTask {
  uint32_t first, end;  // nodes
  uint32_t successors, successors_end;
  uint32_t predecessors;
  uint32_t ticket;   // kNoIndex, or its place among the tasks that an in-order run does not finish on the spot
  uint32_t urgency;  // of a ranked plan: 0 comes first
  uint32_t
      async : 23;  // so many nodes at its end are not over when they have run: 1 if the last is asynchronous, on a device all
  uint32_t device : 1;  // a bulk there (plan_device.cc)
  uint32_t pool : 8;    // kDefaultPool: as the run's policy says
};
static_assert(sizeof(PlanTask) <= 32);

// An edge. The counter lies here, so that a task is looked at only when it is ready.
struct PlanSuccessor {
  uint32_t task;
  uint32_t counter;  // kNoIndex: the only edge to it
};

struct PlanEffect {
  uint32_t var;
  Role role;
};

struct RunState {
  enum Watch : uint32_t { kErrors = 1, kCancel = 2, kDeadline = 4, kTimes = 8, kBusy = 16 };

  std::shared_ptr<PlanCore> plan;  // while in use
  PlanCore* owner = nullptr;
  EngineCore* core = nullptr;
  OpRecord* op = nullptr;
  Var done;                              // written by the run: what its handle waits for
  std::vector<Var> lanes;                // by ticket: of device tasks, what orders their nodes
  std::vector<std::vector<Var>> behind;  // by ticket: the lanes of the device tasks before a device task
  uint64_t frame_key = 0;                // no other frame's, ever
  Value* values = nullptr;
  std::atomic<uint32_t>* counters = nullptr;
  uint32_t* next = nullptr;        // by task: links of the lists of ready tasks
  ErrorRecord** errors = nullptr;  // by value, then by Var; all null while `watch` has no kErrors
  OpRecord** tickets = nullptr;    // in-order runs
  uint8_t home = 0;                // the pool of what has no placement
  bool in_order = false;
  bool forked = false;  // in a child that was forked inside a node: the Vars are no longer ours
  std::chrono::steady_clock::time_point deadline{};
  std::span<NodeTime> times;
  Site site;

  // Of a run that a cost model measures or compares; else null.
  std::shared_ptr<CostModel> model;
  uint64_t model_ticket = 0;
  std::vector<NodeTime> model_times;  // `times`, where the caller asked for none
  std::vector<DeviceTimer> timers;    // by node: what it takes on its device
  std::chrono::steady_clock::time_point began{};

  // acq_rel: the last one out sees all that the others did. Between the handle and the run.
  std::atomic<uint32_t> refs{0};
  // relaxed loads in each node: whoever sets kErrors comes before those whom the error concerns, by the edges.
  std::atomic<uint32_t> watch{0};
  // Somebody waits for the end of what it has on devices. seq_cst: Devices::Ask.
  std::atomic<bool> asked{false};
  // Tasks not ended, asynchronous ones counted twice (body, completion). acq_rel: whoever takes it to zero ends the run
  // and sees what all others did.
  alignas(64) std::atomic<uint32_t> remaining{0};

  // Ranked plans: what is ready, for all workers of the run together, and how many of them look at it for work.
  alignas(64) Mutex ready_mu;
  RankQueue ready GUARDED_BY(ready_mu);
  uint32_t idle GUARDED_BY(ready_mu) = 0;
  // relaxed: how many are ready, for those who look; they lock before they take.
  std::atomic<uint32_t> ready_count{0};

  Mutex mu;
  ErrorRecord* first_error GUARDED_BY(mu) = nullptr;  // counted; of the failed node that was recorded first
  uint32_t first_failed GUARDED_BY(mu) = kNoIndex;

  std::unique_ptr<std::byte[], void (*)(std::byte*)> block{nullptr, nullptr};
};

struct PlanCore : std::enable_shared_from_this<PlanCore> {
  PlanCore(EngineCore& engine_core, const Graph& recorded, const PlanOptions& plan_options);
  ~PlanCore();

  RunState* TakeFrame();
  void ReturnFrame(RunState* run);  // everything in it is as TakeFrame promises it
  std::unique_ptr<RunState> NewFrame();
  void FindHostFirst();
  std::span<const PlanSuccessor> SuccessorsOf(const PlanTask& task) const {
    return {successors.data() + task.successors, successors.data() + task.successors_end};
  }

  EngineCore* const core;  // counted
  const Graph graph;
  const PlanOptions options;

  std::vector<PlanNode> nodes;  // in topological order, and one more that ends the lists
  std::vector<PlanTask> tasks;
  std::vector<PlanSuccessor> successors;
  std::vector<uint32_t> sources;      // tasks without predecessors; the one to run first comes last
  std::vector<uint32_t> node_inputs;  // values
  std::vector<uint32_t> node_outputs;
  std::vector<PlanEffect> node_effects;
  std::vector<PlanLayout::End> node_ends;
  std::vector<uint32_t> counters;                          // initial counts
  std::vector<uint32_t> left_over;                         // values that no node ends: outputs, unused inputs
  std::vector<bool> single_use;                            // values that their one consumer may take
  std::vector<std::vector<uint32_t>> awaited;              // by task: tickets to await before it, in an in-order run
  std::vector<std::shared_ptr<std::atomic<bool>>> scopes;  // by node
  uint32_t tickets = 0;
  uint32_t remaining = 0;            // initial
  int priority = 0;                  // the highest of its nodes'
  bool concurrent = false;           // has tasks of other placements: counters are atomic from the start
  bool has_device = false;           // has tasks there
  std::vector<bool> ordered_there;   // by access: the host touches it behind a write on a device, if at all
  std::vector<uint32_t> by_urgency;  // tasks of a ranked plan, the most urgent first
  std::vector<Var> vars;
  struct AccessTemplate {
    VarCore* var;
    uint64_t word;
  };
  std::vector<AccessTemplate>
      accesses;                     // sorted by address, as a registration wants them; the run's own Var comes last
  std::vector<uint32_t> access_of;  // by Var
  uint32_t reads = 0;
  // relaxed: what a task took lately; only decides whether sharing pays. 0: not known. A line of its own: each run writes it.
  alignas(64) mutable std::atomic<int64_t> task_nanos{0};
  // static_shape: the types that the first run brought. relaxed: set once to what every later run must bring.
  mutable std::atomic<bool> shape_checked{false};

  Mutex model_mu;
  std::shared_ptr<CostModel> model GUARDED_BY(model_mu);  // made when it is first asked for

  struct alignas(64) Place {
    // Exchanged: taking acquires, returning releases the frame's content.
    std::atomic<RunState*> frame{nullptr};
  };
  // Free frames, a line each, so that threads that each run theirs share none; at least as many places as frames, so that
  // what comes back finds one. Only making a frame takes the lock.
  struct Places {
    std::array<Place, 16> place;
    std::atomic<Places*> more{nullptr};  // release: they are empty. Partner: the acquire of who goes on to them.
  };
  Places places;
  Mutex frames_mu;
  std::vector<std::unique_ptr<RunState>> frames GUARDED_BY(frames_mu);     // all of them
  std::vector<std::unique_ptr<Places>> more_places GUARDED_BY(frames_mu);  // behind `places`
};

// What a cost model said at the start of a run; `model` only if it wants to hear of its end.
struct ModelStep : CostModel::Step {
  std::shared_ptr<CostModel> model;
};

// What the closure of a plan's op begins with.
struct PlanShare {  // of a run op, or a share: tasks handed to another worker
  RunState* run;
  uint32_t head = kNoIndex;  // list of tasks by RunState::next
};
struct PlanTicket {  // an asynchronous node, or, in an in-order run, a task of another placement
  RunState* run;
  uint32_t task;
  uint32_t node;      // whose outcome is to be settled; kNoIndex: all settled by who ran it. Of a device task:
                      // from which node on none was pushed
  bool lost = false;  // a device task: `error` is of all its nodes, not just of those that were not pushed
  ErrorRecord* error = nullptr;   // counted; published by the release of kDone
  std::atomic<uint32_t> word{0};  // a WaitNode's states
};
struct PlanIssue {  // a node on a device: a member of its task's bulk
  RunState* run;
  uint32_t node;
  void operator()(RunContext& ctx) const;
};
struct PlanIssueAsync : PlanIssue {  // an asynchronous one, by itself
  void operator()(RunContext& ctx, Completion done) const;
};
inline RunState* RunOf(OpRecord* op) { return *static_cast<RunState**>(op->closure()); }

// The Vars of a node on a device, which its run holds: fn(VarCore*, Role).
template <class Fn>
void ForNodeVars(OpRecord* op, Fn&& fn) {
  const PlanCore& plan = *RunOf(op)->owner;
  const PlanNode* const node = &plan.nodes[static_cast<PlanIssue*>(op->closure())->node];
  for (uint32_t i = node->effects; i < (node + 1)->effects; ++i)
    fn(CoreOf(plan.vars[plan.node_effects[i].var].core()), plan.node_effects[i].role);
}

// To be found by forks (plan_fork.cc).
void EnlistPlan(const std::shared_ptr<PlanCore>& plan);

}  // namespace engine::detail
