// Internal ops: waits, error clearing and deletion. A few stores, done wherever they are granted.
#include "core/core.h"

namespace engine::detail {

void EngineCore::RunInternal(Pass& pass, OpRecord* op) {
  if (has_devices_.load(std::memory_order_relaxed) && op->extra.kind != OpKindId::kDelete &&
      !devices_->MayRunOnHost(op))
    return;  // its end comes with that of the device work
  CheckState(op, Bit(OpState::kWaiting) | Bit(OpState::kBehindDevice), "an internal op runs that was not granted");
  if constexpr (kAsserts) op->extra.state.store(OpState::kRunning, std::memory_order_relaxed);
  KindOf(op).when_granted(*this, pass, op);
}

void EngineCore::EndWait(Pass& pass, OpRecord* op) {
  auto* node = static_cast<WaitNode*>(op->closure());
  ErrorRecord* poison = CoreOf(op->accesses()[0].var)->completer.poison.load(std::memory_order_relaxed);
  node->error = poison ? poison->Retain() : nullptr;
  Complete(pass, op);  // the waiter's pin keeps the block
  // release: the error, and the end of our look at the block. Partner: the acquire loads in wait.cc.
  const uint32_t was = node->word.exchange(WaitNode::kDone, std::memory_order_acq_rel);
  if (was == WaitNode::kParked) FutexWake(node->word, 1);  // only its address: the block may be gone
  if (was != WaitNode::kAbandoned) return;
  if (node->error) node->error->Release();
  Protocol::DropPins(pass, op, 1);  // the waiter left its pin to us
}

void EngineCore::ClearPoison(Pass& pass, OpRecord* op) {
  VarCore* const var = CoreOf(op->accesses()[0].var);
  if (op->extra.kind == OpKindId::kClear) devices_->ForgetVar(var);
  if (poisoned_.load(std::memory_order_relaxed)) SetPoison(var, nullptr);
  Complete(pass, op);
}

namespace {

const OpKindEntry kWait(OpKindId::kWait,
                        {.when_granted = [](EngineCore& core, Pass& pass, OpRecord* op) { core.EndWait(pass, op); }});
const OpKindEntry kClear(OpKindId::kClear, {.when_granted = [](EngineCore& core, Pass& pass, OpRecord* op) {
                           core.ClearPoison(pass, op);
                         }});
const OpKindEntry kDelete(OpKindId::kDelete, {.when_granted = [](EngineCore& core, Pass& pass, OpRecord* op) {
                            core.ClearPoison(pass, op);
                          }});

}  // namespace

}  // namespace engine::detail
