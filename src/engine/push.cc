// Pushing: validate, take a block, fill it, register it, start it if it is ready.
#include <sched.h>

#include <algorithm>
#include <cassert>

#include "completion_state.h"
#include "gate.h"

namespace engine::detail {

thread_local constinit CancelScope* t_scope = nullptr;

namespace {

const char* ModeName(Mode mode) { return mode == Mode::kRead ? "reads" : mode == Mode::kUpdate ? "updates" : "writes"; }

std::string Where(const char* op, Site site) {
  return (*op ? "op '" + std::string(op) + "'" : std::string("an unnamed op")) + " pushed at " + site.file + ":" +
         std::to_string(site.line);
}

struct Named {
  Protocol::Var* var;
  uint64_t word;
};

// Up to so many distinct Vars stay as they were listed, and are sorted only where a push has to hold them all: ops of
// one kind then look alike from access to access, which branch predictors reward.
constexpr uint32_t kFewVars = 4;

ENGINE_INLINE bool FewAndDistinct(const Access* a, uint32_t n) {
  if (n > kFewVars) return false;
  for (uint32_t i = 1; i < n; ++i)
    for (uint32_t k = 0; k < i; ++k)
      if (a[i].var == a[k].var) return false;
  return true;
}

// Sorts by Var. Works on the accesses in place; their other fields are not set yet.
ENGINE_INLINE void Sort(Access* a, uint32_t n) {
  const auto put = [](Access& to, Named from) {
    to.var = from.var;
    to.word = from.word;
  };
  if (n > 32) [[unlikely]] {
    std::vector<Named> all(n);
    for (uint32_t i = 0; i < n; ++i) all[i] = {a[i].var, a[i].word};
    std::stable_sort(all.begin(), all.end(), [](const Named& x, const Named& y) { return x.var < y.var; });
    for (uint32_t i = 0; i < n; ++i) put(a[i], all[i]);
  } else {
    for (uint32_t i = 1; i < n; ++i) {
      const Named one{a[i].var, a[i].word};
      uint32_t k = i;
      for (; k > 0 && one.var < a[k - 1].var; --k) put(a[k], {a[k - 1].var, a[k - 1].word});
      if (k != i) put(a[k], one);
    }
  }
}

// Of sorted ones, merges what names one Var several times: twice Read or twice Write stay, anything else updates.
uint32_t Merge(Access* a, uint32_t n) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (kept > 0 && a[kept - 1].var == a[i].var) {
      uint64_t& word = a[kept - 1].word;
      const uint64_t listed = std::min(word >> 2, a[i].word >> 2);
      const uint64_t mode = (word & 3) == (a[i].word & 3) ? word & 3 : static_cast<uint64_t>(Mode::kUpdate);
      word = listed << 2 | mode;
    } else {
      a[kept].var = a[i].var;
      a[kept].word = a[i].word;
      ++kept;
    }
  }
  return kept;
}

}  // namespace

// A pusher that holds the lock has only stores to do, but may have been preempted in between: pause, then yield, then
// sleep for a moment. Nobody wakes us; a held lock that outlasts a time slice is too rare to pay for in every unlock.
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
  if (!var) throw UsageError("a null Var among the " + std::string(what) + " of " + Where(op, site));
  if (var->pusher.core != this)
    throw UsageError("Var '" + std::string(var->pusher.name) + "' among the " + what + " of " + Where(op, site) +
                     " belongs to another engine");
}

