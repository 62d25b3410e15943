// The dependency protocol: decides, for every op pushed, when all its accesses are granted.
//
// A template over its atomics (`Env`), so that the very code that ships runs under the exhaustive interleaving
// checker (tests/checker) and under plain atomics in production. See README.md for the states in pictures.
//
// Threads:   Register by any number of pushers, Complete by any number of completers, all at once. A pusher waits
//            only for pushers, and only for a handful of stores; completers never wait.
// Ownership: the caller owns op blocks until Register; Env::Recycle gets each back exactly once, when neither a
//            completer nor a pusher that saw one of its accesses can look at it again. Groups likewise.
// Order:     Register holds the tails of all its Vars at once (two-phase), so overlapping pushes are ordered one
//            way on all the Vars they share. Visiting Vars in sorted order without holding them would not do.
// Errors:    Register can refuse a deleted Var, and then has changed nothing. Nothing else can fail.
//
// Env provides: Atomic<T>; OpExtra, PusherExtra, CompleterExtra (production fields that share our cache lines);
// Ctx, a thread's context; TakeGroup<Group>(ctx), DropGroup(ctx, group), Recycle(ctx, op), OnReady(ctx, op),
// ExtraPins(op), SpinOnLock(round), Scratch(ctx), of as many bytes as ScratchBytes says, CheckGrant(op, n) and
// CheckPins(op, n), which may assert, and `kMutant`, Mutant::kNone in production. For ops that are held together (bulk):
// IsHeld(op), whether the op has a holder; Holder(op), what holds it back or held it once, or null, asked by who has the op;
// HolderAtTail(op), the same of another's op that has one and is pinned; Holds(holder), false once it has let go of all
// that it held when asked; and Need(ctx, holder): an op that `holder` does not hold was registered behind one that it does. A
// tail says whether it leads to such an op, so that others pay a bit test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "order/dependency_types.h"

namespace engine::detail {

template <class Env>
struct Dependency : DependencyTypes<Env> {
  using Types = DependencyTypes<Env>;
  using typename Types::Access, typename Types::Ctx, typename Types::Group, typename Types::Op, typename Types::Var;
  using Types::kLocked, Types::kGroup, Types::kOpen, Types::kHeld, Types::kBits, Types::kDone, Types::kGranted;
  using Types::kSeveral;

  // How many may look at a block, once it is registered. Set by the caller: it knows how many of the accesses are no reads.
  static void SetPins(Op* op, uint32_t writes) { SetPins(op, writes, Env::ExtraPins(op)); }
  ENGINE_INLINE static void SetPins(Op* op, uint32_t writes, uint32_t extra) {
    op->pins.store((writes ? writes : 1) + extra, std::memory_order_relaxed);
  }

  // Accesses must be sorted by Var address; each Var once; `n_access` of them initialised but for link and version; pins
  // set. `bias` extra grants are awaited (1 for a held op). The ctx must hold as many free groups as the op has reads.
  // Afterwards the op may run, complete and be recycled at any moment, unless kReady is returned: then every access
  // is granted, nobody else knows it, and starting it is the caller's business.
  enum class Result { kReady, kPending, kDeletedVar };
  ENGINE_INLINE static Result Register(Ctx& ctx, Op* op, uint32_t bias, Access** refused) {
    const uint32_t n = op->n_access;
    op->wait.store(n + bias, std::memory_order_relaxed);
    const bool one = n == 1 && Env::kMutant != Mutant::kLinkBeforePublish;  // a fault that only RegisterAll can carry
    const uint32_t granted = one ? RegisterOne(ctx, op, refused) : RegisterAll(ctx, op, refused);
    if (granted == kRefused) [[unlikely]]
      return Result::kDeletedVar;
    // Nobody else grants an op whose accesses were all granted here, but for its holder, which does not while it pushes.
    if (granted == n) {
      if (bias == 0) return Result::kReady;
      if (Env::IsHeld(op)) {
        op->wait.store(bias, std::memory_order_relaxed);
        return Result::kPending;
      }
    }
    if (granted && GrantMany(op, granted)) return Result::kReady;
    return Result::kPending;
  }

