// Waiting for a Var, and running the caller pool's ops meanwhile.
//
// A wait first spins on two loads. If that is not enough, it pushes an internal op that reads the Var (WaitToWrite:
// that updates it), and sleeps on a word in that op's block, which it pins. A wait that gives up leaves the pin to the
// op.
//
// Outside any op the waiting thread also drives the caller pool (caller_pool.h). Inside an op, of whichever engine, it
// runs nothing, so that no op ever runs on the stack of a waiting op; stand-ins play its roles and drive for it
// (lent_roles.h).
#include <algorithm>

#include "core/draft.h"
#include "core/hook_frame.h"
#include "core/lent_roles.h"

namespace engine::detail {
bool EngineCore::Wait(VarRef var, WaitKind kind, Clock::time_point deadline, Site site) {
  VarCore* core = var.core();
  CheckVar(core, "a wait", site);
  // relaxed: a wait that overlaps the Delete may come before it. If it comes after, its registration refuses it.
  if (core->completer.deleting.load(std::memory_order_relaxed)) [[unlikely]]
    throw UsageError("a wait at " + At(site) + " names Var '" + core->pusher.name +
                     "', which was deleted; name another Var");
  const bool inside = t_frame != nullptr;
  bool ours = false;
  for (const BodyFrame* f = t_frame; f; f = f->outer) {
    if (f->core != this) continue;
    ours = true;
    if (FindAccess(f->op, core))  // mutant: wait_for_own_var
      throw UsageError(OpText(f->op->extra.name) + " waits at " + At(site) + " for Var '" + core->pusher.name +
                       "', which it names itself, and so for its own end; leave the wait out");
  }
  if (ours && t_in_piece)
    throw UsageError("a wait at " + At(site) + " for Var '" + core->pusher.name +
                     "' inside a piece of ParallelFor of op '" + t_frame->op->extra.name +
                     "': a piece may run on any thread, which has no worker to lend; wait before or after ParallelFor");
  // The common case needs no op: the writes settle while we look, and nothing is poisoned. Behind held ops we do not
  // spin, because only the registration of our op has them released.
  const bool looks = kind == WaitKind::kLook;
  const bool may_spin = !looks && !inside && !caller_pool_.used() && !Protocol::BehindHeld(core);
  const auto spin = may_spin ? std::chrono::nanoseconds(options_.spin) : std::chrono::nanoseconds{0};
  if (kind != WaitKind::kWrite && SpinUntil([&] { return Protocol::Settled(core); }, spin, spin_places_, deadline) &&
      !poisoned_.load(std::memory_order_relaxed)) {
    VarPoints* points = core->completer.points.load(std::memory_order_acquire);
    if (!points || devices_->PollWrite(*points, spin)) return true;
  }
  if (looks && !SettledNow(var, site)) return false;

  RefuseWaitInHook();
  const KeepAlive alive(this);
  ThreadSlot& slot = Slot();
  const AccessMode mode = kind == WaitKind::kWrite ? AccessMode::kUpdate : AccessMode::kRead;
  Draft draft = NewInternal(slot, var, mode, OpKindId::kWait, site);
  OpRecord* const op = draft.op();  // we have a pin of it once it is registered
  auto* node = static_cast<WaitNode*>(op->closure());
  RegisterInternal(slot, std::move(draft));
  LentRoles lent;
  try {
    if (inside && !looks && node->word.load(std::memory_order_acquire) != WaitNode::kDone) lent.Lend(*this);
  } catch (...) {
    if (!Abandon(op))
      if (ErrorRecord* error = TakeError(op)) error->Release();
    throw;
  }
  TracedWait traced(WaitCause::kVar, core->pusher.name);
  const uint32_t forks = Forks();
  const bool done = looks ? node->word.load(std::memory_order_acquire) == WaitNode::kDone
                          : Park(node->word, deadline, inside ? &lent : nullptr);
  if (Forks() != forks)
      [[unlikely]]  // an op that this wait ran has forked, and this is the child: the wait is the parent's
    Throw(ErrorRecord::NewRoot("wait", site,
                               std::make_exception_ptr(ForkedWhilePending(
                                   "an op that the wait ran has forked; the wait goes on in the parent"))));
  traced.End();
  if (!done && Abandon(op)) return false;
  if (ErrorRecord* error = TakeError(op)) Throw(error);
  return true;
}

bool EngineCore::SettledNow(VarRef var, Site site) const {
  VarCore* core = var.core();
  CheckVar(core, "Settled", site);
  if (!Protocol::Settled(core)) return false;
  VarPoints* points = core->completer.points.load(std::memory_order_acquire);
  return !points || devices_->PollWrite(*points, std::chrono::nanoseconds{0});
}

void EngineCore::RefuseWaitInHook() const {
  if (HookFrame::Inside(this, HookFrame::Kind::kWorker))
    throw UsageError(
        "a wait in on_start or on_end may be for what the hook's own worker is to run; push there, and wait elsewhere");
}

// Called on the thread of an in-order run that waits for one of the run's nodes. If this thread is a worker, a stand-in
// plays its role already (Replay::MayAwait). Other roles that this wait lends stay unplayed if no stand-in can be had.
void EngineCore::AwaitInside(std::atomic<uint32_t>& word) {
  const auto done = [&] { return word.load(std::memory_order_acquire) == WaitNode::kDone; };
  if (SpinUntil(done, options_.spin, spin_places_)) return;
  LentRoles lent;
  try {
    if (!t_in_piece) lent.Lend(*this);
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
  Park(word, kNever, &lent);
}

// Called when the wait is over: returns its error, counted, or null; drops our pin.
ErrorRecord* EngineCore::TakeError(OpRecord* op) {
  ErrorRecord* error = static_cast<WaitNode*>(op->closure())->error;
  Pass pass{&Slot()};
  Protocol::DropPins(pass, op, 1);
  return error;
}

// Leaves our pin to the op. False: the wait is over, and the pin is still ours.
bool EngineCore::Abandon(OpRecord* op) {
  auto* node = static_cast<WaitNode*>(op->closure());
  // acq_rel: partner is the exchange to kDone in EndWait; whoever comes second owns the pin.
  return node->word.exchange(WaitNode::kAbandoned, std::memory_order_acq_rel) != WaitNode::kDone;
}

bool EngineCore::Park(std::atomic<uint32_t>& word, Clock::time_point deadline, LentRoles* inside) {
  const bool driven = caller_pool_.used();
  const auto done = [&] { return word.load(std::memory_order_acquire) == WaitNode::kDone; };
  if (SpinUntil(done, driven ? std::chrono::nanoseconds{0} : options_.spin, spin_places_, deadline)) return true;
  bool in_time = true;
  const uint32_t forks = Forks();
  while (in_time && !done()) {
    if (!inside && DriveOne()) {
      if (Forks() != forks) [[unlikely]]  // mutant: wait_of_the_parent
        return false;
      continue;
    }
    if (inside && pool(kCallerPool).HasReady() && inside->AddDriver(*this)) continue;
    uint32_t was = WaitNode::kPending;
    if (!word.compare_exchange_strong(was, WaitNode::kParked, std::memory_order_acq_rel)) break;
    const bool drives = !inside || inside->MayAddDriver(*this);
    // What retires with an op (its closure, the values of a run) may wait in its destructor, on the thread that looks at the
    // devices. That goes on looking.
    if (has_devices_.load(std::memory_order_relaxed) && devices_->LookInPassing()) {  // mutant: retirement_sleeps
      caller_pool_.Sleep({&word, false}, WaitNode::kParked, std::min(deadline, Clock::now() + tuning::kAwaitNap),
                         drives);
      in_time = Clock::now() < deadline;
    } else {
      in_time = caller_pool_.Sleep({&word, false}, WaitNode::kParked, deadline, drives);
    }
    // From kParked or kDrive back to kPending; kDone stays.
    was = word.load(std::memory_order_acquire);
    while (was != WaitNode::kDone && !word.compare_exchange_weak(was, WaitNode::kPending, std::memory_order_acq_rel)) {
    }
  }
  caller_pool_.PassOn();
  return done();
}

bool EngineCore::DriveOne(uint8_t* epoch) {
  if (t_frame) return false;
  ThreadSlot* const slot = slots_.MineOrNull();
  if (!slot) return false;  // there is no memory for a slot: the caller tries again later
  BeginOwnRun(*slot);  // before the take, so that a push that waits for room finds the op in the queue or its driver
  OpRecord* const op = pool(kCallerPool).TryTake();
  if (slot->drain_note) DeliverDrainNote(*slot, op);
  if (!op) {
    EndOwnRun(*slot);
    return false;
  }
  if (epoch) *epoch = op->extra.epoch;
  const BodyScopes aside;  // mutant: body_under_the_scopes_of_who_waits
  slot->keeps_drain_note = epoch != nullptr;
  Execute(*slot, op, nullptr);
  slot->keeps_drain_note = false;
  return true;
}

void EngineCore::BeginOwnRun(ThreadSlot& slot) {
  if (slot.own_runs.Read() % 2 == 0) slot.own_runs.AddRelease();
}

void EngineCore::EndOwnRun(ThreadSlot& slot) {
  if (slot.own_runs.Read() % 2 == 0) return;
  slot.own_runs.AddRelease();
  // Partner: the HeavyFence in WaitForRoom. If an op is queued, whoever drives it comes by here, too.
  LightFence();
  if (admission_.Waiters() && !pool(kCallerPool).HasReady()) admission_.Wake();  // mutant: driver_ends_in_silence
}

}  // namespace engine::detail
