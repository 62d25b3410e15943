// Draft: an op that has a block, and no place in the order yet. Registered: an op that has its place.
//
// Only the pusher knows a draft. Its destructor gives back everything, so a push that is refused or runs out of memory
// has changed nothing. The claim of a held op lies in its draft; the only way to get it is a Registered, which only
// EngineCore::RegisterAndStart makes. So nobody can have a handle of an op before the op has its place.
//
// Threads:   used by the pushing thread only.
// Ownership: a Draft owns the block, the closure and the claim until Commit.
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
  // Called when the op is registered: from here on other threads know it.
  void Commit() { op_ = nullptr; }
  // Takes the fields by value: a draft whose address is never taken stays in registers.
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
  // The claim of a held op, counted; null for other ops.
  CompletionState* TakeClaim() && { return std::exchange(claim_, nullptr); }

 private:
  friend class EngineCore;
  explicit Registered(CompletionState* claim) : claim_(claim) {}
  CompletionState* claim_;
};

}  // namespace engine::detail