  // Of an op that is granted and about to run: fetches what its end will write, again all at once.
  ENGINE_INLINE static void PrefetchEnd(Op* op) {
    Access* const access = op->accesses();
    for (uint32_t i = 0; i < op->n_access; ++i) {
      const void* line = &access[i].var->settled;
      if (access[i].read()) line = GroupOf(access[i].link.load(std::memory_order_relaxed));
      Env::Prefetch(line);
    }
  }

  // The op has run (or failed, or was skipped) and its Vars' poison is set: releases its accesses and the block.
  // Ops that become ready go to Env::OnReady.
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
    // Each write's pin is ours until it is left to a pusher, and with the last of them the block.
    uint32_t drop = 0;
    for (Access* a = access; writes > 1; ++a) {
      if (a->read()) continue;
      --writes;
      drop += LeaveWrite(ctx, op, *a);
    }
    drop += LeaveWrite(ctx, op, *last_write);
    if (drop) DropPins(ctx, op, drop);
  }

  // Complete for the most common op, small enough to stand where it is called: one write. False: it is another one.
  ENGINE_INLINE static bool CompleteSoleWrite(Ctx& ctx, Op* op) {
    Access& a = *op->accesses();
    if (op->n_access != 1 || a.read() || op->deletes) return false;
    a.var->settled.store(a.version(), std::memory_order_release);  // as in Complete
    if (LeaveWrite(ctx, op, a)) DropPins(ctx, op, 1);
    return true;
  }

  // Releases one access of an op that goes on: what Complete does for all of them. Each access once; a pin of the op's
  // own (Env::ExtraPins) keeps the block until DropPins.
  static void CompleteOne(Ctx& ctx, Op* op, Access& a) {
    if (a.read()) return LeaveGroup(ctx, reinterpret_cast<Group*>(a.link.load(std::memory_order_relaxed)));
    if constexpr (Env::kMutant != Mutant::kSettledLate)
      a.var->settled.store(a.version(), std::memory_order_release);  // as in Complete
    const uint32_t drop = LeaveWrite(ctx, op, a);
    if constexpr (Env::kMutant == Mutant::kSettledLate) a.var->settled.store(a.version(), std::memory_order_release);
    if (drop) DropPins(ctx, op, 1);
  }

  // Releases one awaited grant that is not an access: a held op's start.
  static void ReleaseBias(Ctx& ctx, Op* op) {
    if (GrantMany(op, 1)) Env::OnReady(ctx, op);
  }

  ENGINE_INLINE static void DropPins(Ctx& ctx, Op* op, uint32_t n) {
    Env::CheckPins(op, n);
    // acquire: sees the last exchange that others made on our links. Partner: their release below. A count that is
    // all ours needs no read-modify-write.
    if (op->pins.load(std::memory_order_acquire) == n || op->pins.fetch_sub(n, std::memory_order_acq_rel) == n)
      Env::Recycle(ctx, op);
  }

  // Every write pushed before now has finished. acquire: partner is the store of `settled` in Complete. Reading
  // settled first makes the answer conservative.
  static bool Settled(const Var* var) {
    const uint64_t settled = var->settled.load(std::memory_order_acquire);
    return settled >= var->pushed.load(std::memory_order_relaxed);
  }

  // Before a push that will register behind what the tail names now: fetches what it will touch there, so that the lines
  // of several Vars come at once and not each after the one before.
  ENGINE_INLINE static void PrefetchTail(const Var* var, Mode mode) {
    const uintptr_t tail = var->tail.load(std::memory_order_relaxed);
    if ((tail & kOpen) && mode == Mode::kRead) return;  // joins without a look
    Env::Prefetch(reinterpret_cast<const void*>(tail & ~kBits));
    // A finished writer's header, where it is one of the first accesses: its pin will be ours to drop.
    if (!(tail & kGroup)) Env::Prefetch(reinterpret_cast<const void*>((tail & ~kBits) - sizeof(Op)));
  }

