// A push: validates the op, takes a block, fills it, registers it, and starts the op if it is ready.
#include <sched.h>

#include <algorithm>
#include <new>

#include "core/access_list.h"
#include "core/completion_state.h"
#include "core/draft.h"
#include "engine/spi/held_ops.h"
#include "order/op_chain.h"

namespace engine::detail {

// The pusher that has taken the lock needs it only for some stores, but may have been preempted: so we pause, then
// yield, then sleep for a moment. Unlock wakes nobody, because a lock that is taken for a whole time slice is too rare
// to pay for in every unlock.
void ProductionEnv::SpinOnLock(uint32_t round) {
  if (round < tuning::kLockPauses) return Pause();
  if (round < tuning::kLockPauses + tuning::kLockYields) {
    sched_yield();
    return;
  }
  const timespec moment{0, 50'000};
  nanosleep(&moment, nullptr);
}

void EngineCore::CheckVar(const VarCore* var, const char* what, const char* op, Site site) const {
  if (!var)
    throw UsageError("a null Var among the " + std::string(what) + " of " + OpAt(op, site) +
                     "; make Vars with Engine::NewVar");
  if (var->pusher.core != this)
    throw UsageError("Var '" + std::string(var->pusher.name) + "' among the " + what + " of " + OpAt(op, site) +
                     " belongs to another engine; name Vars of the engine that the op is pushed to");
}

void EngineCore::CheckVar(const VarCore* var, const char* call, Site site) const {
  if (!var) throw UsageError(CallAt(call, site) + " names a null Var; make Vars with Engine::NewVar");
  if (var->pusher.core != this)
    throw UsageError(CallAt(call, site) + " names Var '" + var->pusher.name +
                     "', which belongs to another engine; call the engine that made it");
}

// Whether Sort sorts so many accesses; SortMany does the others.
ENGINE_INLINE bool Few([[maybe_unused]] uint32_t count) {
  return count <= kFewVars;  // mechanism: sorts_many
}

// Lists accesses that need scratch, or name some Var several times.
[[gnu::noinline]] uint32_t EngineCore::ListOnce(ThreadSlot* slot, OpRecord* op) {
  if (slot) slot->ReserveScratch(op->n_access);
  Access* const accesses = op->accesses();
  if (!Few(op->n_access)) SortMany(accesses, op->n_access);
  const uint32_t count = Merge(accesses, op->n_access);
  op->n_access = static_cast<uint16_t>(count);
  return static_cast<uint32_t>(
      std::count_if(accesses, accesses + count, [](const Access& access) { return !access.read(); }));
}

// Lists the op's Vars in its block, each once. Returns how many of them the op updates or writes.
ENGINE_INLINE uint32_t EngineCore::ListInline(ThreadSlot* slot, OpRecord* op, const OpDesc& desc) const {
  Access* const accesses = op->accesses();
  Access* a = accesses;
  uint64_t place = 0;
  const auto add = [&](const VarSet& set, AccessMode mode) {
    if (set.size() == 0) return;
    for (const VarRef& var : set) {
      VarCore* core = var.core();
      if (!core || core->pusher.core != this) [[unlikely]]
        CheckVar(core, AccessModeName(mode), op->extra.name, op->site());
      Protocol::PrefetchTail(core, mode);  // mechanism: prefetch_tails
      a->var = core;
      a->word = place | static_cast<uint64_t>(mode);
      place += 1 << 2;
      ++a;
    }
  };
  add(desc.reads, AccessMode::kRead);
  add(desc.updates, AccessMode::kUpdate);
  add(desc.writes, AccessMode::kWrite);
  const auto count = static_cast<uint32_t>(a - accesses);
  op->n_access = static_cast<uint16_t>(count);
  const bool twice = count > 1 && Few(count) && Sort(accesses, count);
  if (twice || Protocol::ScratchBytes(count) != 0) [[unlikely]]
    return ListOnce(slot, op);
  return count - static_cast<uint32_t>(desc.reads.size());
}

uint32_t EngineCore::ListAccesses(OpRecord* op, const OpDesc& desc) const { return ListInline(nullptr, op, desc); }

// Takes a block where the thread's magazine is empty or the block is large. Null: the push would have to wait for room.
void* EngineCore::TakeBlock(ThreadSlot& slot, size_t bytes, size_t* cls, bool may_wait) {
  if (const auto small = static_cast<uint32_t>(*cls); *cls < kClasses)
    return slot.cache.Empty(small) && !admission_.MakeRoom(slot, may_wait) ? nullptr : slot.cache.Get(small);
  if (!admission_.MakeRoom(slot, may_wait)) return nullptr;
  uint32_t large = 0;
  void* const block = ops_.TakeLarge(bytes, &large);
  *cls = large;
  return block;
}

// The choice for the default placement, by the thread's policy. The policy is read once a push, because another thread
// may change it.
ENGINE_INLINE EngineCore::PoolChoice EngineCore::ChoosePool() const {
  const PolicyStamp stamp = Stamp();
  if (!stamp.at_push) [[likely]]
    return {.pool = pools_.default_pool()};
  return {.pool = kCallerPool,
          .intra_op = static_cast<uint8_t>(stamp.intra_op_threads),
          .flags = kAtPush | (stamp.raise_at_push ? kRaise : 0u)};
}

ENGINE_INLINE EngineCore::PoolChoice EngineCore::ChoosePool(const Placement& place) {
  if (place.kind == Placement::Kind::kDefault) [[likely]]
    return ChoosePool();
  return {.pool = pools_.Index(place)};
}

static void PlaceOnDevice(OpRecord* op, const Placement& place, const DeviceSide& devices) {
  op->extra.replayed = false;
  if (place.kind == Placement::Kind::kCommunicator) {
    op->extra.device = static_cast<uint8_t>(devices.ChannelDevice(place.index));
    op->extra.asked_lane = static_cast<uint8_t>(kFirstChannelLane + place.index);
    return;
  }
  op->extra.device = static_cast<uint8_t>(place.index);
  op->extra.asked_lane = place.kind == Placement::Kind::kCopyIn    ? kCopyInLane
                         : place.kind == Placement::Kind::kCopyOut ? kCopyOutLane
                                                                   : place.lane;
}

// Everything that can fail happens here, before a Var is touched: the block, the checks, the closure, the groups.
// Empty: there is no room, and the push may not wait.
ENGINE_INLINE Draft EngineCore::NewRecord(ThreadSlot& slot, const OpDesc& desc, const ClosureRef fn, const Site site,
                                          uint32_t flags, const PoolChoice choice, const bool may_wait) {
  const CancelScope* const cancel = desc.cancel ? desc.cancel : t_scopes.cancel;
  const ScopePtr* const scope = cancel ? &cancel->cancelled_ : nullptr;
  flags |= choice.flags | (desc.run_always ? kRunAlways : 0u) | (scope ? kScoped : 0u);
  if (desc.place.kind != Placement::Kind::kDefault && pools_.OnDevice(choice.pool)) [[unlikely]]
    flags |=
        desc.graph.kind && !(flags & kAsyncOp) && choice.pool < kFirstCopyPool ? kDeviceOp | kCapturable : kDeviceOp;
  CheckPriority(desc.priority, desc.name, site);
  size_t closure_at = 0;
  if (flags & (kScoped | kDeviceOp)) [[unlikely]] {
    const size_t align = std::max<size_t>(8, fn.type->align);
    closure_at = (OpRecord::ExtraBytes(flags) + align - 1) & ~(align - 1);
  } else if (flags & kInChain) {
    closure_at = std::max<size_t>(8, fn.type->align);  // the accesses end at a multiple of 32
  }
  const size_t n = desc.reads.size() + desc.updates.size() + desc.writes.size();
  const size_t bytes = sizeof(OpRecord) + n * sizeof(Access) + closure_at + fn.type->size;
  size_t cls = (bytes + 63) / 64;

  void* memory = cls < kClasses ? slot.cache.TryGet(static_cast<uint32_t>(cls)) : nullptr;
  if (!memory) [[unlikely]] {
    if (n > Protocol::kMaxAccesses)
      throw UsageError(OpAt(desc.name.c_str(), site) + " names " + std::to_string(n) + " Vars; the most is " +
                       std::to_string(Protocol::kMaxAccesses));
    memory = TakeBlock(slot, bytes, &cls, may_wait);
    if (!memory) return {slot, nullptr};
  }
  auto* const op = static_cast<OpRecord*>(memory);
  op->Init({.closure = fn.type,
            .name = desc.name.c_str(),
            .site = site,
            .flags = flags & ~kScoped,  // AddExtras sets the flag together with the scope
            .pool = choice.pool,
            .level = LevelOf(desc.priority),
            .intra_op = choice.intra_op,
            .size_class = cls,
            .closure_at = closure_at});
  try {
    if (flags & kDeviceOp) [[unlikely]]
      PlaceOnDevice(op, desc.place, *devices_);
    const uint32_t writes = ListInline(&slot, op, desc);
    if (desc.reads.size()) slot.cache.Reserve(kGroupClass, static_cast<uint32_t>(desc.reads.size()));
    Protocol::SetPins(op, writes, ProductionEnv::ExtraPins(flags));
    if (flags & (kScoped | kCapturable)) [[unlikely]]
      AddExtras(op, desc, flags, scope);
    fn.type->construct(op->closure(), fn.object);
  } catch (...) {
    op->extra.closure = nullptr;
    DropUnregistered(slot, op);
    throw;
  }
  return {slot, op};
}

void EngineCore::AddExtras(OpRecord* op, const OpDesc& desc, uint32_t flags, const ScopePtr* scope) {
  op->extra.flags = flags;
  if (scope) ::new (&op->scope()) ScopePtr(*scope);
  if (flags & kCapturable) op->graph() = desc.graph;
}

void EngineCore::DropUnregistered(ThreadSlot& slot, OpRecord* op) {
  if (op->extra.closure && op->extra.closure->destroy) op->extra.closure->destroy(op->closure());
  if (op->extra.flags & kScoped) op->scope().~ScopePtr();
  op->extra.flags = 0;
  op->extra.state.store(OpState::kFree, std::memory_order_relaxed);
  RecycleRecord(slot, op);
}

// `register_it` registers the op: it has the parameters and the result of Protocol::Register. If the push is refused, the
// draft stays the caller's, who drops it where no lock is taken: the closure's destructor is the program's.
template <class RegisterIt>
ENGINE_INLINE Registered EngineCore::RegisterBy(ThreadSlot& slot, Draft&& draft, RegisterIt register_it) {
  OpRecord* op = draft.op();
  const Registered registered(draft.claim_);
  Pass pass{&slot};
  Access* refused = nullptr;
  gate_.Enter(slot, op);
  // Shutdown changes the phase and then closes the gate for a moment: whoever enters after that sees the phase.
  if (!MayPush()) [[unlikely]] {
    PushGate::Leave(slot);
    Admission::Refuse(OpAt(op->extra.name, op->site()));
  }
  // The push is counted before anybody can complete the op. The grants order this count before the count of its end.
  const uint8_t epoch = epochs_.parity();
  const bool at_push = op->extra.flags & kAtPush;  // read now: once it is registered the op may run and be gone
  op->extra.epoch = epoch;
  slot.pushed[epoch].Add();
  op->extra.state.store(OpState::kWaiting, std::memory_order_relaxed);
  const Protocol::Result result = register_it(pass, op, &refused);
  if (result == Protocol::Result::kDeletedVar) [[unlikely]] {
    slot.pushed[epoch].Add(uint64_t{0} - 1);
    PushGate::Leave(slot);
    RefuseDeleted(op, CoreOf(refused->var)->pusher.name);
  }
  draft.Commit();
  // release: publishes the op's place in the order. Partner: the exchange of whoever takes the claim (ReleaseHeld).
  if (registered.claim_) registered.claim_->called.store(0, std::memory_order_release);
  if (result == Protocol::Result::kReady) {
    op->extra.state.store(OpState::kReady, std::memory_order_relaxed);
    if (op->extra.pool == kDefaultPool) [[likely]] {
      class Pool& target = pool(kDefaultPool);
      target.Put(slot, op);  // from here on the op may run and be gone
      target.Notify(Beside::kIfOften);
      op = nullptr;
    }
  }
  PushGate::Leave(slot);  // after the Put: a push that waits for room waits for marked slots, too (admission.cc)
  if (pass.ready) [[unlikely]]
    Dispatch(pass, nullptr);
  if (result == Protocol::Result::kPending || !op) {
    // A held op waits for this very thread, so nothing is run here that may wait for it.
    if (result == Protocol::Result::kPending && at_push && !registered.claim_) [[unlikely]]
      RunCallerPool();
    return registered;
  }
  // Not in a piece of ParallelFor: the body might wait, and a piece has no role to lend.
  const bool stopped = at_push && Stopped();  // mutant: naive_runs_while_stopped
  if (at_push && !t_in_piece && !stopped) {
    RunAtPush(slot, op);
  } else {
    Post(slot, op);
  }
  return registered;
}

namespace {
struct RegisterOne {
  uint32_t bias;
  ENGINE_INLINE Protocol::Result operator()(Pass& pass, OpRecord* op, Access** refused) const {
    return Protocol::Register(pass, op, bias, refused);
  }
};
}  // namespace

ENGINE_INLINE Registered EngineCore::RegisterAndStart(ThreadSlot& slot, Draft&& draft, uint32_t bias) {
  return RegisterBy(slot, std::move(draft), RegisterOne{bias});
}

void EngineCore::StartRecord(ThreadSlot& slot, Draft draft) {
  RegisterAndStart(slot, std::move(draft), 0);
  OpChains::ReleaseQueuedBehind(slot);
}

void EngineCore::StartTogether(ThreadSlot& slot, Draft draft, std::span<Access* const> accesses) {
  RegisterBy(slot, std::move(draft), [&](Pass& pass, OpRecord* op, Access** refused) {
    for (Access* a : accesses)
      if (a->op != op) a->op->extra.state.store(OpState::kWaiting, std::memory_order_relaxed);
    return Protocol::RegisterTogether(pass, op, accesses.data(), static_cast<uint32_t>(accesses.size()), refused);
  });
  OpChains::ReleaseQueuedBehind(slot);
}

// Policies naive and inline: runs the op on the pushing thread, inside the push.
void EngineCore::RunAtPush(ThreadSlot& slot, OpRecord* op) {
  const BodyScopes aside;
  ErrorRecord* raised = nullptr;
  Execute(slot, op, nullptr, op->extra.flags & kRaise ? &raised : nullptr);
  RunCallerPool();
  if (raised) Throw(raised);
}

// Runs what lies in the caller pool: ops of earlier pushes whose Vars were not ready then.
void EngineCore::RunCallerPool() {
  if (t_frame || !pool(kCallerPool).HasReady() || Stopped()) return;
  while (DriveOne()) {
  }
}

bool EngineCore::Push(const PushRequest& request) {
  CheckMayPush(request.desc->name.c_str(), request.site);
  ThreadSlot& slot = Slot();
  Draft draft = NewRecord(slot, *request.desc, request.closure, request.site, request.flags,
                          ChoosePool(request.desc->place), request.may_wait);
  if (!draft) return false;
  draft.op()->extra.kind = request.kind;
  RegisterAndStart(slot, std::move(draft), 0);
  OpChains::ReleaseQueuedBehind(slot);
  return true;
}

CompletionState* EngineCore::PushHeld(const PushRequest& request) {
  CheckMayPush(request.desc->name.c_str(), request.site);
  ThreadSlot& slot = Slot();
  Draft draft = NewRecord(slot, *request.desc, request.closure, request.site, request.flags,
                          ChoosePool(request.desc->place), true);
  draft.MakeClaim();
  Registered registered = RegisterAndStart(slot, std::move(draft), 1);
  OpChains::ReleaseQueuedBehind(slot);
  return std::move(registered).TakeClaim();
}

void EngineCore::PushSync(const OpDesc& desc, ClosureRef fn, Site site) {
  CheckMayPush(desc.name.c_str(), site);
  ThreadSlot& slot = Slot();
  RegisterAndStart(slot, NewRecord(slot, desc, fn, site, 0, ChoosePool(desc.place), true), 0);
  OpChains::ReleaseQueuedBehind(slot);
}

void EngineCore::PushTemplate(Operator::State& state, int priority, Site site) {
  const auto* const from = std::launder(reinterpret_cast<OpRecord*>(state.block));
  CheckMayPush(from->extra.name, site);
  ThreadSlot& slot = Slot();
  const PoolChoice choice = ChoosePool();
  size_t cls = from->extra.size_class;
  void* block = slot.cache.TryGet(static_cast<uint32_t>(cls));
  if (!block) [[unlikely]]
    block = TakeBlock(slot, state.bytes, &cls, true);
  auto* const op = static_cast<OpRecord*>(block);
  op->Init({.closure = from->extra.closure,
            .name = from->extra.name,
            .site = site,
            .flags = from->extra.flags | choice.flags,
            .pool = choice.pool,
            .level = LevelOf(priority),
            .intra_op = choice.intra_op,
            .size_class = cls});
  const uint32_t n = op->n_access = from->n_access;
  const Access* listed = reinterpret_cast<const Access*>(from + 1);
  for (Access *a = op->accesses(), *end = a + n; a != end; ++a, ++listed) {
    a->var = listed->var;
    a->word = listed->word;
    Protocol::PrefetchTail(a->var, a->mode());
  }
  op->pins.store(from->pins.load(std::memory_order_relaxed), std::memory_order_relaxed);
  *static_cast<Operator::State**>(op->closure()) = &state;
  state.pushed.fetch_add(1, std::memory_order_relaxed);
  Draft draft(slot, op);
  slot.cache.Reserve(kGroupClass, n);
  RegisterAndStart(slot, std::move(draft), 0);
  OpChains::ReleaseQueuedBehind(slot);
}

// --- members of a chain (op_chain.h)

// Returns the number of members. 0: the op was not registered, because the chain is closed or another owner's by now.
ENGINE_INLINE uint32_t EngineCore::AppendInline(ThreadSlot& slot, Draft& draft, OpChain& chain, ChainOwner& owner,
                                                bool open) {
  OpRecord* const op = draft.op();
  ChainLock lock(chain);
  if (open) {
    owner.opening = ++chain.opening;
    chain.first = chain.last = nullptr;
    chain.count = 0;
    chain.open.store(true, std::memory_order_relaxed);
  } else if (chain.count == 0 || chain.opening != owner.opening) {
    return 0;
  }
  // relaxed: the registration publishes it.
  std::atomic_ref(op->chain()).store(&chain, std::memory_order_relaxed);
  op->extra.more_behind = op->extra.merged = op->extra.replayed = false;
  RegisterAndStart(slot, std::move(draft), 1);  // throws for a deleted Var, and has changed nothing then
  if (chain.last) {
    chain.last->extra.more_behind = true;
    chain.last->extra.next = op;
  } else {
    chain.first = op;
  }
  chain.last = op;
  return ++chain.count;
}

ENGINE_INLINE uint32_t EngineCore::PushChained(const OpDesc& desc, ClosureRef fn, Site site, OpKindId kind,
                                               PoolChoice choice, bool may_wait, ChainOwner& owner) {
  CheckMayPush(desc.name.c_str(), site);
  ThreadSlot& slot = Slot();
  Draft draft = NewRecord(slot, desc, fn, site, kInChain, choice, may_wait);
  if (!draft) return HeldOps::kNoRoom;
  draft.op()->extra.kind = kind;
  OpChain* chain = owner.chain.load(std::memory_order_relaxed);
  uint32_t count = 0;
  if (chain) [[likely]]
    count = AppendInline(slot, draft, *chain, owner, false);
  if (count == 0) [[unlikely]]  // there was no chain, or it has been released
    chain = OpenChain(slot, draft, owner, &count);
  OpChains::ReleaseQueuedBehind(slot, chain);
  if (kind == OpKindId::kNode) return count;  // the run releases its chain itself, at once
  // If a WaitAll, a push for room or a shutdown waits, it may wait for this chain. Partners: the HeavyFence behind
  // their announcements (epochs.cc, admission.cc); either they see the chain then, or we see the announcement here.
  LightFence();
  if (HostWaits() || phase() != Phase::kOpen) [[unlikely]] {
    chains_.Release(chain);
    return 0;
  }
  return count;
}

[[gnu::noinline]] OpChain* EngineCore::OpenChain(ThreadSlot& slot, Draft& draft, ChainOwner& owner, uint32_t* count) {
  auto* const chain = static_cast<OpChain*>(slot.var_cache.Get(kChainClass));
  // Stored before the first member can be found at a tail, because a registration behind `several` holders releases all
  // chains of all owners. release: publishes the block. Partners: the acquire loads in Release and ReleaseAll.
  owner.chain.store(chain, std::memory_order_release);
  try {
    *count = AppendInline(slot, draft, *chain, owner, true);
  } catch (...) {
    chain->open.store(false, std::memory_order_relaxed);
    owner.chain.store(nullptr, std::memory_order_relaxed);
    slot.var_cache.Return(kChainClass, chain);
    throw;
  }
  return chain;
}

void EngineCore::PushNode(const OpDesc& desc, ClosureRef fn, Site site, ChainOwner& owner) {
  PushChained(desc, fn, site, OpKindId::kNode, ChoosePool(desc.place), true, owner);
}

void EngineCore::RefuseDeleted(const OpRecord* op, const char* var_name) {
  LightFence();  // a WaitAll that saw the count before it was taken back must look again
  epochs_.NoteIfAwaitedIsOver();
  throw UsageError(OpAt(op->extra.name, op->site()) + " names Var '" + var_name +
                   "', which was deleted; name another Var");
}

// Called by the op's HeldOp and by a shutdown. The first of them starts the op.
void EngineCore::ReleaseHeld(CompletionState* claim) {
  if (claim->called.exchange(1, std::memory_order_acq_rel) != 0) return;
  const EndSlot slot(slots_);
  Pass pass{&*slot};
  Protocol::ReleaseBias(pass, claim->op);
  Dispatch(pass, nullptr);
}

}  // namespace engine::detail

namespace engine {

// In this file, so that PushChained is inlined here.
ENGINE_INLINE uint32_t HeldOps::PushOrTry(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait) {
  const uint8_t pool = core_->ChoosePool(desc.place).pool;
  if (!core_->pools().OnDevice(pool) || fn.type->async) [[unlikely]]  // mutant: op_for_the_host_held
    return PushPast(desc, fn, site, may_wait) ? 0 : kNoRoom;
  return core_->PushChained(desc, fn, site, detail::OpKindId::kPlain, {.pool = pool}, may_wait, *owner_);
}
bool HeldOps::Holds(const Placement& place) const {
  return place.kind != Placement::Kind::kDefault && core_->pools().OnDevice(core_->ChoosePool(place).pool);
}
uint32_t HeldOps::PushErased(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  return PushOrTry(desc, fn, site, true);
}
uint32_t HeldOps::TryPushErased(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  return PushOrTry(desc, fn, site, false);
}

}  // namespace engine
