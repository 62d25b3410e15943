// Runs: the runs of plans in one engine. Starting one, the ops that carry its parts, its end. The core knows them as kinds of
// ops (op_kind.h) only.
//
// Threads: any. A Runs keeps nothing: it is made where it is used.
// Errors:  Start throws as a push does; what nodes throw becomes their Vars' poison.
#pragma once

#include <algorithm>

#include "core/core.h"
#include "graph/plan_core.h"
#include "graph/wide_loop.h"

namespace engine::detail {

// Of shares and tickets alike, so that a ticket's block may become a share.
inline constexpr uint32_t kShareClass = ClassOf(sizeof(OpRecord) + std::max(sizeof(PlanShare), sizeof(PlanTicket)));

// SpareShare: the memory of a share, taken before it is known whether there is a task for it: whoever takes a task must not
// be left without a share.
class SpareShare {
 public:
  SpareShare(ThreadSlot& slot, RunState& run) : slot_(slot), run_(run) {}
  ~SpareShare() {
    if (block_ && !run_.forked()) slot_.cache.Return(kShareClass, block_);
  }
  SpareShare(const SpareShare&) = delete;
  bool Have() noexcept;         // false: there is no memory, or this is a fork's child
  OpRecord* Of(uint32_t task);  // null for kNoIndex

 private:
  ThreadSlot& slot_;
  RunState& run_;
  void* block_ = nullptr;
};

class Runs {
 public:
  explicit Runs(EngineCore& core) : core_(core) {}

  PolicyStamp StampOf(const RunOptions& options) const {
    const PolicyStamp stamp = core_.Stamp();
    if (!options.policy || *options.policy == stamp.policy) return stamp;
    return core_.StampOf({*options.policy, {}});
  }
  // Null: there is no room, and it may not wait.
  RunState* Start(PlanCore& plan, std::span<Value> inputs, const RunOptions& options, PolicyStamp stamp,
                  const ModelStep& step, Site site, bool may_wait);
  OpRecord* Execute(ThreadSlot& slot, OpRecord* op, Worker* worker);
  void Drop(RunState& run);
  void CheckWait(const RunState& run, Site site) const;
  // The calling thread, which waits for the run's end, runs ready tasks of it until there is none for it.
  void TakePart(RunState& run);

  // --- its parts
  void FinishTicket(OpRecord* op, ErrorRecord* error);
  // These return null, or false, if there is no memory.
  OpRecord* NewTicket(ThreadSlot& slot, RunState& run, const PlanTicket& ticket, uint32_t flags) noexcept;
  OpRecord* NewShare(ThreadSlot& slot, RunState& run, uint32_t head, uint8_t pool_index, bool counted = false) noexcept;
  bool PostShare(ThreadSlot& slot, RunState& run, uint32_t head, uint32_t rest, uint8_t pool_index) noexcept;
  void RecycleOp(ThreadSlot& slot, OpRecord* op);
  static void LeaveTeam(RunState& run);
  // `counted`: whoever gets the share has been counted in the run's team. ShareIn makes it in a block of kShareClass.
  static OpRecord* ShareIn(void* block, RunState& run, uint32_t head, uint8_t pool_index, bool counted);
  void ReleaseAccess(ThreadSlot& slot, OpRecord* op, Access& access);
  // An access of the plan, in the run's op or in a gate: where it is; and its end.
  static Access& AccessOf(const RunState& run, uint32_t place);
  void ReleaseVar(ThreadSlot& slot, RunState& run, uint32_t place);
  static Access* AccessInGate(OpRecord* op, const VarCore* var);
  void OpenGate(Pass& pass, OpRecord* gate);
  void ReleaseOutput(ThreadSlot& slot, RunState& run, uint32_t output);  // its own Var; does nothing the second time
  static NodeContext MakeContext(EngineCore& core, OpRecord* op, int worker, RunState& run);
  // ParallelFor in a node of the plan, over the threads of the run's team. False: the node has no number of threads of its
  // own, so the pool's intra-op threads do it.
  static bool WideFor(RunContext& ctx, size_t n, size_t grain, const WideLoop::Piece& piece);
  bool Help(RunState& run, bool idle = false);
  static WideLoop* LoopWithRoom(const RunState& run) REQUIRES(run.ready_mu);
  static void SetNode(NodeContext& ctx, const PlanNode& node) { ctx.node_ = &node; }

 private:
  static OpRecord* OpIn(void* block, uint32_t cls, RunState& run, OpKindId kind, uint32_t flags, uint8_t pool_index);
  void Begin(RunState& run);
  static void TakePoison(RunState& run, uint32_t place, const VarCore* var);
  static std::span<Access* const> ListTogether(RunState& run, OpRecord* op, std::span<const Var> outputs);
  // --- gates.cc
  static OpRecord* GateOf(const RunState& run, uint32_t place) { return run.gates ? run.gates->gate[place] : nullptr; }
  void MakeGates(ThreadSlot& slot, RunState& run, std::span<const Var> inputs, Site site);
  static void MoveToGates(RunState& run, OpRecord* op);
  void DropGates(ThreadSlot& slot, RunState& run);
  void ReleaseGate(ThreadSlot& slot, OpRecord* gate);
  void EndGates(ThreadSlot& slot, RunState& run);
  void ReleaseInputs(ThreadSlot& slot, RunState& run);
  // ---
  bool Together(const RunState& run) const;  // whether a team runs it
  uint32_t AwaitReady(RunState& run, const Worker* worker);
  bool Join(RunState& run);  // false: the team is as large as it may be
  uint32_t Park(RunState& run);
  static void Unpark(RunState& run);
  OpRecord* InviteHelper(ThreadSlot& slot, RunState& run, const WideLoop& loop);
  void WithdrawHelper(ThreadSlot& slot, RunState& run, OpRecord* share);
  OpRecord* EndTasks(ThreadSlot& slot, RunState& run, uint32_t ended, Worker* worker);
  OpRecord* Finish(ThreadSlot& slot, RunState& run, Worker* worker);
  void ReportToModel(RunState& run);

  EngineCore& core_;
};

}  // namespace engine::detail
