// The completers' half of the dependency protocol (dependency.h, where its words are defined): an op that has ended gives
// its accesses back, and grants what waits behind them. What both halves need, grants and pins, is here, too.
#pragma once

#include "order/dependency_types.h"

namespace engine::detail {

template <class Env>
struct DependencyEnds : DependencyTypes<Env> {
  using Types = DependencyTypes<Env>;
  using typename Types::Access, typename Types::Ctx, typename Types::Group, typename Types::Op;
  using Types::kGroup, Types::kHeld, Types::kBits, Types::kDone, Types::kGranted;

  // The op has run (or failed, or was skipped) and the poison of its Vars is set: releases its accesses and its block.
  // Env::OnReady gets the ops that become ready.
  ENGINE_INLINE static void Complete(Ctx& ctx, Op* op) {
    const uint32_t n = op->n_access;
    Access* const access = op->accesses();
    uint32_t writes = 0;
    Access* last_write = nullptr;
    for (Access* a = access; a != access + n; ++a) {
      if (a->read()) {
        LeaveGroup(ctx, reinterpret_cast<Group*>(a->link.load(std::memory_order_relaxed)));
      } else {
        ++writes;
        last_write = a;
        // release: publishes the value and the poison of this version. Partner: the acquire load in Settled.
        a->var->settled.store(a->version(), std::memory_order_release);
      }
    }
    if (!writes) return DropPins(ctx, op, 1);
    if (op->deletes) return DropPins(ctx, op, writes);  // nothing comes behind a deletion
    // We have one pin for each write, until LeaveWrite leaves it to a pusher; whoever drops the last pin recycles the
    // block.
    uint32_t drop = 0;
    for (Access* a = access; writes > 1; ++a) {
      if (a->read()) continue;
      --writes;
      drop += LeaveWrite(ctx, op, *a);
    }
    drop += LeaveWrite(ctx, op, *last_write);
    if (drop) DropPins(ctx, op, drop);
  }

  // Complete for the most common op, which has one write and nothing else; small enough to be inlined. Returns false,
  // and does nothing, for any other op.
  ENGINE_INLINE static bool CompleteSoleWrite(Ctx& ctx, Op* op) {
    Access& a = *op->accesses();
    if (op->n_access != 1 || a.read() || op->deletes) return false;
    a.var->settled.store(a.version(), std::memory_order_release);  // as in Complete
    if (LeaveWrite(ctx, op, a)) DropPins(ctx, op, 1);
    return true;
  }

  // Releases one access of an op that goes on, as Complete does for all of them. Call it once for each access. A pin of
  // the op's own (Env::ExtraPins) keeps the block until DropPins.
  static void CompleteOne(Ctx& ctx, Op* op, Access& a) {
    if (a.read()) return LeaveGroup(ctx, reinterpret_cast<Group*>(a.link.load(std::memory_order_relaxed)));
    if constexpr (Env::kMutant != Mutant::kSettledLate)
      a.var->settled.store(a.version(), std::memory_order_release);  // as in Complete
    const uint32_t drop = LeaveWrite(ctx, op, a);
    if constexpr (Env::kMutant == Mutant::kSettledLate) a.var->settled.store(a.version(), std::memory_order_release);
    if (drop) DropPins(ctx, op, 1);
  }

  // Gives the bias: the start of a held op.
  static void ReleaseBias(Ctx& ctx, Op* op) {
    if (GrantMany(op, 1)) Env::OnReady(ctx, op);
  }

  ENGINE_INLINE static void DropPins(Ctx& ctx, Op* op, uint32_t n) {
    Env::CheckPins(op, n);
    // acquire: sees the last exchanges of others on our links. Partner: the release in the fetch_sub of others here. If
    // the count is all ours, no read-modify-write is needed.
    if (op->pins.load(std::memory_order_acquire) == n || op->pins.fetch_sub(n, std::memory_order_acq_rel) == n)
      Env::Recycle(ctx, op);
  }

  static Group* GroupOf(uintptr_t word) { return reinterpret_cast<Group*>(word & ~kBits); }
  static Access* AccessOf(uintptr_t word) { return reinterpret_cast<Access*>(word & ~kBits); }

