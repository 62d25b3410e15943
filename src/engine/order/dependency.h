// The dependency protocol: decides, for every op that is pushed, when all its accesses are granted.
//
// A template over its atomics (`Env`): tests/checker runs this very code through every interleaving, and production
// runs it with std::atomic. src/engine/README.md has the life of an op as a picture. What completers do lies in
// dependency_ends.h, what both work on in dependency_types.h.
//
// Threads:   any number of pushers may call Register, and any number of completers Complete, all at once. A pusher
//            waits only for other pushers, and only for a handful of stores; a completer never waits.
// Ownership: the caller owns the block of an op until Register. Env::Recycle gets each block back exactly once, when no
//            completer and no pusher that saw one of its accesses can look at it again. Groups likewise.
// Order:     Register locks the tails of all its Vars at once (two-phase), so pushes that overlap in time are ordered
//            one way on all the Vars they share. Visiting the Vars in sorted order without locking them together
//            would not do that.
// Errors:    Register refuses a deleted Var, and has changed nothing then. Nothing else can fail.
//
// Words: the *tail* of a Var is the last access that was registered on it. A *group* is the readers between two
// writers. A *grant* is the right to one access; an op is ready when no grant is missing. A *bias* is a grant that is
// no access: a held op waits for it, and its release gives it. A *pin* keeps an op's block from being recycled.
//
// Env provides: Atomic<T>; OpExtra, PusherExtra, CompleterExtra (production fields that share our cache lines);
// Ctx, a thread's context; TakeGroup<Group>(ctx), DropGroup(ctx, group), Recycle(ctx, op), OnReady(ctx, op),
// ExtraPins(op), SpinOnLock(round); Scratch(ctx), memory of as many bytes as ScratchBytes says; CheckGrant(op, n) and
// CheckPins(op, n), which may assert; `kMutant`, Mutant::kNone in production. For ops that are held together (bulk), a
// *holder* is what holds them:
//   IsHeld(op)          whether the op has a holder, now or earlier;
//   Holder(op)          that holder or null; the caller owns the op;
//   HolderAtTail(op)    the same for another thread's op that IsHeld and is pinned;
//   Holds(holder)       whether the holder holds ops; false once it has released all that it held;
//   MustRelease(ctx, holder)
//                       an op that `holder` does not hold was registered behind one that it holds: `holder` must
//                       release its ops after the registration.
// A bit in the tail (kHeld) says whether the tail leads to such an op, so that all other pushes pay a bit test.
#pragma once

#include "order/dependency_ends.h"

namespace engine::detail {

template <class Env>
struct Dependency : DependencyEnds<Env> {
  using Types = DependencyTypes<Env>;
  using Ends = DependencyEnds<Env>;
  using Ends::AccessOf, Ends::GroupOf, Ends::DropPins;
  using typename Types::Access, typename Types::Ctx, typename Types::Group, typename Types::Op, typename Types::Var;
  using Types::kLocked, Types::kGroup, Types::kOpen, Types::kHeld, Types::kBits, Types::kDone, Types::kGranted;
  using Types::kSeveral;

  // Sets the pins that a block has once it is registered. The caller knows how many of the accesses are no reads.
  static void SetPins(Op* op, uint32_t writes) { SetPins(op, writes, Env::ExtraPins(op)); }
  ENGINE_INLINE static void SetPins(Op* op, uint32_t writes, uint32_t extra) {
    op->pins.store((writes ? writes : 1) + extra, std::memory_order_relaxed);
  }

