// Replay: one thread's part in a run: it runs nodes, settles what they leave, and ends what nobody needs any more.
//
// Threads:   on one thread's stack. Threads of one run meet in its counters (plan_core.h) only.
// Order:     a node's effects are published by the counter (or queue) through which its successor becomes ready.
// Errors:    a node's failure is settled as an op's is (execute.cc), on the run's own record of its Vars; a Var gets
//            its error when the run releases it.
#pragma once

#include "graph/plan_core.h"
#include "graph/replay_counter.h"
#include "graph/runs.h"

namespace engine::detail {

class Replay {
 public:
  // `op`: the run's own, or a share or ticket of it: it bears the name of the node that runs, for whoever asks.
  Replay(EngineCore& core, ThreadSlot& slot, OpRecord* op, Worker* worker, RunState& run);
  ~Replay() { t_frame = frame_.outer; }
  Replay(const Replay&) = delete;

  // Runs tasks that are ready, and those that become ready, until none is left here. Returns how many ended.
  // `sources`: so many of the plan's first tasks are ready as well.
  uint32_t RunReady(uint32_t head, uint32_t sources);
  // The same for a plan with ranks, together with all other workers of the run: the most urgent of all that is ready
  // comes next (replay_ranked.cc).
  uint32_t RunRanked(uint32_t head, uint32_t sources);
  // Runs every task in the plan's order; other placements and asynchronous nodes are awaited where they are needed.
  void RunAll();
  // Runs the nodes of the ticket's task, on its own placement.
  void RunTicket();
  void RunTask(const PlanTask& task);  // its synchronous nodes
  // After an asynchronous node: its outcome (consumes the count), and what becomes ready. On any thread.
  void Settle(uint32_t node, ErrorRecord* error);
  // The same for what a ticket stands for.
  void SettleTicket(const PlanTicket& ticket);
  // What comes next when a task has ended, or, on a device, when it has been pushed: tasks there are ordered there, and need
  // not wait for its end. Keeps what this thread is to run.
  void ReleaseSuccessors(const PlanTask& task);
  void ReleaseBehindLaunch(const PlanTask& task);
  // What is left goes to the pools. Nothing of this object is used afterwards.
  void HandOver();
  // A node on a device (plan_device.cc): its body, with the Completion of an asynchronous one; its Completion failed; it has
  // been issued, so that its Vars have their points; it was not. The count of `error` is consumed.
  static void IssueNode(RunState& run, uint32_t node, RunContext& ctx, Completion* done);
  static void NodeFailed(EngineCore& core, ThreadSlot& slot, OpRecord* op, ErrorRecord* error);
  static void NodeIssued(EngineCore& core, ThreadSlot& slot, OpRecord* op);
  static void NodeRefused(EngineCore& core, ThreadSlot& slot, OpRecord* op, ErrorRecord* error);
  // Of the internal op that settles a task on a device: the word by which somebody asks for that. Null: somebody waits, a
  // thread for an in-order run, or tasks on the host behind it.
  static const std::atomic<bool>* AskedFor(OpRecord* settles);
  // A share to run next instead, where this one had its turn; else null.
  OpRecord* handed() const { return handed_; }
  // The body may have waited: another thread has our role and slot then.
  ThreadSlot& slot() { return t_role_lent ? core_.Slot() : slot_; }

 private:
  [[gnu::always_inline]] void Run(const PlanNode& node);
  [[gnu::noinline]] void RunWatched(uint32_t node);
  // Launches the asynchronous node. Its ticket may be gone when this returns; null: it was skipped, and is settled.
  OpRecord* Launch(uint32_t task, uint32_t node, OpRecord* ticket = nullptr);
  OpRecord* LaunchOnDevice(uint32_t task);
  // Launches the asynchronous node of task `number`, and keeps what comes behind the launch. Returns how many ended by it.
  uint32_t LaunchLast(uint32_t number);
  void SettleBulk(const PlanTicket& ticket);
  ErrorRecord* LostInput(const PlanNode& node);
  bool HasFailed(const PlanNode& node) const;
  void Note(const PlanNode& node, ErrorRecord* error);
  OpRecord* NewTicket(uint32_t task, uint32_t node, uint32_t flags);
  void Await(OpRecord*& ticket);
  // For whoever asks what runs here: the watchdog, RunContext::name.
  void Name(const PlanNode& node) { op_->extra.name = node.name; }
  ErrorRecord* SkippedBy(const PlanNode& node, uint32_t index);
  void Fail(const PlanNode& node, ErrorRecord* error, bool late = false);
  void KeepFirst(const PlanNode& node, ErrorRecord* error);
  // acquire: the record. Partner: SetError.
  ErrorRecord* ErrorAt(size_t place) const {
    return std::atomic_ref(run_.errors[place]).load(std::memory_order_acquire);
  }
  enum Ends : uint32_t { kValueEnds = 1, kVarEnds = 2 };
  void EndUses(uint32_t node, uint32_t which = kValueEnds | kVarEnds);
  void Release(const PlanSuccessor& edge);
  void ReleaseVar(uint32_t var);
  [[gnu::always_inline]] bool Down(uint32_t counter) {
    return CountDown(run_.counters[counter], plan_.counters[counter], atomic_);
  }
  bool Arrive(const PlanSuccessor& edge) { return edge.counter == kNoIndex || Down(edge.counter); }
  void Keep(uint32_t task) {
    run_.next[task] = kept_;
    kept_ = task;
  }
  // Ready tasks of this thread, linked through RunState::next, the latest on top; below them lie the plan's sources.
  struct Stack {
    uint32_t top;
    uint32_t depth;
    uint32_t sources;
  };
  Stack Share(Stack stack);
  struct Taken {
    uint32_t task;
    uint32_t spare;  // for an idle worker
  };
  Taken Exchange(uint32_t list, bool spare);
  Stack Measure(Stack stack);
  void Begin();  // the clock, and whether tasks like these were worth sharing before
  bool TurnIsOver();
  void NoteTimes(uint32_t ended);
  uint32_t Link(Stack& stack, uint32_t count);
  uint8_t PoolOf(const PlanTask& task) const { return task.pool == kDefaultPool ? run_.home : task.pool; }

  EngineCore& core_;
  ThreadSlot& slot_;
  OpRecord* const op_;
  Worker* const worker_;
  RunState& run_;
  const PlanCore& plan_;
  RunFrame frame_;
  NodeContext ctx_;
  const bool traced_;
  bool atomic_;  // other threads may be at the run's counters
  bool may_share_ = false;
  uint32_t kept_ = kNoIndex;  // tasks for HandOver
  Clock::time_point began_;
  Clock::time_point measured_;
  OpRecord* handed_ = nullptr;
};

}  // namespace engine::detail