// Everything that can fail happens here, before a Var is touched: the block, its checks, the closure, the groups.
ENGINE_INLINE OpRecord* EngineCore::NewRecord(ThreadSlot& slot, const PushRequest& request, uint32_t n) {
  const OpDesc& desc = *request.desc;
  if (n > Protocol::kMaxAccesses)
    throw UsageError(Where(desc.name.c_str(), request.site) + " names " + std::to_string(n) + " Vars; the most is " +
                     std::to_string(Protocol::kMaxAccesses));
  const ScopePtr* scope = desc.cancel ? &desc.cancel->cancelled_ : t_scope ? &t_scope->cancelled_ : nullptr;
  uint32_t flags = request.flags | (desc.run_always ? kRunAlways : 0u) | (scope ? kScoped : 0u);

  uint8_t pool_index;
  uint8_t intra_op = 0;
  if (desc.place.kind == Placement::Kind::kDefault) [[likely]] {
    const PolicyStamp stamp = Stamp();
    pool_index = HomePool(stamp);
    if (stamp.policy != Policy::kThreaded) [[unlikely]] {
      flags |= kAtPush | (stamp.raise ? kRaise : 0u);
      intra_op = stamp.policy == Policy::kInline ? static_cast<uint8_t>(std::min<int>(stamp.intra_op, 255)) : 0;
    }
  } else {
    pool_index = PoolIndex(desc.place);
    if (OnDevice(pool_index)) [[unlikely]]
      flags |= desc.graph.kind && !(flags & kAsyncOp) ? kDeviceOp | kCapturable : kDeviceOp;
  }
  size_t closure_at = 0;
  if (flags & (kScoped | kPointerExtra | kDeviceOp)) [[unlikely]] {
    const size_t align = std::max<size_t>(8, request.closure.type->align);
    closure_at = (OpRecord::ExtraBytes(flags) + align - 1) & ~(align - 1);
  }
  const size_t bytes = sizeof(OpRecord) + n * sizeof(Access) + closure_at + request.closure.type->size;
  uint32_t cls = ClassOf(bytes);

  void* memory = nullptr;
  if (cls < kClasses) [[likely]] {
    memory = slot.cache.TryGet(cls);
    if (!memory) [[unlikely]] {
      if (slot.cache.Empty(cls) && !MakeRoom(slot, request.may_wait)) return nullptr;
      memory = slot.cache.Get(cls);
    }
  } else {
    if (!MakeRoom(slot, request.may_wait)) return nullptr;
    memory = ops_.TakeLarge(bytes, &cls);
  }
  auto* op = static_cast<OpRecord*>(memory);
  OpExtra& x = op->extra;
  x.closure = request.closure.type;
  x.name = desc.name.c_str();
  x.file = request.site.file;
  x.line = request.site.line;
  x.flags = 0;
  x.pool = pool_index;
  x.level = LevelOf(desc.priority);
  x.intra_op = intra_op;
  x.size_class = static_cast<uint8_t>(cls);
  x.closure_offset = static_cast<uint8_t>(closure_at / 8);
  op->keeps_version = false;
  op->deletes = false;
  if (flags & kDeviceOp) [[unlikely]]
    PlaceOnDevice(op, desc.place);

  Access* access = op->accesses();
  uint32_t count = 0;
  try {
    const auto add = [&](const VarSet& set, Mode mode) {
      for (const VarRef& var : set) {
        VarCore* core = var.core();
        if (!core || core->pusher.core != this) [[unlikely]]
          CheckVar(core, ModeName(mode), x.name, request.site);
        Protocol::PrefetchTail(core, mode);
        access[count].var = core;
        access[count].word = uint64_t{count} << 2 | static_cast<uint64_t>(mode);
        ++count;
      }
    };
    add(desc.reads, Mode::kRead);
    add(desc.updates, Mode::kUpdate);
    add(desc.writes, Mode::kWrite);
    if (count > 1 && !FewAndDistinct(access, count)) {
      Sort(access, count);
      count = Merge(access, count);
    }
    op->n_access = static_cast<uint16_t>(count);
    if (desc.reads.size()) slot.cache.Reserve(kGroupClass, static_cast<uint32_t>(desc.reads.size()));
    x.flags = flags;
    if (scope) ::new (&op->scope()) ScopePtr(*scope);
    if (flags & kCapturable) [[unlikely]]
      op->graph() = desc.graph;
    request.closure.type->construct(op->closure(), request.closure.object);
  } catch (...) {
    x.closure = nullptr;
    DropUnregistered(slot, op);
    throw;
  }
  return op;
}

void EngineCore::DropUnregistered(ThreadSlot& slot, OpRecord* op) {
  if (op->extra.closure && op->extra.closure->destroy) op->extra.closure->destroy(op->closure());
  if (op->extra.flags & kScoped) op->scope().~ScopePtr();
  op->extra.flags = 0;
  op->extra.state.store(OpState::kFree, std::memory_order_relaxed);
  RecycleRecord(slot, op);
}