  // A hint: the last op pushed on it is held, or was. relaxed: whoever acts on it pushes, and then sees for sure.
  static bool BehindHeld(const Var* var) { return var->tail.load(std::memory_order_relaxed) & kHeld; }

  ENGINE_INLINE static void Lock(Var* var, uintptr_t* old) {
    // acquire: what the last holder wrote under the lock. Partner: the release store in Unlock, and the release
    // of tail -> idle in LeaveWrite. An exchange that finds kLocked has changed nothing.
    *old = var->tail.exchange(kLocked, std::memory_order_acquire);
    if (*old == kLocked) [[unlikely]]
      *old = LockHeld(var);
  }
  ENGINE_INLINE static void Unlock(Var* var, uintptr_t tail) { var->tail.store(tail, std::memory_order_release); }

  static Group* GroupOf(uintptr_t word) { return reinterpret_cast<Group*>(word & ~kBits); }

 private:
  [[gnu::noinline]] static uintptr_t LockHeld(Var* var) {
    for (uint32_t round = 0;; ++round) {
      Env::SpinOnLock(round);
      if (var->tail.load(std::memory_order_relaxed) == kLocked) continue;
      const uintptr_t old = var->tail.exchange(kLocked, std::memory_order_acquire);
      if (old != kLocked) return old;
    }
  }

  static constexpr uint32_t kOnStack = 16;  // accesses that need no scratch
  struct Seen {
    uintptr_t old;     // tail before us
    uintptr_t now;     // tail that we publish
    uint64_t entered;  // readers of the group that we close
  };

 public:
  // What Env::Scratch must hold for the registration of so many accesses.
  static constexpr size_t ScratchBytes(size_t accesses) { return accesses <= kOnStack ? 0 : accesses * sizeof(Seen); }

 private:
  // Each returns how many accesses are granted at once; kRefused: a deleted Var, and nothing has changed.
  static constexpr uint32_t kRefused = UINT32_MAX;
  // The steps of RegisterAll, for one access.
  ENGINE_INLINE static uint32_t RegisterOne(Ctx& ctx, Op* op, Access** refused) {
    Access& a = *op->accesses();
    Seen seen;
    Lock(a.var, &seen.old);
    if (a.var->deleted.load(std::memory_order_relaxed)) [[unlikely]] {
      *refused = &a;
      Unlock(a.var, seen.old);
      return kRefused;
    }
    if (a.read()) {
      EnterToRead(ctx, a, op, seen);
      Unlock(a.var, seen.now);
      return LinkToRead(ctx, a, seen);
    }
    EnterToWrite(ctx, a, op, seen);
    Unlock(a.var, seen.now);
    return LinkToWrite(ctx, a, seen);
  }
  // Two-phase: locks every tail, publishes, links.
  static uint32_t RegisterAll(Ctx& ctx, Op* op, Access** refused) {
    const uint32_t n = op->n_access;
    Access* const access = op->accesses();
    Seen on_stack[kOnStack];
    Seen* const seen = n <= kOnStack ? on_stack : static_cast<Seen*>(Env::Scratch(ctx));
    const auto early = [&](uint32_t i) {  // mutants only: publishes one Var while others are not yet held
      Lock(access[i].var, &seen[i].old);
      Enter(ctx, access[i], op, seen[i]);
      Unlock(access[i].var, seen[i].now);
    };
    if constexpr (Env::kMutant == Mutant::kOrderSwapOnOneVar)
      if (n > 0) early(n - 1);

    // 1. Lock every tail in address order. The linearization point is the moment when all are held.
    for (uint32_t i = 0; i < n; ++i) {
      if constexpr (Env::kMutant == Mutant::kSortedWithoutHolding) {
        early(i);
        continue;
      }
      if (Env::kMutant == Mutant::kOrderSwapOnOneVar && i == n - 1) continue;
      Access& a = access[i];
      Lock(a.var, &seen[i].old);
      if (a.var->deleted.load(std::memory_order_relaxed)) [[unlikely]] {
        *refused = &a;
        for (uint32_t k = i + 1; k-- > 0;) Unlock(access[k].var, seen[k].old);
        return kRefused;
      }
    }
    // 2. Publish every new tail; that store also unlocks. Whoever queues behind one of them finds that access whole, and the
    // op reaches nobody before it, who could grant it, until it is linked.
    const uint32_t held = Env::kMutant == Mutant::kSortedWithoutHolding         ? 0
                          : Env::kMutant == Mutant::kOrderSwapOnOneVar && n > 0 ? n - 1
                                                                                : n;
    for (uint32_t i = 0; i < held; ++i) {
      Enter(ctx, access[i], op, seen[i]);
      if constexpr (Env::kMutant != Mutant::kLinkBeforePublish) Unlock(access[i].var, seen[i].now);
    }
    // 3. Link to what was there before, and count what is granted at once.
    uint32_t granted = 0;
    for (uint32_t i = 0; i < n; ++i) granted += Link(ctx, access[i], seen[i]);
    if constexpr (Env::kMutant == Mutant::kLinkBeforePublish)
      for (uint32_t i = 0; i < n; ++i) Unlock(access[i].var, seen[i].now);
    return granted;
  }

