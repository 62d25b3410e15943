// Waiting for a Var, and driving the ops that only waiters run.
//
// A wait that cannot be answered by two loads, for the length of a spin, pushes an internal op that reads (or, for
// WaitToWrite, updates) the Var, and parks on a word in that op's block, which it pins. Giving up leaves the pin to the
// op.
//
// Parking outside an op: the thread also drives the caller pool (naive ops, and everything with zero workers). It is
// listed while it sleeps, so that whoever posts there can wake one driver. Inside an op, of whichever engine, nothing is
// driven: no op ever runs on a waiting op's stack; roles go to stand-ins (lent_roles.h), and a driver is got when there is
// something to drive.
#include <algorithm>

#include "core/draft.h"
#include "core/engine_thread.h"
#include "core/lent_roles.h"

namespace engine::detail {
bool EngineCore::Wait(VarRef var, WaitKind kind, Clock::time_point deadline, Site site) {
  VarCore* core = var.core();
  CheckVar(core, "argument", "wait", site);
  // relaxed: a wait beside the Delete may come before it. One behind pending ops would be refused by its registration.
  if (core->completer.deleting.load(std::memory_order_relaxed)) [[unlikely]]
    throw UsageError("a wait at " + At(site) + " names Var '" + core->pusher.name + "', which was deleted");
  const bool inside = t_frame != nullptr;
  bool ours = false;
  for (const RunFrame* f = t_frame; f; f = f->outer) {
    if (f->core != this) continue;
    ours = true;
    if (FindAccess(f->op, core))  // mutant: wait_for_own_var
      throw UsageError("op '" + std::string(f->op->extra.name) + "' waits for Var '" + core->pusher.name +
                       "', which it names itself, at " + site.file + ":" + std::to_string(site.line));
  }
  if (ours && t_in_piece)
    throw UsageError("a wait at " + At(site) + " for Var '" + core->pusher.name +
                     "' inside a piece of ParallelFor of op '" + t_frame->op->extra.name +
                     "': a piece may run on any thread, which has no worker to lend; wait before or after ParallelFor");
  // The common case needs no op: the writes settle while we look, and nothing is poisoned.
  // Not behind ops that are held: it is the op that has them released.
  const bool may_spin = !inside && !caller_pool_used_.load(std::memory_order_relaxed) && !Protocol::BehindHeld(core);
  const auto spin = may_spin ? std::chrono::nanoseconds(options_.spin) : std::chrono::nanoseconds{0};
  if (kind == WaitKind::kRead && SpinUntil([&] { return Protocol::Settled(core); }, spin, spin_places_, deadline) &&
      !poisoned_.load(std::memory_order_relaxed)) {
    VarPoints* points = core->completer.points.load(std::memory_order_acquire);
    if (!points || devices_->PollWrite(*points, spin)) return true;
  }

  RefuseWaitInHook();
  const Hold hold(this);
  ThreadSlot& slot = Slot();
  const Mode mode = kind == WaitKind::kRead ? Mode::kRead : Mode::kUpdate;
  Draft draft = NewInternal(slot, var, mode, OpKindId::kWait, site);
  OpRecord* const op = draft.op();  // pinned by us, once it is registered
  auto* node = static_cast<WaitNode*>(op->closure());
  RegisterInternal(slot, std::move(draft));
  LentRoles lent;
  try {
    if (inside && node->word.load(std::memory_order_acquire) != WaitNode::kDone) lent.Lend(*this);
  } catch (...) {
    if (!Abandon(op))
      if (ErrorRecord* error = TakeError(op)) error->Release();
    throw;
  }
  const bool done = Park(node->word, deadline, inside ? &lent : nullptr);
  if (!done && Abandon(op)) return false;
  if (ErrorRecord* error = TakeError(op)) Throw(error);
  return true;
}

// A run that goes on here when `word` says so. Where no stand-in is left, or can be made, nobody takes our role meanwhile.
void EngineCore::AwaitInside(std::atomic<uint32_t>& word) {
  const auto done = [&] { return word.load(std::memory_order_acquire) == WaitNode::kDone; };
  if (SpinUntil(done, options_.spin, spin_places_)) return;
  LentRoles lent;
  try {
    if (!t_in_piece) lent.Lend(*this);
  } catch (const Error&) {
  }
  Park(word, kNever, &lent);
}

// The wait is over: its result, counted, and the end of the pin.
ErrorRecord* EngineCore::TakeError(OpRecord* op) {
  ErrorRecord* error = static_cast<WaitNode*>(op->closure())->error;
  Pass pass{&Slot()};
  Protocol::DropPins(pass, op, 1);
  return error;
}

// False: too late, the wait is over and the pin still ours.
bool EngineCore::Abandon(OpRecord* op) {
  auto* node = static_cast<WaitNode*>(op->closure());
  // acq_rel: partner is the exchange to kDone in RunInternal; whoever comes second owns the pin.
  return node->word.exchange(WaitNode::kAbandoned, std::memory_order_acq_rel) != WaitNode::kDone;
}

bool EngineCore::Park(std::atomic<uint32_t>& word, Clock::time_point deadline, LentRoles* inside) {
  const bool driven = caller_pool_used_.load(std::memory_order_relaxed);
  const auto done = [&] { return word.load(std::memory_order_acquire) == WaitNode::kDone; };
  if (SpinUntil(done, driven ? std::chrono::nanoseconds{0} : options_.spin, spin_places_, deadline)) return true;
  bool in_time = true;
  while (in_time && !done()) {
    if (!inside && DriveOne()) continue;
    if (inside && pool(kCallerPool).HasReady() && inside->AddDriver(*this)) continue;
    uint32_t was = WaitNode::kPending;
    if (!word.compare_exchange_strong(was, WaitNode::kParked, std::memory_order_acq_rel)) break;
    in_time = SleepListed({&word, false}, WaitNode::kParked, deadline, !inside || inside->MayAddDriver(*this));
    // Back from kParked or kDrive; kDone stays.
    was = word.load(std::memory_order_acquire);
    while (was != WaitNode::kDone && !word.compare_exchange_weak(was, WaitNode::kPending, std::memory_order_acq_rel)) {
    }
  }
  PassOnDriving();
  return done();
}

// Who could drive goes away: a wake that was meant for him goes to another. Asked behind his last sleep, in which the pool
// may have been used for the first time.
void EngineCore::PassOnDriving() {
  if (caller_pool_used_.load(std::memory_order_relaxed) && pool(kCallerPool).HasReady())
    WakeDriver();  // mutant: driver_leaves_in_silence
}

// One sleep, listed as a driver meanwhile. False at the deadline.
bool EngineCore::SleepListed(ParkedWaiter me, uint32_t expected, Clock::time_point deadline, bool listed) {
  if (deadline != kNever && Clock::now() >= deadline) return false;
  if (!listed) {
    FutexWait(*me.word, expected, deadline);
    return true;
  }
  {
    MutexLock lock(parked_mu_);
    me.before = std::exchange(last_parked_, &me);
    if (me.before) me.before->after = &me;
    me.listed = true;
    // seq_cst, then a look at the pool. Partner: WakeDriver, which has posted before it looks at the count.
    parked_count_.fetch_add(1, std::memory_order_seq_cst);
  }
  HeavyFence();
  if (!pool(kCallerPool).HasReady()) FutexWait(*me.word, expected, deadline);
  MutexLock lock(parked_mu_);
  if (me.listed) Unlist(me);
  parked_count_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void EngineCore::Unlist(ParkedWaiter& waiter) {
  (waiter.after ? waiter.after->before : last_parked_) = waiter.before;
  if (waiter.before) waiter.before->after = waiter.after;
  waiter.listed = false;
}

// Changes the word that a driver sleeps on, then wakes it: a sleep that has not begun yet then ends at once.
void EngineCore::WakeDriver() {
  caller_pool_used_.store(true, std::memory_order_relaxed);
  LightFence();
  if (parked_count_.load(std::memory_order_relaxed) == 0) return;
  MutexLock lock(parked_mu_);
  while (last_parked_) {
    ParkedWaiter& waiter = *last_parked_;  // stays until we let go of the lock
    Unlist(waiter);
    if (waiter.sequence) {
      waiter.word->fetch_add(1, std::memory_order_release);
    } else {
      uint32_t parked = WaitNode::kParked;
      if (!waiter.word->compare_exchange_strong(parked, WaitNode::kDrive, std::memory_order_acq_rel)) continue;
    }
    FutexWake(*waiter.word, kEveryone);  // mutant: dropped_driver_wake
    return;
  }
}

bool EngineCore::DriveOne(uint8_t* epoch) {
  if (t_frame) return false;
  if (!HasSlot()) return false;  // no memory for one: later
  OpRecord* op = pool(kCallerPool).TryTake();
  if (!op) return false;
  if (epoch) *epoch = op->extra.epoch;
  const BodyScopes aside;  // mutant: body_under_the_scopes_of_who_waits
  Execute(Slot(), op, nullptr);
  return true;
}

}  // namespace engine::detail
