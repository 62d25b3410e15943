// Internal ops (waits, error clearing, deletions), and the making and deleting of Vars. An internal op is a few stores,
// done by whichever thread grants its last access. It is not counted, and no bound on pending ops applies to it.
#include <cassert>
#include <new>

#include "core/draft.h"

namespace engine::detail {

Draft EngineCore::NewInternal(ThreadSlot& slot, VarRef var, AccessMode mode, OpKindId kind, Site site) {
  const uint32_t cls = ClassOf(sizeof(OpRecord) + sizeof(Access) + sizeof(WaitNode));
  auto* op = static_cast<OpRecord*>(slot.cache.Get(cls));
  op->Init({.name = kind == OpKindId::kWait ? "wait" : "clear_error",
            .site = site,
            .flags = kind == OpKindId::kWait ? kInternal | kOnePinMore : kInternal,
            .kind = kind,
            .pool = kDefaultPool,
            .level = kNormalLevel,
            .size_class = cls,
            .keeps_version = true});
  op->n_access = 1;
  op->accesses()[0].var = var.core();
  op->accesses()[0].word = static_cast<uint64_t>(mode);
  Protocol::SetPins(op, mode != AccessMode::kRead);
  Draft draft(slot, op);
  if (mode == AccessMode::kRead) slot.cache.Reserve(kGroupClass, 1);
  if (kind == OpKindId::kWait) ::new (op->closure()) WaitNode;
  return draft;
}

void EngineCore::RegisterInternal(ThreadSlot& slot, Draft draft) {
  OpRecord* const op = draft.op();
  Pass pass{&slot};
  Access* refused = nullptr;
  gate_.Enter(slot, op);
  op->extra.state.store(OpState::kWaiting, std::memory_order_relaxed);
  const Protocol::Result result = Protocol::Register(pass, op, 0, &refused);
  PushGate::Leave(slot);
  if (result == Protocol::Result::kDeletedVar) RefuseDeleted(op, CoreOf(refused->var)->pusher.name);
  draft.Commit();
  if (result == Protocol::Result::kReady) ProductionEnv::AddReady(pass, op);
  Dispatch(pass, nullptr);
  OpChains::ReleaseQueuedBehind(slot);
}

void EngineCore::PushClear(VarRef var, Site site) {
  CheckVar(var.core(), "ClearError", site);
  CheckMayPush("clear_error", site);
  ThreadSlot& slot = Slot();
  RegisterInternal(slot, NewInternal(slot, var, AccessMode::kUpdate, OpKindId::kClear, site));
}

VarCore* EngineCore::NewVar(std::string_view name, void* tag) {
  if (!MayPush()) Admission::Refuse("Var '" + std::string(name) + "' is made");
  const char* const interned = name.empty() ? "" : Name::Intern(name).c_str();  // may throw, as the next line may
  auto* var = ::new (Slot().var_cache.Get(kVarClass)) VarCore;
  var->pusher.core = this;
  var->pusher.name = interned;
  var->completer.tag = tag;
  var->completer.refs.store(2, std::memory_order_relaxed);  // one for the handle, one for the engine
  Retain();
  return var;
}

// Registers the deletion behind the Var's pending ops. Needs no memory and cannot fail.
void EngineCore::DeleteVar(VarCore* var) {
  const EndSlot slot(slots_);
  OpRecord* op = &var->delete_op;
  op->Init({.name = "delete",
            .flags = kInternal,
            .kind = OpKindId::kDelete,
            .pool = kDefaultPool,
            .level = kNormalLevel,
            .keeps_version = true,
            .deletes = true});
  op->n_access = 1;
  assert(op->accesses() == &var->delete_access);
  var->delete_access.var = var;
  var->delete_access.word = static_cast<uint64_t>(AccessMode::kUpdate);
  Protocol::SetPins(op, 1);
  RegisterInternal(*slot, Draft(*slot, op));
}

void EngineCore::RunInternal(Pass& pass, OpRecord* op) {
  if (has_devices_.load(std::memory_order_relaxed) && op->extra.kind != OpKindId::kDelete &&
      !devices_->MayRunOnHost(op))
    return;  // it is done when the device work has retired
  CheckState(op, Bit(OpState::kWaiting) | Bit(OpState::kBehindDevice), "an internal op runs that was not granted");
  if constexpr (kAsserts) op->extra.state.store(OpState::kRunning, std::memory_order_relaxed);
  KindOf(op).when_granted(*this, pass, op);
}

namespace {

// Called when the Var is granted.
void EndWait(EngineCore& core, Pass& pass, OpRecord* op) {
  auto* node = static_cast<WaitNode*>(op->closure());
  ErrorRecord* poison = CoreOf(op->accesses()[0].var)->completer.poison.load(std::memory_order_relaxed);
  node->error = poison ? poison->Retain() : nullptr;
  core.Complete(pass, op);  // the block stays: the waiter has a pin
  // release: publishes the error, and that we have finished with the block. Partner: the acquire loads in wait.cc.
  const uint32_t was = node->word.exchange(WaitNode::kDone, std::memory_order_acq_rel);
  if (was == WaitNode::kParked) FutexWake(node->word, 1);  // uses only the address: the block may be gone
  if (was != WaitNode::kAbandoned) return;
  if (node->error) node->error->Release();
  Protocol::DropPins(pass, op, 1);  // the waiter gave up, and left its pin to us
}

// Clears the error of the op's Var.
void ClearPoison(EngineCore& core, Pass& pass, OpRecord* op) {
  VarCore* const var = CoreOf(op->accesses()[0].var);
  if (op->extra.kind == OpKindId::kClear) core.devices().ForgetVar(var);
  if (core.poisoned()) core.SetPoison(var, nullptr);
  core.Complete(pass, op);
}

const OpKindEntry kWait(OpKindId::kWait, {.when_granted = EndWait});
const OpKindEntry kClear(OpKindId::kClear, {.when_granted = ClearPoison});
const OpKindEntry kDelete(OpKindId::kDelete, {.when_granted = ClearPoison});

}  // namespace

}  // namespace engine::detail
