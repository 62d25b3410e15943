// ParallelFor in nodes that have a number of threads of their own.
#include "graph/wide_loop.h"

#include "core/core.h"
#include "graph/runs.h"

namespace engine::detail {

// The loop that was opened last, of those that have room. None in a fork's child: the threads that opened them are not there.
WideLoop* Runs::LoopWithRoom(const RunState& run) {
  WideLoop* loop = run.forked() ? nullptr : run.wide;
  while (loop && !loop->HasRoom()) loop = loop->below;
  return loop;
}

// Helps the loop that was opened last, if one has room. True: it did, and the loop is over or has no piece left. `idle`: the
// run counts this thread as idle, which it is not meanwhile.
bool Runs::Help(RunState& run, bool idle) {
  if (!run.wide_open.load(std::memory_order_relaxed)) return false;
  WideLoop* loop = nullptr;
  {
    ShortLock lock(run.ready_mu);
    loop = LoopWithRoom(run);
    if (!loop) return false;
    loop->helpers.fetch_add(1, std::memory_order_relaxed);
    if (idle) --run.idle;
  }
  // Each helper invites the next one, and takes the invitation back as long as its own count keeps the node's task from its end.
  ThreadSlot& slot = core_.Slot();
  OpRecord* const share = InviteHelper(slot, run, *loop);
  loop->Work();
  if (share) WithdrawHelper(slot, run, share);
  loop->helpers.fetch_sub(1, std::memory_order_release);  // partner: AwaitHelpers; the loop may be gone now
  if (idle) {
    ShortLock lock(run.ready_mu);
    ++run.idle;
  }
  return true;
}

// A worker for a loop. Where none is idle now, one that is soon finds the share. It has no task, so it counts one in `remaining`, which keeps the run until it comes.
OpRecord* Runs::InviteHelper(ThreadSlot& slot, RunState& run, const WideLoop& loop) {
  class Pool& pool = core_.pool(run.home);
  // Behind another op it could not be taken back, and the run would not end before that op.
  if (!slot.NothingQueued(run.home)) return nullptr;  // mutant: helper_behind_other_ops
  {
    ShortLock lock(run.ready_mu);
    // An idle thread looks for itself.
    if (!loop.HasRoom() || run.idle != 0 || run.team == 0 || run.team >= pool.workers().size() || run.invitation)
      return nullptr;
    ++run.team;
  }
  OpRecord* const share = NewShare(slot, run, kNoIndex, run.home, true);
  if (!share) {  // then nobody is invited
    LeaveTeam(run);
    return nullptr;
  }
  run.remaining.fetch_add(1, std::memory_order_relaxed);  // not the last: the node's own task has not ended
  static_cast<PlanShare*>(share->closure())->ends = 1;
  {
    ShortLock lock(run.ready_mu);
    run.invitation = share;
  }
  core_.Post(slot, share, Beside::kYes);
  return share;
}

void Runs::WithdrawHelper(ThreadSlot& slot, RunState& run, OpRecord* share) {
  {
    ShortLock lock(run.ready_mu);
    if (run.invitation != share || !core_.pool(run.home).TakeBack(slot, share, run.level)) return;
    run.invitation = nullptr;
    --run.team;
  }
  run.remaining.fetch_sub(1, std::memory_order_relaxed);  // nor is this one the last
  RecycleOp(slot, share);
}

bool Runs::WideFor(RunContext& ctx, size_t n, size_t grain, const WideLoop::Piece& piece) {
  const auto& node = static_cast<NodeContext&>(ctx);  // every body of a plan gets one
  RunState& run = *node.run_;
  if (run.in_order || node.node_->threads == 0) return false;
  if (n == 0) return true;
  const uint32_t threads = run.narrow || t_in_piece ? 1u : node.node_->threads;
  if (threads == 1 || n <= grain) {
    piece(0, n);
    return true;
  }
  Runs runs(*run.core);
  ThreadSlot& slot = run.core->Slot();
  WideLoop loop(n, grain, threads, piece);
  {
    ShortLock lock(run.ready_mu);
    loop.below = std::exchange(run.wide, &loop);
    run.wide_open.store(true, std::memory_order_relaxed);
  }
  OpRecord* const share = runs.InviteHelper(slot, run, loop);
  loop.Work();
  {
    ShortLock lock(run.ready_mu);
    WideLoop** at = &run.wide;
    while (*at != &loop) at = &(*at)->below;
    *at = loop.below;
    run.wide_open.store(run.wide != nullptr, std::memory_order_relaxed);
  }
  if (share) runs.WithdrawHelper(slot, run, share);
  loop.AwaitHelpers([&run] { return run.forked(); });  // mutant: loop_without_its_helpers
  MutexLock lock(loop.error_mu);
  if (loop.error) std::rethrow_exception(loop.error);  // mutant: piece_that_failed_in_silence
  return true;
}

}  // namespace engine::detail