 protected:
  // The tail while this write is the last access.
  ENGINE_INLINE static uintptr_t TailOf(Op* op, Access& a) {
    return reinterpret_cast<uintptr_t>(&a) | (Env::IsHeld(op) ? kHeld : 0);
  }

  ENGINE_INLINE static void LeaveGroup(Ctx& ctx, Group* g) {
    // release: our reads are over. acquire: `successor`, and the ends of the other readers. Partners: CloseGroup, and
    // this line in the other readers. A count of 1 means that the group is closed and only we are left: no
    // read-modify-write is needed.
    if (g->count.load(std::memory_order_acquire) == 1 || g->count.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      Op* successor = g->successor;
      Env::DropGroup(ctx, g);
      Grant(ctx, successor);
    }
  }

  // Returns 1 if the pin of this write is ours to drop, 0 if a pusher that sees the write will drop it.
  ENGINE_INLINE static uint32_t LeaveWrite(Ctx& ctx, Op* op, Access& a) {
    constexpr uint32_t kLeft = Env::kMutant == Mutant::kMissingPin ? 1 : 0;
    // acquire: the successor's block. Partner: the release exchange in Follow.
    uintptr_t next = a.link.load(std::memory_order_acquire);
    if (!next) {
      uintptr_t me = TailOf(op, a);
      if constexpr (Env::kMutant == Mutant::kDoneBeforeIdle) {
        next = a.link.exchange(kDone, std::memory_order_acq_rel);
        if (!next)
          return a.var->tail.compare_exchange_strong(me, 0, std::memory_order_acq_rel, std::memory_order_relaxed);
      } else {
        // release: our effects, for whoever finds the Var idle. Partner: the acquire in Lock. The tail is set idle
        // before the link is set kDone: after kDone, a pusher may drop the pin, the block may be recycled, and `me` may
        // be the tail of a new op.
        if (a.var->tail.compare_exchange_strong(me, 0, std::memory_order_release, std::memory_order_relaxed)) return 1;
        // release: our effects. Partner: the acquire in Follow.
        next = a.link.exchange(kDone, std::memory_order_acq_rel);
        if (!next) return kLeft;
      }
    }
    if (next & kGroup) {
      GrantGroup(ctx, GroupOf(next), nullptr);
    } else {
      Grant(ctx, reinterpret_cast<Op*>(next));
    }
    return 1;
  }

  // Grants every reader that waits in the group. Returns whether `own` was among them; it always is.
  [[gnu::noinline]] static bool GrantGroup(Ctx& ctx, Group* g, Access* own) {
    uintptr_t list = Env::kMutant == Mutant::kDroppedGrant ? g->waiters.load(std::memory_order_acquire)
                                                           : g->waiters.exchange(kGranted, std::memory_order_acq_rel);
    if constexpr (Env::kMutant == Mutant::kDroppedGrant) g->waiters.store(kGranted, std::memory_order_release);
    bool found = false;
    while (list) {
      auto* a = reinterpret_cast<Access*>(list);
      list = a->link.load(std::memory_order_relaxed);  // read before the grant, because the block may be gone after it
      a->link.store(reinterpret_cast<uintptr_t>(g), std::memory_order_relaxed);
      if (a == own) {
        found = true;
      } else {
        Grant(ctx, a->op);
      }
    }
    return found;
  }

  ENGINE_INLINE static void Grant(Ctx& ctx, Op* op) {
    if (GrantMany(op, 1)) Env::OnReady(ctx, op);
  }

  // acq_rel: what every granter did is visible to the op's body. The last grant needs no read-modify-write: a count
  // that is all ours cannot be changed by anybody else.
  ENGINE_INLINE static bool GrantMany(Op* op, uint32_t n) {
    Env::CheckGrant(op, n);
    if (op->wait.load(std::memory_order_acquire) == n) return true;
    return op->wait.fetch_sub(n, std::memory_order_acq_rel) == n;
  }
};

}  // namespace engine::detail
