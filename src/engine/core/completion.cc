// Asynchronous ops and claims of held ops: their CompletionStates, and how a shutdown ends what is left.
#include "core/completion_state.h"
#include "core/traced_body.h"

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
  if (!state_)
    throw UsageError(
        "an empty Completion (moved from, or never given one) was called; call the one that the body was given");
  if (state_->Inherited()) return;  // mutant: completion_of_the_parent
  // acq_rel: of all callers one wins. It settles the op, which publishes its effects.
  if (state_->called.exchange(1, std::memory_order_acq_rel) == 0) {  // mutant: double_completion
    state_->core->FinishAsync(state_->op, std::move(cause));
    return;
  }
  const std::string what = cause ? "failed after it had completed: " + detail::DescribeException(cause)
                                 : std::string("its Completion was called twice; call it once");
  state_->core->ReportLate(state_->name, state_->site, std::make_exception_ptr(CompletionError(what)));
}

namespace detail {

CompletionState* EngineCore::NewCompletion(ThreadSlot& slot, OpRecord* op, uint32_t called) {
  auto* state = static_cast<CompletionState*>(slot.completion_cache.Get(kCompletionClass));
  // relaxed: the store of `refs` below publishes all fields.
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

Completion EngineCore::StartAsync(ThreadSlot& slot, OpRecord* op) {
  Completion ours(NewCompletion(slot, op));
  op->extra.state.store(OpState::kAsync, std::memory_order_release);
  return ours;
}

void EngineCore::NoteReturned(const Completion& ours) { ours.state_->returned.store(true, std::memory_order_release); }

void EngineCore::DropCompletion(CompletionState* state) {
  // acq_rel: whoever drops the last count sees what the others did.
  if (state->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;  // mutant: dropped_completion_failure
  if (state->Inherited()) return Release();
  if (!state->held && state->called.exchange(1, std::memory_order_acq_rel) == 0)
    FinishAsync(state->op, MakeCause<CompletionError>("its Completion was dropped without being called"));
  // The arena of a closed engine frees the block. acquire: partner is the release in Admission::Enter.
  if (admission_.phase(std::memory_order_acquire) != Phase::kClosed) {
    const EndSlot slot(slots_);
    (*slot).completion_cache.Return(kCompletionClass, state);
  }
  Release();
}

// Settles the op on the calling thread, whichever it is, and queues what became ready; runs none of it here.
void EngineCore::FinishAsync(OpRecord* op, std::exception_ptr cause) {
  ErrorRecord* error = cause ? ErrorRecord::NewRoot(op->extra.name, op->site(), std::move(cause)) : nullptr;
  const EndSlot slot(slots_);
  if (tracing()) [[unlikely]] {
    TracedBody::EndBefore(op);
    TraceSettled(op);
  }
  if (const auto when_completed = KindOf(op).when_completed) return when_completed(*this, op, error);
  if (op->extra.flags & kDeviceOp) {
    devices_->FinishAsync(*slot, op, error);
  } else {
    Finish(*slot, op, error, nullptr);
  }
}

// Makes the running op asynchronous: it gets a Completion, and a pin that its body drops.
Completion EngineCore::Defer(OpRecord* op) {
  const bool host_op = op->extra.kind == OpKindId::kPlain && !(op->extra.flags & (kDeviceOp | kInChain));
  const bool ended_by_call = op->extra.flags & (kAsyncOp | kDeferred);
  if (!host_op || t_in_piece || !t_frame || t_frame->op != op || ended_by_call)  // mutant: deferred_twice
    throw UsageError(OpAt(op->extra.name, op->site()) +
                     " calls Defer, which is allowed once, in the body of a synchronous op on the host");
  CompletionState* const state = NewCompletion(Slot(), op);
  state->refs.fetch_add(1, std::memory_order_relaxed);  // a count for the body
  op->extra.next = reinterpret_cast<OpRecord*>(state);
  op->pins.fetch_add(1, std::memory_order_relaxed);  // whoever gives the Completion to another thread publishes it
  if ((op->extra.flags & kRunAlways) && t_frame->keeps_error) KeptError::Set(op);  // else there was none when it began
  op->extra.flags |= kDeferred;
  op->extra.state.store(OpState::kAsync, std::memory_order_release);
  return Completion(state);
}

// Called when the body of an op that has called Defer is over. If the body threw, the op fails, unless it has ended.
OpRecord* EngineCore::EndDeferredBody(ThreadSlot& slot, OpRecord* op, ErrorRecord* error) {
  auto* const state = reinterpret_cast<CompletionState*>(op->extra.next);
  if (error && state->called.exchange(1, std::memory_order_acq_rel) == 0) {
    Finish(slot, op, error, nullptr);
  } else if (error) {  // mutant: late_failure_of_a_deferred_body
    errors_.Add(error);
    error->Release();
  }
  state->returned.store(true, std::memory_order_release);  // partner: FailPendingCompletions
  DropCompletion(state);
  LeaveBody(slot, op);
  return nullptr;
}

void EngineCore::ReportLate(const char* op, Site site, std::exception_ptr cause) {
  ErrorRecord* error = ErrorRecord::NewRoot(op, site, std::move(cause));
  errors_.Add(error);  // after the engine's end nobody reports it, because no hook may be called any more
  error->Release();
}

// Visits the states that nobody has called yet, claims if `held`. An op may end meanwhile; its `called` is set then.
// Used by one thread at a time (change_mu_). Allocates nothing.
void EngineCore::ForPendingCompletions(bool held, const std::function<void(CompletionState*)>& visit) {
  CompletionState* found = nullptr;
  completions_.ForEachBlock(kCompletionClass, kEndOfClasses, [&](void* block, uint32_t) {
    auto* state = static_cast<CompletionState*>(block);
    if (state->TryRetain()) state->next = std::exchange(found, state);
  });
  while (CompletionState* state = found) {
    found = state->next;
    if (state->held == held && state->called.load(std::memory_order_relaxed) == 0) visit(state);
    DropCompletion(state);
  }
}

// At shutdown: starts the ops that are still held.
void EngineCore::ReleaseAllHeld() {
  ForPendingCompletions(true, [&](CompletionState* claim) { ReleaseHeld(claim); });
}

// At shutdown: fails the ops that still wait for their Completion and whose bodies have returned. While a body runs it
// may be about to complete its op, and the ops behind must not start beside it; the next call looks again.
void EngineCore::FailPendingCompletions(const std::exception_ptr& cause) {
  ForPendingCompletions(false, [&](CompletionState* state) {
    const bool returned = state->returned.load(std::memory_order_acquire);  // mutant: failed_beside_its_body
    if (returned && state->called.exchange(1, std::memory_order_acq_rel) == 0) FinishAsync(state->op, cause);
  });
}

}  // namespace detail
}  // namespace engine
