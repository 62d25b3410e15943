// OpChains: the chains of one engine (op_chain.h) that may be open, by their owners, and how they start.
//
// Threads:   any. A chain that has been released is its runner's.
// Ownership: keeps the ChainOwners, which HeldOps borrow; a chain's block is the Vars' arena's.
// Errors:    NewOwner throws std::bad_alloc; nothing else fails.
// Fork:      the list is whole in the child, for its thread may have HeldOps; what was held is lost.
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
  // After a registration: starts what it queued behind. `mine` goes on being held: its members may wait for each other.
  static void ReleaseNeeded(ThreadSlot& slot, const OpChain* mine = nullptr) {
    if (!slot.needed.empty()) [[unlikely]]
      ReleaseNeededSlow(slot, mine);
  }
  // Gives the next member its start; returns it, or null if none of the chain's has all its grants. Members are the
  // caller's alone until then.
  OpRecord* StartNext(Pass& pass, OpChain& chain);
  // The op on this thread will not end soon: if it has a member behind it, it leaves its chain, which goes on elsewhere.
  void Leave(OpRecord* op);

  void BeforeFork() ACQUIRE(mu_) { mu_.Lock(); }
  void AfterForkInParent() RELEASE(mu_) { mu_.Unlock(); }
  void AfterForkInChild(Arena& vars) RELEASE(mu_);

 private:
  static void ReleaseNeededSlow(ThreadSlot& slot, const OpChain* mine);

  EngineCore& core_;
  Mutex mu_;
  std::deque<ChainOwner> owners_ GUARDED_BY(mu_);
  std::vector<ChainOwner*> free_ GUARDED_BY(mu_);
};

}  // namespace engine::detail
