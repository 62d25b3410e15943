// Replay: one thread's part in a run. It runs nodes, settles their outcomes, and destroys or releases what nobody needs
// any more.
//
// Threads:   a Replay lies on its thread's stack. The threads of one run meet only in the run's counters (plan_core.h).
// Order:     a node's effects are published by the counter (or queue) through which its successor becomes ready.
// Errors:    a node's failure is settled as an op's is (execute.cc), but on the run's own record of its Vars; a Var
//            gets its error when the run releases it.
#pragma once

#include "graph/plan_core.h"
#include "graph/replay_counter.h"
#include "graph/runs.h"

namespace engine::detail {

class TracedBody;

class Replay {
 public:
  // `op` is the run's own op, or a share or ticket of the run. It carries the name of the node that runs, for whoever
  // asks.
  Replay(EngineCore& core, ThreadSlot& slot, OpRecord* op, Worker* worker, RunState& run);
  ~Replay() { t_frame = frame_.outer; }
  Replay(const Replay&) = delete;

  // Runs the tasks of the list `head` and those that become ready, until none is left on this thread. The first
  // `sources` tasks of the plan's sources are ready too. Returns how many tasks ended. For tasks so short that a second
  // thread would cost more than it does; goes on as RunTogether if they turn out to be long.
  uint32_t RunAlone(uint32_t head, uint32_t sources);
  // The same as one of the run's team: each takes the most urgent of all ready tasks (replay_together.cc). `counted`:
  // the team has this thread in its number already.
  uint32_t RunTogether(uint32_t head, uint32_t sources, bool counted);
  // Runs every task in the plan's order. Other placements and asynchronous nodes are awaited where their results are
  // needed.
  void RunAll();
  // Runs the nodes of the ticket's task, in the task's own placement.
  void RunTicket();
  void RunTask(const PlanTask& task);  // runs the task's synchronous nodes
  // The same in a run with gates, from where the task stopped. False: it has stopped in front of a node one of whose Vars
  // is not there, and whoever opens that gate may be running it by now.
  bool RunToGate(uint32_t number);
  // Runs the task, with its asynchronous node, and keeps what becomes ready. Returns how many of its ends are over: none if
  // it has stopped in front of a node.
  uint32_t RunAndRelease(uint32_t number);
  // After an asynchronous node, on any thread: settles the node's outcome (takes over the count of `error`), and finds
  // what becomes ready.
  void Settle(uint32_t node, ErrorRecord* error);
  // The same for the node or task of a ticket.
  void SettleTicket(const PlanTicket& ticket);
  // ReleaseSuccessors is called when the task has ended. ReleaseBehindLaunch is called when it has been pushed to a
  // device: its successors on devices are ordered there, and need not wait for its end. Both keep ready tasks for this
  // thread to run.
  void ReleaseSuccessors(const PlanTask& task);
  void ReleaseBehindLaunch(const PlanTask& task);
  // The tasks that were kept, in front of those of `list`.
  uint32_t TakeKept(uint32_t list);
  // For a node on a device (device/plan_tasks.cc). IssueNode runs its body, with the Completion of an asynchronous one.
  // NodeFailed: its Completion failed. NodeIssued: it was issued, and its Vars have their points. NodeRefused: it was
  // not issued. Each takes over the count of `error`.
  static void IssueNode(RunState& run, uint32_t node, RunContext& ctx, Completion* done);
  static void NodeFailed(EngineCore& core, ThreadSlot& slot, OpRecord* op, ErrorRecord* error);
  static void NodeIssued(EngineCore& core, ThreadSlot& slot, OpRecord* op);
  static void NodeRefused(EngineCore& core, ThreadSlot& slot, OpRecord* op, ErrorRecord* error);
  // For a task on a device that is one op, a segment (device/plan_segment.cc). KeepGraph: the task has been launched as a
  // graph, node by node. GraphOfSegment: null if the bodies have to run this time. IssueSegment runs them.
  static void KeepGraph(OpRecord* head, uint64_t members, const KeptGraph& graph);
  static KeptGraph* GraphOfSegment(EngineCore& core, OpRecord* op);
  static void IssueSegment(RunState& run, uint32_t task, RunContext& ctx);
  // Says what a node of the run touches: its Vars, and the values that it takes and makes.
  static void DescribeNode(TracedBody& traced, const RunState& run, const PlanNode& node, const void* key);
  static void TraceSegment(EngineCore& core, OpRecord* op, const char* lane);
  static void SegmentIssued(EngineCore& core, ThreadSlot& slot, OpRecord* op);
  static void SegmentRefused(EngineCore& core, ThreadSlot& slot, OpRecord* op, ErrorRecord* error);
  // For the internal op that settles a device task: the flag that somebody sets who waits for it. Null: somebody waits
  // already, a thread of an in-order run or tasks on the host behind it.
  static const std::atomic<bool>* AskedFor(OpRecord* settles);
  // A share that the worker must queue, because this run has had its turn; else null.
  OpRecord* handed() const { return handed_; }
  // How many more tasks have ended here: those that could not be posted to the pool of their placement.
  uint32_t refused() const { return refused_; }
  // How many the run counts for this replay alone, so that it does not end before.
  uint32_t held() const { return held_; }
  bool in_team() const { return in_team_; }  // it has become one of the team, and not left
  // If the body waited, another thread has our role and slot now.
  ThreadSlot& slot() { return t_role_lent ? core_.Slot() : slot_; }