  // Under LOCK: takes the version, enters or opens a group, and prepares the tail to publish.
  ENGINE_INLINE static void Enter(Ctx& ctx, Access& a, Op* op, Seen& seen) {
    a.read() ? EnterToRead(ctx, a, op, seen) : EnterToWrite(ctx, a, op, seen);
  }
  ENGINE_INLINE static void EnterToWrite(Ctx& ctx, Access& a, Op* op, Seen& seen) {
    Var* const v = a.var;
    a.op = op;
    const uint64_t version = v->pushed.load(std::memory_order_relaxed) + !op->keeps_version;
    a.set_version(version);
    a.link.store(0, std::memory_order_relaxed);
    v->pushed.store(version, std::memory_order_relaxed);
    if (op->deletes) v->deleted.store(1, std::memory_order_relaxed);
    seen.entered = v->entered;
    seen.now = TailOf(op, a);
    if ((seen.old & kHeld) && !BehindOwn(op, seen.old)) [[unlikely]]
      seen.now = NoteHeld(ctx, a, op, seen.old, seen.now, seen.entered);
  }
  ENGINE_INLINE static void EnterToRead(Ctx& ctx, Access& a, Op* op, Seen& seen) {
    Var* const v = a.var;
    a.op = op;
    a.set_version(v->pushed.load(std::memory_order_relaxed));
    if (seen.old & kGroup) {
      ++v->entered;
      Group* g = GroupOf(seen.old);
      seen.now = seen.old;
      if (!(seen.old & kOpen) && g->waiters.load(std::memory_order_acquire) == kGranted) seen.now |= kOpen;
      a.link.store(reinterpret_cast<uintptr_t>(g), std::memory_order_relaxed);
      void* const mine = Env::Holder(op);
      if (((seen.old & kHeld) || mine) && !IsNoted(g, seen.old, mine)) [[unlikely]]
        seen.now = NoteHeld(ctx, a, op, seen.old, seen.now, 0);
      return;
    }
    v->entered = 1;
    Group* g = Env::template TakeGroup<Group>(ctx);
    const bool granted = seen.old == 0;
    g->count.store(Env::kMutant == Mutant::kMissingCloseBias ? 1 : 0, std::memory_order_relaxed);
    g->waiters.store(granted ? kGranted : reinterpret_cast<uintptr_t>(&a), std::memory_order_relaxed);
    a.link.store(granted ? reinterpret_cast<uintptr_t>(g) : 0, std::memory_order_relaxed);
    seen.now = reinterpret_cast<uintptr_t>(g) | kGroup | (granted ? kOpen : 0);
    if ((seen.old & kHeld) || Env::Holder(op)) [[unlikely]]
      seen.now = NoteHeld(ctx, a, op, seen.old, seen.now, 0);
  }

