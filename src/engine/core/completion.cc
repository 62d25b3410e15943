#include "core/completion_state.h"

namespace engine {

using detail::CompletionState;

Completion::Completion(const Completion& other) noexcept : state_(other.state_) {
  if (state_) state_->refs.fetch_add(1, std::memory_order_relaxed);
}

Completion::~Completion() {
  if (state_) state_->core->DropCompletion(state_);
}

std::exception_ptr Completion::Unspecified() {
  return std::make_exception_ptr(CompletionError("failed without saying why"));
}

void Completion::Finish(std::exception_ptr cause) {
  if (!state_) throw UsageError("an empty Completion was called");
  if (state_->Inherited()) return;  // mutant: completion_of_the_parent
  // acq_rel: one caller wins; its effects are published by the settling.
  if (state_->called.exchange(1, std::memory_order_acq_rel) == 0) {  // mutant: double_completion
    state_->core->FinishAsync(state_->op, std::move(cause));
    return;
  }
  const std::string what = cause ? "failed after it had completed: " + detail::DescribeException(cause)
                                 : std::string("its Completion was called twice");
  state_->core->ReportLate(state_->name, state_->site, std::make_exception_ptr(CompletionError(what)));
}

namespace detail {

CompletionState* EngineCore::NewCompletion(ThreadSlot& slot, OpRecord* op, uint32_t called) {
  auto* state = static_cast<CompletionState*>(slot.completion_cache.Get(kCompletionClass));
  // relaxed: the count below publishes it.
  state->called.store(called, std::memory_order_relaxed);
  state->returned.store(false, std::memory_order_relaxed);
  state->forks = Forks();
  state->core = this;
  state->op = op;
  state->name = op->extra.name;
  state->site = op->site();
  state->held = called == CompletionState::kUnregistered;
  Retain();
  state->refs.store(1, std::memory_order_release);  // partner: TryRetain
  return state;
}

void EngineCore::NoteReturned(const Completion& ours) { ours.state_->returned.store(true, std::memory_order_release); }

void EngineCore::DropCompletion(CompletionState* state) {
  // acq_rel: the last one sees what the others did.
  if (state->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;  // mutant: dropped_completion_failure
  if (state->Inherited()) return Release();
  if (!state->held && state->called.exchange(1, std::memory_order_acq_rel) == 0)
    FinishAsync(state->op, MakeCause<CompletionError>("its Completion was dropped without being called"));
  // Once the engine has closed, the memory goes with it.
  if (admission_.phase(std::memory_order_acquire) != Phase::kClosed) {
    const EndSlot slot(slots_);
    (*slot).completion_cache.Return(kCompletionClass, state);
  }
  Release();
}

// On whatever thread called: settles the op and posts what it released, and runs none of it.
void EngineCore::FinishAsync(OpRecord* op, std::exception_ptr cause) {
  ErrorRecord* error = cause ? ErrorRecord::NewRoot(op->extra.name, op->site(), std::move(cause)) : nullptr;
  const EndSlot slot(slots_);
  if (const auto when_completed = KindOf(op).when_completed) return when_completed(*this, op, error);
  if (op->extra.flags & kDeviceOp) {
    devices_->FinishAsync(*slot, op, error);
  } else {
    Finish(*slot, op, error, nullptr);
  }
}

// The op becomes what an asynchronous op is from the start: it has a Completion, and a pin that its body drops.
Completion EngineCore::Defer(OpRecord* op) {
  const bool host_op = op->extra.kind == OpKindId::kPlain && !(op->extra.flags & (kDeviceOp | kInChain));
  if (!host_op || t_in_piece || !t_frame || t_frame->op != op || (op->extra.flags & (kAsyncOp | kDeferred)))
    throw UsageError("op '" + std::string(op->extra.name) + "' at " + At(op->site()) +
                     " calls Defer; once in the body of an op for the host that is not asynchronous is allowed");
  CompletionState* const state = NewCompletion(Slot(), op);
  state->refs.fetch_add(1, std::memory_order_relaxed);  // the body's
  op->extra.next = reinterpret_cast<OpRecord*>(state);
  op->pins.fetch_add(1, std::memory_order_relaxed);  // published with the Completion, by whoever hands it to a thread
  op->extra.flags |= kDeferred;
  op->extra.state.store(OpState::kAsync, std::memory_order_release);
  return Completion(state);
}

// The body of an op that has called Defer is over. What it threw fails the op, unless that has ended already.
OpRecord* EngineCore::EndDeferredBody(ThreadSlot& slot, OpRecord* op, ErrorRecord* error) {
  auto* const state = reinterpret_cast<CompletionState*>(op->extra.next);
  if (error && state->called.exchange(1, std::memory_order_acq_rel) == 0) {
    Finish(slot, op, error, nullptr);
  } else if (error) {
    errors_.Add(error);
    error->Release();
  }
  state->returned.store(true, std::memory_order_release);  // partner: FailPendingCompletions
  DropCompletion(state);
  Pass pass{&slot};
  Protocol::DropPins(pass, op, 1);
  return nullptr;
}

void EngineCore::ReportLate(const char* op, Site site, std::exception_ptr cause) {
  ErrorRecord* error = ErrorRecord::NewRoot(op, site, std::move(cause));
  errors_.Add(error);  // once the engine has ended nobody looks there, and hooks may not be called any more
  error->Release();
}

// Those that nobody has called yet, linked, each with a count for the caller. One whose op ends meanwhile has `called` set.
// By one thread at a time, under the lock of a shutdown. Allocates nothing.
CompletionState* EngineCore::PendingCompletions(bool held) {
  CompletionState* found = nullptr;
  completions_.ForEachBlock(kCompletionClass, kEndOfClasses, [&](void* block) {
    auto* state = static_cast<CompletionState*>(block);
    if (state->TryRetain()) state->next = std::exchange(found, state);
  });
  CompletionState* pending = nullptr;
  while (CompletionState* state = found) {
    found = state->next;
    if (state->held == held && state->called.load(std::memory_order_relaxed) == 0) {
      state->next = std::exchange(pending, state);
    } else {
      DropCompletion(state);
    }
  }
  return pending;
}

// At shutdown: starts what is still held.
void EngineCore::ReleaseAllHeld() {
  for (CompletionState *next, *claim = PendingCompletions(true); claim; claim = next) {
    next = claim->next;
    ReleaseHeld(claim);
    DropCompletion(claim);
  }
}

// At shutdown: fails what still waits for a completion and whose body has returned: the ops behind it must not start
// beside a body, which may well be about to complete it. The next call looks again.
void EngineCore::FailPendingCompletions(const std::exception_ptr& cause) {
  for (CompletionState *next, *state = PendingCompletions(false); state; state = next) {
    next = state->next;
    const bool returned = state->returned.load(std::memory_order_acquire);  // mutant: failed_beside_its_body
    if (returned && state->called.exchange(1, std::memory_order_acq_rel) == 0) FinishAsync(state->op, cause);
    DropCompletion(state);
  }
}

}  // namespace detail
}  // namespace engine
