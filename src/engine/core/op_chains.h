// OpChains: finds the chains of one engine (op_chain.h) by their owners, releases them, and starts their members.
//
// Threads:   any. A chain that has been released belongs to the thread that runs it.
// Ownership: owns the ChainOwners, which HeldOps borrow. The blocks of chains come from the Vars' arena.
// Errors:    NewOwner throws std::bad_alloc; nothing else fails.
// Fork:      the list is whole in the child, whose thread may have HeldOps; the ops that were held are lost.
#pragma once

#include <deque>
#include <vector>

#include "base/sync.h"
#include "order/op_chain.h"
#include "sched/thread_slot.h"

namespace engine::detail {

class OpChains {
 public:
  explicit OpChains(EngineCore& core) : core_(core) {}

  ChainOwner* NewOwner() EXCLUDES(mu_);
  void FreeOwner(ChainOwner* owner) EXCLUDES(mu_);

  void Release(OpChain* chain);
  void ReleaseAll(const OpChain* but = nullptr) EXCLUDES(mu_);
  // Called after a registration: releases the chains that it queued behind. `mine` stays open when all chains are
  // released: its members may wait for each other.
  static void ReleaseQueuedBehind(ThreadSlot& slot, const OpChain* mine = nullptr) {
    if (!slot.queued_behind.empty()) [[unlikely]]
      ReleaseQueuedBehindSlow(slot, mine);
  }
  // Starts the next member and returns it; null if no member is left in the chain. Only the thread that runs the chain
  // may call it.
  OpRecord* StartNext(Pass& pass, OpChain& chain);
  // Called when the op, whose body this thread runs, waits. If a member is behind it in its chain, the op leaves the
  // chain, which goes on without it.
  void Leave(OpRecord* op);

  void BeforeFork() ACQUIRE(mu_) { mu_.Lock(); }
  void AfterForkInParent() RELEASE(mu_) { mu_.Unlock(); }
  void AfterForkInChild(Arena& vars) RELEASE(mu_);

 private:
  static void ReleaseQueuedBehindSlow(ThreadSlot& slot, const OpChain* mine);

  EngineCore& core_;
  Mutex mu_;
  std::deque<ChainOwner> owners_ GUARDED_BY(mu_);
  std::vector<ChainOwner*> free_ GUARDED_BY(mu_);
};

}  // namespace engine::detail