  // What the tail says while this write is the last access.
  ENGINE_INLINE static uintptr_t TailOf(Op* op, Access& a) {
    return reinterpret_cast<uintptr_t>(&a) | (Env::IsHeld(op) ? kHeld : 0);
  }

  // A write that follows one of its own holder's: nothing to note.
  ENGINE_INLINE static bool BehindOwn(Op* op, uintptr_t old) {
    return !(old & kGroup) && Env::Holder(op) == Env::HolderAtTail(AccessOf(old)->op);
  }

  // Of a reader that joins readers of its own holder's: NoteHeld would change nothing.
  ENGINE_INLINE static bool IsNoted(const Group* g, uintptr_t old, const void* mine) {
    return mine && (old & kHeld) && g->holder == mine && (!g->holder_before || g->holder_before == mine);
  }

  // Under LOCK: where ops are held, notes in the group who holds its readers and what it waits for, and
  // tells whose ops we queue behind. The write at the tail is pinned by it, so its block can be looked at. A holder seen
  // here may have let go long ago: Need must bear that. Returns the tail to publish instead of `now`.
  [[gnu::noinline]] static uintptr_t NoteHeld(Ctx& ctx, Access& a, Op* op, uintptr_t old, uintptr_t now,
                                              uint64_t entered) {
    void* const mine = Env::Holder(op);
    const auto need = [&](void* holder) {
      if (holder && holder != mine && !op->deletes && Holds(holder))
        Env::Need(ctx, holder);  // nobody waits for a deletion
    };
    if (old & kGroup) {
      Group* const g = GroupOf(old);
      if constexpr (Env::kMutant != Mutant::kForgottenHolder)
        if (!((old | now) & kOpen)) need(g->holder_before);
      if (!a.read()) {
        // Nobody is held who has left. acquire: as their leaving is seen anywhere else.
        if (g->count.load(std::memory_order_acquire) != -static_cast<int64_t>(entered)) need(g->holder);
        return now;
      }
    } else if (old) {
      void* const before = old & kHeld ? Env::HolderAtTail(AccessOf(old)->op) : nullptr;
      need(before);
      if (!a.read()) return now;
      GroupOf(now)->holder_before = before;
    }
    Group* const g = GroupOf(now);
    if (mine) g->holder = g->holder && g->holder != mine && Holds(g->holder) ? kSeveral : mine;
    return now | kHeld;
  }

  static bool Holds(void* holder) { return holder == kSeveral || Env::Holds(holder); }

  // Published: joins the queue behind what was there. Returns whether the access is granted at once.
  ENGINE_INLINE static bool Link(Ctx& ctx, Access& a, const Seen& seen) {
    return a.read() ? LinkToRead(ctx, a, seen) : LinkToWrite(ctx, a, seen);
  }
  ENGINE_INLINE static bool LinkToRead(Ctx& ctx, Access& a, const Seen& seen) {
    const uintptr_t old = seen.old;
    if (old == 0 || (seen.now & kOpen)) return true;
    if (old & kGroup) return JoinWaiters(a, GroupOf(old));
    Group* g = GroupOf(seen.now);
    if (!Follow(ctx, AccessOf(old), reinterpret_cast<uintptr_t>(g) | kGroup)) return false;
    return GrantGroup(ctx, g, &a);  // the writer had gone: we open the group, for those who joined it too
  }
  ENGINE_INLINE static bool LinkToWrite(Ctx& ctx, Access& a, const Seen& seen) {
    const uintptr_t old = seen.old;
    if (old == 0) return true;
    if (old & kGroup) return CloseGroup(ctx, GroupOf(old), a, seen.entered);
    return Follow(ctx, AccessOf(old), reinterpret_cast<uintptr_t>(a.op));
  }

