// Runs an op, settles it, and starts the ops that it released.
#include "core/core.h"
#include "core/traced_body.h"

namespace engine::detail {

thread_local constinit BodyFrame* t_frame = nullptr;
thread_local constinit bool t_role_lent = false;
thread_local constinit bool t_in_piece = false;
thread_local constinit KeptError::Content t_kept_error{};

KeptError::KeptError(const OpRecord* op) noexcept : outer_(t_kept_error) { Set(op); }

KeptError::~KeptError() {
  if (t_kept_error.error) t_kept_error.error->Release();
  t_kept_error = outer_;
}

void KeptError::Set(const OpRecord* op) noexcept {
  ErrorRecord* const error = op ? EngineCore::FirstPoison(const_cast<OpRecord*>(op)) : nullptr;
  t_kept_error = {op, error ? error->Retain() : nullptr};
}

void ProductionEnv::AddReady(Pass& pass, OpRecord* op) {
  op->extra.next = nullptr;
  if (pass.last_ready) {
    pass.last_ready->extra.next = op;
  } else {
    pass.ready = op;
  }
  pass.last_ready = op;
}

void EngineCore::RecycleOther(OpRecord* op) {
  if (op->extra.kind == OpKindId::kDelete) return ReleaseVarCore(CoreOf(op->accesses()[0].var));
  ops_.ReturnLarge(op->extra.size_class, op);
}

// Called at the end of an op of this epoch: starts what it released, and notifies WaitAll and pushes that wait for
// room.
ENGINE_INLINE OpRecord* EngineCore::CountEndInline(ThreadSlot& slot, Pass& pass, uint8_t epoch, Worker* worker) {
  Jitter();
  slot.completed[epoch].AddRelease();
  Jitter();
  OpRecord* const next = pass.ready ? Dispatch(pass, worker) : nullptr;
  // Partner: the HeavyFence of a waiter, behind its announcement (epochs.h, admission.cc).
  LightFence();
  if (epochs_.Awaited(epoch) && (!next || next->extra.epoch != epoch)) [[unlikely]] {
    if (!next && (worker || (slot.keeps_drain_note && !t_frame))) {
      slot.drain_note = 1 + epoch;  // sent later: the queue may have more ops of that epoch
    } else {
      epochs_.NoteIfOver(epoch);
    }
  }
  if (admission_.Waiters()) [[unlikely]]
    admission_.NoteEnd(slot, worker);
  return next;
}

void EngineCore::Complete(Pass& pass, OpRecord* op) { CompleteInline(pass, op); }

template <bool kBody>
ENGINE_INLINE OpRecord* EngineCore::FinishInline(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker) {
  OpChain* chain = nullptr;  // of a member that its device refused: the chain goes on with the next one
  if (op->extra.flags & (kScoped | kInChain | kForgotten | (kBody ? uint32_t{kDeferred} : 0u))) [[unlikely]] {
    if (kBody && (op->extra.flags & kDeferred)) return EndDeferredBody(slot, op, error);  // mutant: deferred_ends_early
    if ((op->extra.flags & (kScoped | kAsyncOp | kDeferred)) == kScoped) DropScope(op);
    if (op->extra.flags & kForgotten) return nullptr;
    if ((op->extra.flags & kInChain) && op->extra.more_behind) chain = op->chain();
  }
  if (error || poisoned_.load(std::memory_order_relaxed)) [[unlikely]]
    SettlePoison(op, error);
  const uint8_t epoch = op->extra.epoch;
  Pass pass{&slot};
  CompleteInline(pass, op);
  if (chain) [[unlikely]]
    chains_.StartNext(pass, *chain);
  return CountEndInline(slot, pass, epoch, worker);
}

// Counts the end of an op on a device, which has retired. Its Vars were released when it was issued.
void EngineCore::NoteCompleted(ThreadSlot& slot, uint8_t epoch) {
  slot.completed[epoch].AddRelease();
  LightFence();
  if (epochs_.Awaited(epoch)) epochs_.NoteIfOver(epoch);
  if (admission_.Waiters()) admission_.NoteEnd(slot, nullptr);
}

OpRecord* EngineCore::CountEnd(ThreadSlot& slot, Pass& pass, uint8_t epoch, Worker* worker) {
  return CountEndInline(slot, pass, epoch, worker);
}
OpRecord* EngineCore::Finish(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker) {
  return FinishInline<false>(slot, op, error, worker);
}

OpRecord* EngineCore::Execute(ThreadSlot& slot, OpRecord* op, Worker* worker, ErrorRecord** raised) {
  CheckState(op, Bit(OpState::kReady), "an op starts that is not ready");
  Jitter();
  op->extra.state.store(OpState::kRunning, std::memory_order_relaxed);
  if ((op->extra.flags & (kScoped | kAsyncOp | kOwnWay)) | poisoned_.load(std::memory_order_relaxed) |
      tracing_.load(std::memory_order_relaxed) | has_devices_.load(std::memory_order_relaxed)) [[unlikely]]
    return ExecuteWatched(slot, op, worker, raised);
  BodyFrame frame{this, op, t_frame};
  t_frame = &frame;
  RunContext ctx(this, op, worker ? worker->index : -1);
  const ClosureType* type = op->extra.closure;
  void* const closure = op->closure();
  ErrorRecord* error = nullptr;
  try {
    type->run(closure, ctx, nullptr);
  } catch (...) {
    error = ErrorRecord::NewRoot(op->extra.name, op->site(), std::current_exception());
    if (raised) *raised = error->Retain();
  }
  if (type->destroy) type->destroy(closure);
  t_frame = frame.outer;
  // If the body waited, a stand-in has our role and slot.
  if (t_role_lent) [[unlikely]]
    return FinishInline<true>(Slot(), op, error, nullptr);
  return FinishInline<true>(slot, op, error, worker);
}

// Execute where the engine has devices, errors or a trace, or the op has a scope or a Completion.
OpRecord* EngineCore::ExecuteWatched(ThreadSlot& slot, OpRecord* op, Worker* worker, ErrorRecord** raised) {
  if (op->extra.flags & kDeviceOp) return devices_->Execute(slot, op, worker);
  if (has_devices_.load(std::memory_order_relaxed) && !devices_->MayRunOnHost(op)) return nullptr;
  if (op->extra.flags & kOwnWay) return KindOf(op).execute(*this, slot, op, worker);
  const bool async = op->extra.flags & kAsyncOp;
  const ClosureType* type = op->extra.closure;
  const char* const thread = worker ? worker->name.c_str() : nullptr;  // null: the calling thread's
  TracedBody traced(*this);
  if (traced.on()) traced.About(op);
  ErrorRecord* error = BeforeRun(op);
  if (error) {
    slot.skipped.Add();
    traced.Skip(thread);
    DestroyClosure(op);
    ThreadSlot& now = t_role_lent ? Slot() : slot;
    if (async) LeaveBody(now, op);
    if (raised) *raised = error->Retain();
    return Finish(now, op, error, t_role_lent ? nullptr : worker);
  }
  const char* const name = op->extra.name;
  BodyFrame frame{this, op, t_frame, {}, nullptr, /*keeps_error=*/true};
  t_frame = &frame;
  const KeptError kept(async && (op->extra.flags & kRunAlways) ? op : nullptr);
  RunContext ctx(this, op, worker ? worker->index : -1);
  // An asynchronous op may be settled by its Completion before the body returns. Until we are done a pin keeps the
  // block, and `ours` keeps the CompletionState. What the body throws fails the Completion.
  Completion ours;
  traced.Begin(thread);
  try {
    if (async) ours = StartAsync(slot, op);
    Completion theirs = ours;
    type->run(op->closure(), ctx, &theirs);
  } catch (...) {
    if (ours) {
      ours.Fail(std::current_exception());
    } else {  // the op is synchronous, or there was no memory for a Completion
      error = ErrorRecord::NewRoot(name, op->site(), std::current_exception());
      if (raised) *raised = error->Retain();
    }
  }
  if (type->destroy) type->destroy(op->closure());
  t_frame = frame.outer;
  traced.End();
  ThreadSlot& now = t_role_lent ? Slot() : slot;
  if (async) {
    const bool begun = static_cast<bool>(ours);
    if (begun) NoteReturned(ours);
    ours = Completion();
    LeaveBody(now, op);
    if (begun) return nullptr;
  }
  return FinishInline<true>(now, op, error, t_role_lent ? nullptr : worker);
}

// Of an op that has a Completion: called when its body is over. The op may have ended long before, and the body may
// have asked whether it was cancelled since.
void EngineCore::DropScope(OpRecord* op) {
  if (op->extra.flags & kScoped) op->scope().~ScopePtr();
}

// As DropScope; and drops the pin that the running body had.
void EngineCore::LeaveBody(ThreadSlot& slot, OpRecord* op) {
  DropScope(op);
  Pass pass{&slot};
  Protocol::DropPins(pass, op, 1);
}

// Of an op that does not run, or whose body is over. What the closure holds may push and wait in its destructor, as at the end
// of a body.
void EngineCore::DestroyClosure(OpRecord* op) {
  const ClosureType* const type = op->extra.closure;
  if (!type->destroy) return;
  BodyFrame frame{this, op, t_frame};
  frame.over = true;
  t_frame = &frame;  // mutant: closure_destroyed_outside
  type->destroy(op->closure());
  t_frame = frame.outer;
}

// The error for which the op is skipped, counted; null: the op runs.
ErrorRecord* EngineCore::BeforeRun(OpRecord* op) {
  if (gave_up()) [[unlikely]]  // mutant: op_starts_behind_its_engine
    return GaveUpBefore(op->extra.name, op->site());
  if (op->extra.flags & kRunAlways) return nullptr;
  if (Cancelled(op)) {
    const auto cause = MakeCause<CancelledError>("cancelled before it started");
    return ErrorRecord::NewAskedFor(op->extra.name, op->site(), cause);
  }
  ErrorRecord* poison = FirstPoison(op);
  return poison ? poison->Hop(op->extra.name, op->site()) : nullptr;
}

// The error of an op, or of a node of a plan, that starts behind a shutdown that gave up.
ErrorRecord* EngineCore::GaveUpBefore(const char* name, Site site) {
  // Marked as asked for, as a cancellation is, so that it is not reported again: the shutdown's report has said it.
  const auto cause = MakeCause<ShutdownError>("the engine's shutdown gave up before the op started");
  return ErrorRecord::NewAskedFor(name, site, cause);
}

bool EngineCore::Cancelled(OpRecord* op) {
  if (const auto owner = KindOf(op).owner; owner && !(op->extra.flags & kDeviceOp)) op = owner(op);
  return (op->extra.flags & kScoped) && op->scope()->load(std::memory_order_relaxed);
}

// The error of the poisoned input that the caller listed first, or null. Not counted: it lives as long as the access.
ErrorRecord* EngineCore::FirstPoison(OpRecord* op) {
  ErrorRecord* first = nullptr;
  uint32_t listed = UINT32_MAX;
  for (uint32_t i = 0; i < op->n_access; ++i) {
    Access& a = op->accesses()[i];
    if (a.mode() == AccessMode::kWrite) continue;
    if (a.listed() >= listed) continue;  // mutant: last_listed_error
    // relaxed: the grant of this access orders us behind the writer that set it.
    if (ErrorRecord* e = CoreOf(a.var)->completer.poison.load(std::memory_order_relaxed)) {
      first = e;
      listed = a.listed();
    }
  }
  return first;
}

void EngineCore::SetPoison(VarCore* var, ErrorRecord* error) {
  if (error) error->Retain();
  ErrorRecord* before = var->completer.poison.exchange(error, std::memory_order_relaxed);
  if (error && !before) poisoned_.fetch_add(1, std::memory_order_relaxed);
  if (!error && before) poisoned_.fetch_sub(1, std::memory_order_relaxed);
  if (before) before->Release();
}

// With an error: poisons the Vars that the op should have changed. Without: clears the poison of the Vars that it
// wrote. Needs to be called only while some Var is poisoned, or with an error, whose count it takes over.
void EngineCore::SettlePoison(OpRecord* op, ErrorRecord* error) {
  if (error && (op->extra.flags & kRunAlways)) error->ChainTo(FirstPoison(op));
  for (uint32_t i = 0; i < op->n_access; ++i) {
    Access& a = op->accesses()[i];
    if (a.read()) continue;
    if (error) {
      SetPoison(CoreOf(a.var), error);
    } else if (a.mode() == AccessMode::kWrite) {  // mutant: update_clears_poison
      // An Update leaves the poison of a run_always op's Var where it is.
      SetPoison(CoreOf(a.var), nullptr);
    }
  }
  if (!error) return;
  if (error->IsRoot() && !error->quiet) errors_.Add(error);  // mutant: lost_unseen_error
  error->Release();
}

// Starts the ops that became ready. A worker keeps the last op of its own pool and runs it next; all others are queued.
// Readers of a group are granted in reverse order, so the last op is the one that was pushed first, and the worker's
// queue gives the next. `keep` is the next member of a chain: it comes last, and runs next if it is ready.
OpRecord* EngineCore::Dispatch(Pass& pass, Worker* worker, const OpRecord* keep) {
  OpRecord* next = nullptr;
  bool posted = false;
  while (OpRecord* op = pass.ready) {
    pass.ready = op->extra.next;
    if (!pass.ready) pass.last_ready = nullptr;
    if (op->extra.flags & kInternal) {
      RunInternal(pass, op);
      continue;
    }
    op->extra.state.store(OpState::kReady, std::memory_order_relaxed);
    if (!worker || op->extra.pool != worker->pool->index()) {  // mechanism: keeps_successor
      Post(*pass.slot, op);
      continue;
    }
    if (next) {
      worker->pool->Put(*pass.slot, next);
      posted = true;
    }
    next = op;
  }
  if (next && next == keep) {
    pass.slot->merged.Add();
    next->extra.merged = true;
  } else if (next && worker->pool->mixed_levels()) [[unlikely]] {  // a more urgent op may be queued
    worker->pool->Put(*pass.slot, next);
    next = nullptr;
    posted = true;
  }
  if (posted) worker->pool->Notify();
  if (next && next != keep) pass.slot->inlined.Add();
  return next;
}

void EngineCore::Post(ThreadSlot& slot, OpRecord* op, Beside beside) {
  class Pool& target = pool(op->extra.pool);
  target.Put(slot, op);  // from here on the op may run and be gone
  if (target.index() == kCallerPool) {
    caller_pool_.Wake();
  } else {
    target.Notify(beside);
  }
}

Access* EngineCore::FindAccess(OpRecord* op, const VarCore* var) {
  if (const auto owner = KindOf(op).owner) op = owner(op);  // a node uses the Vars of its run
  for (uint32_t i = 0; i < op->n_access; ++i)
    if (op->accesses()[i].var == var) return &op->accesses()[i];
  const auto elsewhere = KindOf(op).access_elsewhere;
  return elsewhere ? elsewhere(op, var) : nullptr;  // mutant: version_of_a_late_var
}

}  // namespace engine::detail