 private:
  [[gnu::always_inline]] void Run(const PlanNode& node);
  [[gnu::noinline]] void RunWatched(uint32_t node);
  // Starts the asynchronous node. Its ticket may be gone when this returns. Null: the node was skipped, and has been
  // settled.
  OpRecord* Launch(uint32_t task, uint32_t node, OpRecord* ticket = nullptr);
  OpRecord* LaunchOnDevice(uint32_t task);
  void PushNodes(PlanTicket& ticket, bool as_graph);  // to the device, one by one; they start together
  void PushSegment(PlanTicket& ticket);               // the same, as one op
  // Starts the asynchronous node of task `number`, and keeps what becomes ready by the start. Returns 1 if the node was
  // skipped, so that the task's second end (its completion) is over too; else 0.
  uint32_t LaunchLast(uint32_t number);
  void SettleBulk(const PlanTicket& ticket);
  ErrorRecord* LostInput(const PlanNode& node);
  bool HasFailed(const PlanNode& node) const;
  void Note(const PlanNode& node, ErrorRecord* error);
  OpRecord* NewTicket(uint32_t task, uint32_t node, uint32_t flags);  // null: there is no memory
  ErrorRecord* RefusalOf(const PlanNode& node) const;
  OpRecord* Refuse(uint32_t node);
  void PostThere(uint32_t task, uint8_t pool);
  void SkipHere(uint32_t task);
  bool MayAwait(std::exception_ptr& no_stand_in);
  void Await(OpRecord* ticket);
  // Shows the node to whoever asks what runs here: the watchdog, RunContext::name.
  void Name(const PlanNode& node) { op_->extra.name = node.name; }
  ErrorRecord* SkippedBy(const PlanNode& node, uint32_t index);
  void Fail(const PlanNode& node, ErrorRecord* error, bool late = false);
  void KeepFirst(const PlanNode& node, ErrorRecord* error);
  // acquire: publishes the record. Partner: SetError.
  ErrorRecord* ErrorAt(size_t place) const {
    return std::atomic_ref(run_.errors[place]).load(std::memory_order_acquire);
  }
  enum Ends : uint32_t { kValueEnds = 1, kVarEnds = 2 };
  void EndVars(const PlanSegment& segment);
  void EndUses(uint32_t node, uint32_t which = kValueEnds | kVarEnds);
  void Release(const PlanSuccessor& edge);
  void ReleaseVar(uint32_t var);
  void ReleaseOutputs(const PlanNode& node);
  [[gnu::always_inline]] bool Down(uint32_t counter) {
    return CountDown(run_.counters[counter], plan_.counters[counter], atomic_);
  }
  bool Arrive(const PlanSuccessor& edge) { return edge.counter == kNoIndex || Down(edge.counter); }
  void Keep(uint32_t task) {
    run_.next[task] = kept_;
    kept_ = task;
  }
  // Ready tasks of this thread, linked through RunState::next, the latest on top; the plan's sources lie below them.
  struct Stack {
    uint32_t top;
    uint32_t sources;
  };
  uint32_t Link(Stack stack);
  struct Taken {
    uint32_t task;
    uint32_t spare;           // a task for an idle thread
    bool for_waiter = false;  // the idle thread is the one that waits for the run, and has it already
  };
  Taken Exchange(uint32_t list, bool may_invite, bool take = true);
  uint32_t HandOut(uint32_t list, bool may_invite, bool take);
  void AwaitWaiter();
  void Invite(uint32_t task);
  uint32_t TakeInvitationBack();
  bool TurnIsOver(Clock::time_point now) const;
  void NoteTimes(uint32_t ended, int64_t overhead);
  uint8_t PoolOf(const PlanTask& task) const { return task.pool == kDefaultPool ? run_.home : task.pool; }

  EngineCore& core_;
  ThreadSlot& slot_;
  OpRecord* const op_;
  Worker* const worker_;
  RunState& run_;
  const PlanCore& plan_;
  BodyFrame frame_;
  NodeContext ctx_;
  bool watched_;  // a trace is on, or nodes are skipped here because they could not be posted
  bool atomic_;   // other threads may use the run's counters
  bool in_team_ = false;
  uint32_t kept_ = kNoIndex;  // ready tasks, for the thread's list or for another thread
  // Tasks that could not be posted, because there is no memory, and whose nodes are about to be skipped here.
  uint32_t unposted_ = kNoIndex;
  uint32_t refused_ = 0, held_ = 0;
  bool refuses_ = false;                              // such a task is being skipped
  const std::exception_ptr* cannot_await_ = nullptr;  // why tasks are refused; null: there is no memory
  Clock::time_point began_;
  OpRecord* handed_ = nullptr;
  OpRecord* invited_ = nullptr;  // the share that this thread posted last; it may be gone
  uint32_t given_ = kNoIndex;    // the task that this thread gave to the one that waits; that may have taken it
};

}  // namespace engine::detail
