#include "completion_state.h"
#include "gate.h"

namespace engine {

using detail::CompletionState;

Completion::Completion(const Completion& other) noexcept : state_(other.state_) {
  if (state_) state_->refs.fetch_add(1, std::memory_order_relaxed);
}

Completion::~Completion() {
  // acq_rel: the last copy sees what the others did.
  if (!state_ || state_->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  detail::EngineCore* core = state_->core;
  if (state_->called.exchange(1, std::memory_order_acq_rel) == 0)
    core->FinishAsync(state_->op,
                      std::make_exception_ptr(CompletionError("its Completion was dropped without being called")));
  core->FreeCompletion(state_);
}

std::exception_ptr Completion::Unspecified() {
  return std::make_exception_ptr(CompletionError("failed without saying why"));
}

void Completion::Finish(std::exception_ptr cause) {
  if (!state_) throw UsageError("an empty Completion was called");
  // acq_rel: one caller wins; its effects are published by the settling.
  if (state_->called.exchange(1, std::memory_order_acq_rel) == 0) {
    state_->core->FinishAsync(state_->op, std::move(cause));
    return;
  }
  const std::string what = cause ? "failed after it had completed: " + detail::DescribeException(cause)
                                 : std::string("its Completion was called twice");
  state_->core->ReportLate(state_->name, state_->site, std::make_exception_ptr(CompletionError(what)));
}

namespace detail {

CompletionState* EngineCore::NewCompletion(ThreadSlot& slot, OpRecord* op) {
  auto* state = ::new (slot.cache.Get(kGroupClass)) CompletionState;
  state->core = this;
  state->op = op;
  state->name = op->extra.name;
  state->site = op->site();
  Retain();
  op->completion() = state;
  return state;
}

void EngineCore::FreeCompletion(CompletionState* state) {
  // Once the engine has closed, the memory goes with it.
  if (phase_.load(std::memory_order_acquire) != Phase::kClosed) Slot().cache.Return(kGroupClass, state);
  Release();
}

// On whatever thread called: settles the op and posts what it released, and runs none of it.
void EngineCore::FinishAsync(OpRecord* op, std::exception_ptr cause) {
  ErrorRecord* error = cause ? ErrorRecord::NewRoot(op->extra.name, op->site(), std::move(cause)) : nullptr;
  if (op->extra.flags & kTicketOp) return FinishTicket(op, error);
  if (op->extra.flags & kDeviceOp) {
    devices_->FinishAsync(Slot(), op, error);
  } else {
    Finish(Slot(), op, error, nullptr);
  }
}

void EngineCore::ReportLate(const char* op, Site site, std::exception_ptr cause) {
  ErrorRecord* error = ErrorRecord::NewRoot(op, site, std::move(cause));
  if (phase_.load(std::memory_order_acquire) == Phase::kClosed) {
    Unobserved(error->Show());
  } else {
    errors_.Add(error);
  }
  error->Release();
}

// At shutdown: starts what is still held. The gate is closed meanwhile, so that no block is filled anew.
void EngineCore::ReleaseAllHeld() {
  std::vector<CompletionState*> claims;
  PushGate::Close(*this);
  ops_.ForEachBlock(kFirstOpClass, kClasses, [&](void* block) {
    auto* op = static_cast<OpRecord*>(block);
    if (op->extra.state.load(std::memory_order_acquire) == OpState::kWaiting && (op->extra.flags & kHeldOp) &&
        op->completion()->op == op)
      claims.push_back(op->completion());
  });
  PushGate::Open(*this);
  for (CompletionState* claim : claims) ReleaseHeld(claim);
}

// At shutdown: fails what still waits for a completion. A state whose op ended meanwhile has `called` set, and a
// recycled one belongs to an op that waits too.
size_t EngineCore::FailPendingCompletions(const std::exception_ptr& cause) {
  std::vector<CompletionState*> waiting;
  ops_.ForEachBlock(kFirstOpClass, kClasses, [&](void* block) {
    auto* op = static_cast<OpRecord*>(block);
    if (op->extra.state.load(std::memory_order_acquire) == OpState::kAsync) waiting.push_back(op->completion());
  });
  size_t failed = 0;
  for (CompletionState* state : waiting) {
    if (state->called.exchange(1, std::memory_order_acq_rel) != 0) continue;
    FinishAsync(state->op, cause);
    ++failed;
  }
  return failed;
}

}  // namespace detail
}  // namespace engine
