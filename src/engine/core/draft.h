// Draft: an op that has its block and no place in the order yet. Registered: one that has.
//
// Nobody but the pusher knows a draft: its destructor gives back all that it took, so a push that is refused, or runs out of
// memory, has changed nothing. The claim of a held op is made with the draft and lies in it; it leaves only by way of a
// Registered, which only the registration makes (EngineCore::RegisterAndStart). So no handle of an op can be out before the
// op has taken its place.
//
// Threads:   the pusher's alone.
// Ownership: of the block, the closure, and the claim, until Commit.
#pragma once

#include <utility>

#include "core/completion_state.h"

namespace engine::detail {

class Draft {
 public:
  Draft(ThreadSlot& slot, OpRecord* op) : slot_(&slot), op_(op) {}
  Draft(Draft&& other) noexcept
      : slot_(other.slot_), op_(std::exchange(other.op_, nullptr)), claim_(std::exchange(other.claim_, nullptr)) {}
  Draft& operator=(Draft&&) = delete;
  ENGINE_INLINE ~Draft() {
    if (op_) [[unlikely]]
      Drop(slot_, op_, claim_);
  }

  explicit operator bool() const { return op_ != nullptr; }  // false: there was no room for one
  OpRecord* op() const { return op_; }
  void MakeClaim() { claim_ = slot_->core->NewCompletion(*slot_, op_, CompletionState::kUnregistered); }

 private:
  friend class EngineCore;
  // From here on others know the op.
  void Commit() { op_ = nullptr; }
  // By value: a draft whose address is taken nowhere lives in registers.
  [[gnu::noinline]] static void Drop(ThreadSlot* slot, OpRecord* op, CompletionState* claim) {
    if (claim) slot->core->DropCompletion(claim);
    slot->core->DropUnregistered(*slot, op);
  }

  ThreadSlot* slot_;
  OpRecord* op_;
  CompletionState* claim_ = nullptr;
};

class Registered {
 public:
  CompletionState* TakeClaim() && { return std::exchange(claim_, nullptr); }  // of a held op, counted; else null

 private:
  friend class EngineCore;
  explicit Registered(CompletionState* claim) : claim_(claim) {}
  CompletionState* claim_;
};

}  // namespace engine::detail