ENGINE_INLINE void EngineCore::RegisterAndStart(ThreadSlot& slot, OpRecord* op, uint32_t bias) {
  Pass pass{&slot};
  Access* refused = nullptr;
  PushGate gate(*this, slot);
  // Shutdown closes the gate for a moment: whoever enters it later sees the phase.
  if (phase_.load(std::memory_order_relaxed) != Phase::kOpen) [[unlikely]]
    RefusePushes(&slot, op);
  // relaxed: which of two epochs an overlapping push belongs to is free (drain.cc). Counted before anyone can
  // complete it; the grant edges carry the count to whoever counts the completion.
  const uint8_t epoch = epoch_.load(std::memory_order_relaxed);
  const bool at_push = op->extra.flags & kAtPush;  // once it is registered it may run and be gone
  op->extra.epoch = epoch;
  slot.pushed[epoch].Add();
  op->extra.state.store(OpState::kWaiting, std::memory_order_relaxed);
  if (!gate.exclusive() && op->n_access <= kFewVars) Sort(op->accesses(), op->n_access);
  const Protocol::Result result = Protocol::Register(pass, op, bias, &refused, gate.exclusive());
  if (result == Protocol::Result::kReady) {
    op->extra.state.store(OpState::kReady, std::memory_order_relaxed);
    if (op->extra.pool == kDefaultPool) [[likely]] {
      class Pool& target = pool(kDefaultPool);
      target.Put(slot, op);  // once it is in a queue it may run and be gone
      target.Notify();
      op = nullptr;
    }
  }
  gate.Leave();  // after the op is in a queue: a push that waits for room counts on what is in the gate
  if (pass.ready) [[unlikely]]
    Dispatch(pass, nullptr);
  if (result == Protocol::Result::kPending || !op) {
    if (result == Protocol::Result::kPending && at_push) [[unlikely]]
      DriveLeftOver();
    return;
  }
  if (result == Protocol::Result::kDeletedVar) [[unlikely]] {
    slot.pushed[epoch].Add(uint64_t{0} - 1);
    RefuseDeleted(slot, op, CoreOf(refused->var)->pusher.name);
  }
  if (at_push) {
    RunAtPush(slot, op);
  } else {
    Post(slot, op);
  }
}

void EngineCore::StartRecord(ThreadSlot& slot, OpRecord* op) { RegisterAndStart(slot, op, 0); }

// naive, inline: on the pusher's thread, inside the push.
void EngineCore::RunAtPush(ThreadSlot& slot, OpRecord* op) {
  ErrorRecord* raised = nullptr;
  Execute(slot, op, nullptr, op->extra.flags & kRaise ? &raised : nullptr);
  DriveLeftOver();
  if (!raised) return;
  const OpError error = raised->Show();
  raised->Release();
  throw error;
}

// What this thread's earlier pushes left, and what they released.
void EngineCore::DriveLeftOver() {
  if (t_frame || !pool(kCallerPool).HasReady()) return;
  while (DriveOne()) {
  }
}

ENGINE_INLINE bool EngineCore::PushInline(const PushRequest& request, CompletionState** held) {
  if (phase_.load(std::memory_order_relaxed) != Phase::kOpen) [[unlikely]]
    RefusePushes(nullptr, nullptr);
  ThreadSlot& slot = Slot();
  const OpDesc& desc = *request.desc;
  const size_t n = desc.reads.size() + desc.updates.size() + desc.writes.size();
  OpRecord* op = NewRecord(slot, request, static_cast<uint32_t>(std::min<size_t>(n, UINT32_MAX)));
  if (!op) return false;
  if (request.flags & kHeldOp) [[unlikely]]
    *held = NewCompletion(slot, op);
  RegisterAndStart(slot, op, request.flags & kHeldOp ? 1 : 0);
  ReleaseNeeded(slot);
  return true;
}

bool EngineCore::Push(const PushRequest& request, CompletionState** held) { return PushInline(request, held); }
void EngineCore::PushSync(const OpDesc& desc, ClosureRef fn, Site site) {
  PushInline({.desc = &desc, .closure = fn, .site = site});
}

// For held_chain.cc: the two halves of a push, with a lock between them.
OpRecord* EngineCore::NewChained(ThreadSlot& slot, const PushRequest& request) {
  if (phase_.load(std::memory_order_relaxed) != Phase::kOpen) [[unlikely]]
    RefusePushes(nullptr, nullptr);
  const OpDesc& desc = *request.desc;
  const size_t n = desc.reads.size() + desc.updates.size() + desc.writes.size();
  return NewRecord(slot, request, static_cast<uint32_t>(std::min<size_t>(n, UINT32_MAX)));
}
void EngineCore::RegisterChained(ThreadSlot& slot, OpRecord* op) { RegisterAndStart(slot, op, 1); }

void EngineCore::RefuseDeleted(ThreadSlot& slot, OpRecord* op, const char* var_name) {
  LightFence();  // the count was taken back: a WaitAll that saw it in between must look again
  if (draining_.load(std::memory_order_relaxed)) NoteDrain();
  const std::string where = Where(op->extra.name, op->site());
  DropUnregistered(slot, op);
  throw UsageError(where + " names Var '" + var_name + "', which was deleted");
}