  // Accesses must be sorted by the address of the Var and name each Var once. All fields of `n_access` of them must be
  // set except link and version, and so must the pins. The op waits for `bias` grants besides its accesses (1 for a
  // held op). The ctx must hold as many free groups as the op has reads. After Register the op may run, complete and be
  // recycled at any moment, unless it returns kReady: then every access is granted, nobody else knows the op, and the
  // caller must start it.
  enum class Result { kReady, kPending, kDeletedVar };
  ENGINE_INLINE static Result Register(Ctx& ctx, Op* op, uint32_t bias, Access** refused) {
    const uint32_t n = op->n_access;
    op->wait.store(n + bias, std::memory_order_relaxed);
    const bool one = n == 1 && Env::kMutant != Mutant::kLinkBeforePublish;  // a fault that only RegisterAll can carry
    const uint32_t granted = one ? RegisterOne(ctx, op, refused) : RegisterAll(ctx, op, refused);
    if (granted == kRefused) [[unlikely]]
      return Result::kDeletedVar;
    // If all accesses were granted here, nobody else grants the op, except its holder, which does not while it pushes.
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

  // Registers `op` and others in one step, so that they have one place in the order, as one op with all their accesses
  // would. `access` lists the accesses of all of them, as one op's would have to be: sorted, each Var once; their `op`
  // is set. The others are those that it names besides `op`; nobody holds them. All that is said of Register holds for
  // each of them. The result is `op`'s; Env::OnReady gets the others that are ready at once. If a Var is deleted, none
  // is registered.
  static Result RegisterTogether(Ctx& ctx, Op* op, Access* const* access, uint32_t n, Access** refused) {
    for (uint32_t i = 0; i < n; ++i) access[i]->op->wait.store(access[i]->op->n_access, std::memory_order_relaxed);
    Seen on_stack[kOnStack];
    Seen* const seen = n <= kOnStack ? on_stack : static_cast<Seen*>(Env::Scratch(ctx));
    uint32_t granted = 0;
    // An op gets its last grant only after all its accesses have been linked. Until then its block cannot be recycled,
    // so `a.op` may be used.
    const auto link = [&](uint32_t i) {
      Access& a = *access[i];
      Op* const of = a.op;
      if (!Link(ctx, a, seen[i])) return;
      if (of == op) {
        ++granted;
      } else {
        Grant(ctx, of);
      }
    };
    if constexpr (Env::kMutant == Mutant::kTogetherOneByOne) {
      for (uint32_t i = 0; i < n; ++i) {
        Lock(access[i]->var, &seen[i].old);
        Enter(ctx, *access[i], access[i]->op, seen[i]);
        Unlock(access[i]->var, seen[i].now);
        link(i);
      }
      return granted && GrantMany(op, granted) ? Result::kReady : Result::kPending;
    }
    // The steps of RegisterAll. The place of all of them in the order is the moment when all tails are locked.
    for (uint32_t i = 0; i < n; ++i) {
      Access& a = *access[i];
      Lock(a.var, &seen[i].old);
      if (a.var->deleted.load(std::memory_order_relaxed)) [[unlikely]] {
        *refused = &a;
        for (uint32_t k = i + 1; k-- > 0;) Unlock(access[k]->var, seen[k].old);
        return Result::kDeletedVar;
      }
    }
    for (uint32_t i = 0; i < n; ++i) {
      Enter(ctx, *access[i], access[i]->op, seen[i]);
      Unlock(access[i]->var, seen[i].now);
    }
    for (uint32_t i = 0; i < n; ++i) link(i);
    return granted && GrantMany(op, granted) ? Result::kReady : Result::kPending;
  }

  // A look at a Var before a registration: would an access be granted at once? LooksFree may say no although it would;
  // IsFree locks the tail and knows, until others push or complete.
  static bool LooksFree(const Var* var, AccessMode mode) {
    // relaxed: only a hint; the registration sees for sure.
    const uintptr_t tail = var->tail.load(std::memory_order_relaxed);
    return tail == 0 || ((tail & kOpen) && mode == AccessMode::kRead);
  }
  static bool IsFree(Var* var, AccessMode mode) {
    if (LooksFree(var, mode)) return true;
    uintptr_t old = 0;
    Lock(var, &old);
    bool free = old == 0;
    // acquire: as wherever a finished write or group is seen; nothing is concluded from what they published.
    if (old & kGroup) {
      Group* const g = GroupOf(old);
      free = mode == AccessMode::kRead
                 ? g->waiters.load(std::memory_order_acquire) == kGranted
                 : g->count.load(std::memory_order_acquire) == -static_cast<int64_t>(var->entered);
    } else if (old) {
      free = AccessOf(old)->link.load(std::memory_order_acquire) == kDone;
    }
    Unlock(var, old);
    return free;
  }

  // Whether every write pushed before now has finished. acquire: partner is the store of `settled` in Complete.
  // `settled` is read before `pushed`, so a write in between makes the answer false, never true.
  static bool Settled(const Var* var) {
    const uint64_t settled = var->settled.load(std::memory_order_acquire);
    return settled >= var->pushed.load(std::memory_order_relaxed);
  }

  // Before a push that will register behind this tail: fetches what it will touch there, so that the lines of several
  // Vars come at once and not one after another.
  ENGINE_INLINE static void PrefetchTail(const Var* var, AccessMode mode) {
    const uintptr_t tail = var->tail.load(std::memory_order_relaxed);
    if ((tail & kOpen) && mode == AccessMode::kRead) return;  // such a reader joins without a look at the group
    Env::Prefetch(reinterpret_cast<const void*>(tail & ~kBits));
    // The header of a writer that has finished, if the access is one of the first: its pin will be ours to drop.
    if (!(tail & kGroup)) Env::Prefetch(reinterpret_cast<const void*>((tail & ~kBits) - sizeof(Op)));
  }

  // A hint: the last op that was pushed on the Var is held, or was. relaxed: the caller pushes next, and that push sees
  // for sure.
  static bool BehindHeld(const Var* var) { return var->tail.load(std::memory_order_relaxed) & kHeld; }

  ENGINE_INLINE static void Lock(Var* var, uintptr_t* old) {
    // acquire: what the lock's last owner wrote. Partners: the release store in Unlock, and the release of tail
    // -> idle in LeaveWrite. An exchange that finds kLocked has changed nothing.
    *old = var->tail.exchange(kLocked, std::memory_order_acquire);
    if (*old == kLocked) [[unlikely]]
      *old = LockTaken(var);
  }
  ENGINE_INLINE static void Unlock(Var* var, uintptr_t tail) { var->tail.store(tail, std::memory_order_release); }

 private:
  using Ends::TailOf, Ends::Grant, Ends::GrantGroup, Ends::GrantMany;

  [[gnu::noinline]] static uintptr_t LockTaken(Var* var) {
    for (uint32_t round = 0;; ++round) {
      Env::SpinOnLock(round);
      if (var->tail.load(std::memory_order_relaxed) == kLocked) continue;
      const uintptr_t old = var->tail.exchange(kLocked, std::memory_order_acquire);
      if (old != kLocked) return old;
    }
  }

  static constexpr uint32_t kOnStack = 16;  // an op with more accesses needs Env::Scratch
  struct Seen {
    uintptr_t old;     // the tail before this push
    uintptr_t now;     // the tail that this push publishes
    uint64_t entered;  // readers of the group that we close
  };

 public:
  // How many bytes Env::Scratch must have for an op with so many accesses.
  static constexpr size_t ScratchBytes(size_t accesses) { return accesses <= kOnStack ? 0 : accesses * sizeof(Seen); }

 private:
  // These return how many accesses are granted at once, or kRefused: a Var is deleted, and nothing has changed.
  static constexpr uint32_t kRefused = UINT32_MAX;
  // All steps of RegisterAll, for one access.
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
  // Two-phase: locks every tail, publishes the new tails, links.
  static uint32_t RegisterAll(Ctx& ctx, Op* op, Access** refused) {
    const uint32_t n = op->n_access;
    Access* const access = op->accesses();
    Seen on_stack[kOnStack];
    Seen* const seen = n <= kOnStack ? on_stack : static_cast<Seen*>(Env::Scratch(ctx));
    const auto early = [&](uint32_t i) {  // for mutants: publishes one Var while others are not locked
      Lock(access[i].var, &seen[i].old);
      Enter(ctx, access[i], op, seen[i]);
      Unlock(access[i].var, seen[i].now);
    };
    if constexpr (Env::kMutant == Mutant::kOrderSwapOnOneVar)
      if (n > 0) early(n - 1);

    // 1. Lock every tail, in the order of addresses. The op's place in the order is the moment when all are locked.
    for (uint32_t i = 0; i < n; ++i) {
      if constexpr (Env::kMutant == Mutant::kSortedWithoutLocking) {
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
    // 2. Publish every new tail, which also unlocks it. Whoever queues behind one of these tails finds a complete
    // access. Nobody before the op can reach the op, and so grant it, until step 3 links it.
    const uint32_t locked = Env::kMutant == Mutant::kSortedWithoutLocking         ? 0
                            : Env::kMutant == Mutant::kOrderSwapOnOneVar && n > 0 ? n - 1
                                                                                  : n;
    for (uint32_t i = 0; i < locked; ++i) {
      Enter(ctx, access[i], op, seen[i]);
      if constexpr (Env::kMutant != Mutant::kLinkBeforePublish) Unlock(access[i].var, seen[i].now);
    }
    // 3. Link to what each tail was before, and count the accesses that are granted at once.
    uint32_t granted = 0;
    for (uint32_t i = 0; i < n; ++i) granted += Link(ctx, access[i], seen[i]);
    if constexpr (Env::kMutant == Mutant::kLinkBeforePublish)
      for (uint32_t i = 0; i < n; ++i) Unlock(access[i].var, seen[i].now);
    return granted;
  }

  // Under LOCK: takes the version, enters or makes a group, and prepares the tail to publish.
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

  // A write behind a write of its own holder: there is nothing to note.
  ENGINE_INLINE static bool BehindOwn(Op* op, uintptr_t old) {
    return !(old & kGroup) && Env::Holder(op) == Env::HolderAtTail(AccessOf(old)->op);
  }

  // A read that joins reads of its own holder: NoteHeld would change nothing.
  ENGINE_INLINE static bool IsNoted(const Group* g, uintptr_t old, const void* mine) {
    return mine && (old & kHeld) && g->holder == mine && (!g->holder_before || g->holder_before == mine);
  }

  // Under LOCK, if ops are held: notes in the group which holder holds its readers and which holder the group waits
  // for, and calls MustRelease for the holders behind whose ops we queue. The write at the tail is pinned by that
  // write, so we may look at its block. A holder that is seen here may have released its ops long ago; MustRelease must
  // allow for that. Returns the tail to publish instead of `now`.
  [[gnu::noinline]] static uintptr_t NoteHeld(Ctx& ctx, Access& a, Op* op, uintptr_t old, uintptr_t now,
                                              uint64_t entered) {
    void* const mine = Env::Holder(op);
    const auto release = [&](void* holder) {
      // A deletion releases nothing, because nobody waits for it.
      if (holder && holder != mine && !op->deletes && Holds(holder)) Env::MustRelease(ctx, holder);
    };
    if (old & kGroup) {
      Group* const g = GroupOf(old);
      if constexpr (Env::kMutant != Mutant::kForgottenHolder)
        if (!((old | now) & kOpen)) release(g->holder_before);
      if (!a.read()) {
        // If all readers have left, none of them is held. acquire: as wherever their leaving is seen.
        if (g->count.load(std::memory_order_acquire) != -static_cast<int64_t>(entered)) release(g->holder);
        return now;
      }
    } else if (old) {
      void* const before = old & kHeld ? Env::HolderAtTail(AccessOf(old)->op) : nullptr;
      release(before);
      if (!a.read()) return now;
      GroupOf(now)->holder_before = before;
    }
    Group* const g = GroupOf(now);
    if (mine) g->holder = g->holder && g->holder != mine && Holds(g->holder) ? kSeveral : mine;
    return now | kHeld;
  }

  static bool Holds(void* holder) { return holder == kSeveral || Env::Holds(holder); }

  // After publishing: queues the access behind what was there before. Returns whether it is granted at once.
  ENGINE_INLINE static bool Link(Ctx& ctx, Access& a, const Seen& seen) {
    return a.read() ? LinkToRead(ctx, a, seen) : LinkToWrite(ctx, a, seen);
  }
  ENGINE_INLINE static bool LinkToRead(Ctx& ctx, Access& a, const Seen& seen) {
    const uintptr_t old = seen.old;
    if (old == 0 || (seen.now & kOpen)) return true;
    if (old & kGroup) return JoinWaiters(a, GroupOf(old));
    Group* g = GroupOf(seen.now);
    if (!Follow(ctx, AccessOf(old), reinterpret_cast<uintptr_t>(g) | kGroup)) return false;
    return GrantGroup(ctx, g, &a);  // the writer had finished: we grant all readers that joined meanwhile
  }
  ENGINE_INLINE static bool LinkToWrite(Ctx& ctx, Access& a, const Seen& seen) {
    const uintptr_t old = seen.old;
    if (old == 0) return true;
    if (old & kGroup) return CloseGroup(ctx, GroupOf(old), a, seen.entered);
    return Follow(ctx, AccessOf(old), reinterpret_cast<uintptr_t>(a.op));
  }

  // Queues `me` behind a writer; returns true if the writer had finished already.
  ENGINE_INLINE static bool Follow(Ctx& ctx, Access* writer, uintptr_t me) {
    // acquire: the writer's effects. Partner: the release exchange to kDone in LeaveWrite. release: our block. Partner:
    // the acquire load of the link in LeaveWrite. If the link is kDone, no exchange is needed, because nobody else
    // comes here.
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
      // release: our access. Partner: the acquire exchange in GrantGroup. acquire on failure: the word may be kGranted.
      if (g->waiters.compare_exchange_weak(head, reinterpret_cast<uintptr_t>(&a), std::memory_order_release,
                                           std::memory_order_acquire))
        return false;
    }
  }

  // Returns whether all readers of the group have left; if so, frees it.
  ENGINE_INLINE static bool CloseGroup(Ctx& ctx, Group* g, Access& a, uint64_t entered) {
    const auto n = static_cast<int64_t>(entered);
    g->successor = a.op;
    if constexpr (Env::kMutant == Mutant::kMissingCloseBias) {
      if (g->count.fetch_add(n - 1, std::memory_order_acq_rel) + n - 1 != 0) return false;
    } else {
      // acquire: the readers' last looks. Partner: the release in LeaveGroup. release: `successor`. Partner: the
      // acquire in LeaveGroup. If all readers have left already, nobody else will touch the count.
      if (g->count.load(std::memory_order_acquire) != -n && g->count.fetch_add(n, std::memory_order_acq_rel) != -n)
        return false;
    }
    Env::DropGroup(ctx, g);
    return true;
  }
};

}  // namespace engine::detail