  // Hangs `me` behind a writer; true if the writer had gone already.
  ENGINE_INLINE static bool Follow(Ctx& ctx, Access* writer, uintptr_t me) {
    // acquire: the writer's effects. Partner: the release exchange to kDone in LeaveWrite. release: our block.
    // Partner: the acquire load of the link there. Finding kDone needs no exchange, nobody else comes.
    if (writer->link.load(std::memory_order_acquire) != kDone &&
        writer->link.exchange(me, std::memory_order_acq_rel) != kDone)
      return false;
    if constexpr (Env::kMutant != Mutant::kMissingPin) DropPins(ctx, writer->op, 1);
    return true;
  }

  [[gnu::noinline]] static bool JoinWaiters(Access& a, Group* g) {
    uintptr_t head = g->waiters.load(std::memory_order_acquire);
    for (;;) {
      if (head == kGranted) {
        a.link.store(reinterpret_cast<uintptr_t>(g), std::memory_order_relaxed);
        return true;
      }
      a.link.store(head, std::memory_order_relaxed);
      // release: our access. Partner: the acquire exchange in GrantGroup. acquire on failure: kGranted may be there.
      if (g->waiters.compare_exchange_weak(head, reinterpret_cast<uintptr_t>(&a), std::memory_order_release,
                                           std::memory_order_acquire))
        return false;
    }
  }

  // Returns whether the group's readers have all gone, and frees it then.
  ENGINE_INLINE static bool CloseGroup(Ctx& ctx, Group* g, Access& a, uint64_t entered) {
    const auto n = static_cast<int64_t>(entered);
    g->successor = a.op;
    if constexpr (Env::kMutant == Mutant::kMissingCloseBias) {
      if (g->count.fetch_add(n - 1, std::memory_order_acq_rel) + n - 1 != 0) return false;
    } else {
      // acquire: the readers' last looks. Partner: the release in LeaveGroup. release: `successor`. Partner: the
      // acquire there. If all have left already, nobody else will touch the count.
      if (g->count.load(std::memory_order_acquire) != -n && g->count.fetch_add(n, std::memory_order_acq_rel) != -n)
        return false;
    }
    Env::DropGroup(ctx, g);
    return true;
  }

  ENGINE_INLINE static void LeaveGroup(Ctx& ctx, Group* g) {
    // release: our reads are over. acquire: `successor` and the other readers' ends. Partners: CloseGroup, and this
    // line in the other readers. A count of 1 means closed and only we are left: no read-modify-write.
    if (g->count.load(std::memory_order_acquire) == 1 || g->count.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      Op* successor = g->successor;
      Env::DropGroup(ctx, g);
      Grant(ctx, successor);
    }
  }

  // Returns 1 if the pin of this write is ours to drop, 0 if a pusher that sees us will.
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
        // release: our effects, to whoever finds the Var idle. Partner: the acquire in Lock. Idle comes before DONE:
        // once DONE is out, a pusher may drop the pin, the block be recycled, and `me` be the tail of a new op.
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

  // Opens the group: grants everyone who waits in it. Returns whether `own` was among them (it always is).
  [[gnu::noinline]] static bool GrantGroup(Ctx& ctx, Group* g, Access* own) {
    uintptr_t list = Env::kMutant == Mutant::kDroppedGrant ? g->waiters.load(std::memory_order_acquire)
                                                           : g->waiters.exchange(kGranted, std::memory_order_acq_rel);
    if constexpr (Env::kMutant == Mutant::kDroppedGrant) g->waiters.store(kGranted, std::memory_order_release);
    bool found = false;
    while (list) {
      auto* a = reinterpret_cast<Access*>(list);
      list = a->link.load(std::memory_order_relaxed);  // before the grant: afterwards the block may be gone
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

  // acq_rel: every granter's past reaches the op's body. The last grant needs no read-modify-write: a count that is
  // all ours cannot be changed by anybody else.
  ENGINE_INLINE static bool GrantMany(Op* op, uint32_t n) {
    Env::CheckGrant(op, n);
    if (op->wait.load(std::memory_order_acquire) == n) return true;
    return op->wait.fetch_sub(n, std::memory_order_acq_rel) == n;
  }

  static Access* AccessOf(uintptr_t word) { return reinterpret_cast<Access*>(word & ~kBits); }
};

}  // namespace engine::detail