// What running ops push while the engine drains is part of the program; anything else comes too late.
void EngineCore::RefusePushes(ThreadSlot* slot, OpRecord* op) {
  if (t_frame && t_frame->core == this && phase_.load(std::memory_order_relaxed) == Phase::kDraining) return;
  if (op) DropUnregistered(*slot, op);
  throw UsageError("push after shutdown: the engine takes no more ops");
}

// Whoever claims the op first starts it: its HeldOp, or a shutdown.
void EngineCore::ReleaseHeld(CompletionState* claim) {
  if (claim->called.exchange(1, std::memory_order_acq_rel) != 0) return;
  Pass pass{&Slot()};
  Protocol::ReleaseBias(pass, claim->op);
  Dispatch(pass, nullptr);
}

// --- internal ops: exempt from the bounds, never counted, run wherever they are granted.

OpRecord* EngineCore::NewInternal(ThreadSlot& slot, VarRef var, Mode mode, uint32_t flags, Site site) {
  const uint32_t cls = ClassOf(sizeof(OpRecord) + sizeof(Access) + sizeof(WaitNode));
  auto* op = static_cast<OpRecord*>(slot.cache.Get(cls));
  OpExtra& x = op->extra;
  x.closure = nullptr;
  x.name = flags & kWaitOp ? "wait" : "clear_error";
  x.file = site.file;
  x.line = site.line;
  x.flags = flags;
  x.pool = kDefaultPool;
  x.level = kNormalLevel;
  x.size_class = static_cast<uint8_t>(cls);
  x.closure_offset = 0;
  op->keeps_version = true;
  op->deletes = false;
  op->n_access = 1;
  op->accesses()[0].var = var.core();
  op->accesses()[0].word = static_cast<uint64_t>(mode);
  if (mode == Mode::kRead) slot.cache.Reserve(kGroupClass, 1);
  if (flags & kWaitOp) ::new (op->closure()) WaitNode;
  return op;
}

void EngineCore::RegisterInternal(ThreadSlot& slot, OpRecord* op) {
  Pass pass{&slot};
  Access* refused = nullptr;
  Protocol::Result result;
  {
    PushGate gate(*this, slot);
    op->extra.state.store(OpState::kWaiting, std::memory_order_relaxed);
    result = Protocol::Register(pass, op, 0, &refused, gate.exclusive());
  }
  if (result == Protocol::Result::kReady) ProductionEnv::AddReady(pass, op);
  Dispatch(pass, nullptr);
  ReleaseNeeded(slot);
  if (result == Protocol::Result::kDeletedVar) RefuseDeleted(slot, op, CoreOf(refused->var)->pusher.name);
}

void EngineCore::PushClear(VarRef var, Site site) {
  CheckVar(var.core(), "argument", "clear_error", site);
  if (phase_.load(std::memory_order_relaxed) != Phase::kOpen) RefusePushes(nullptr, nullptr);
  ThreadSlot& slot = Slot();
  RegisterInternal(slot, NewInternal(slot, var, Mode::kUpdate, kClearOp, site));
}

VarCore* EngineCore::NewVar(std::string_view name) {
  if (phase_.load(std::memory_order_relaxed) != Phase::kOpen) RefusePushes(nullptr, nullptr);
  auto* var = ::new (Slot().var_cache.Get(kVarClass)) VarCore;
  var->pusher.core = this;
  var->pusher.name = name.empty() ? "" : Name::Intern(name).c_str();
  var->completer.refs.store(2, std::memory_order_relaxed);  // the handle's and the engine's
  Retain();
  return var;
}

// Schedules the deletion behind the pending ops. Needs no memory and cannot fail.
void EngineCore::DeleteVar(VarCore* var) {
  ThreadSlot& slot = Slot();
  OpRecord* op = &var->delete_op;
  op->extra.name = "delete";
  op->extra.flags = kDeleteOp;
  op->extra.size_class = 0;
  op->extra.pool = kDefaultPool;
  op->extra.level = kNormalLevel;
  op->keeps_version = true;
  op->deletes = true;
  op->n_access = 1;
  assert(op->accesses() == &var->delete_access);
  var->delete_access.var = var;
  var->delete_access.word = static_cast<uint64_t>(Mode::kUpdate);
  RegisterInternal(slot, op);
}

}  // namespace engine::detail
