// Waiting for a Var, and driving the ops that only waiters run.
//
// A wait that cannot be answered by two loads, for the length of a spin, pushes an internal op that reads (or, for
// WaitToWrite, updates) the Var, and parks on a word in that op's block, which it pins. Giving up leaves the pin to the
// op.
//
// Parking outside an op: the thread also drives the caller pool (naive ops, and everything with zero workers). It is
// listed while it sleeps, so that whoever posts there can wake one driver. Inside an op nothing is driven: no op
// ever runs on a waiting op's stack; the role goes to a stand-in.
#include <algorithm>

#include "engine_thread.h"

namespace engine::detail {
bool EngineCore::Wait(VarRef var, WaitKind kind, Clock::time_point deadline, Site site) {
  VarCore* core = var.core();
  CheckVar(core, "argument", "wait", site);
  bool inside = false;
  for (const RunFrame* f = t_frame; f; f = f->outer) {
    if (f->core != this) continue;
    inside = true;
    if (FindAccess(f->op, core))
      throw UsageError("op '" + std::string(f->op->extra.name) + "' waits for Var '" + core->pusher.name +
                       "', which it names itself, at " + site.file + ":" + std::to_string(site.line));
  }
  // The common case needs no op: the writes settle while we look, and nothing is poisoned.
  // Not behind ops that are held: it is the op that has them released.
  const bool may_spin = !inside && !caller_pool_used_.load(std::memory_order_relaxed) && !Protocol::BehindHeld(core);
  const auto spin = may_spin ? std::chrono::nanoseconds(options_.spin) : std::chrono::nanoseconds{0};
  if (kind == WaitKind::kRead && SpinUntil([&] { return Protocol::Settled(core); }, spin, spin_places_) &&
      !poisoned_.load(std::memory_order_relaxed)) {
    VarPoints* points = core->completer.points.load(std::memory_order_acquire);
    if (!points || devices_->PollWrite(*points, spin)) return true;
  }

  const Hold hold(this);
  ThreadSlot& slot = Slot();
  const Mode mode = kind == WaitKind::kRead ? Mode::kRead : Mode::kUpdate;
  OpRecord* op = NewInternal(slot, var, mode, kWaitOp | kWaitPin, site);
  auto* node = static_cast<WaitNode*>(op->closure());
  RegisterInternal(slot, op);
  EngineThread* driver = nullptr;
  try {
    if (inside && node->word.load(std::memory_order_acquire) != WaitNode::kDone) {
      driver = LendRole();
    }
  } catch (...) {
    if (!Abandon(op))
      if (ErrorRecord* error = TakeError(op)) error->Release();
    throw;
  }
  const bool done = Park(node->word, deadline, !inside);
  EndDriving(driver);
  if (!done && Abandon(op)) return false;
  ErrorRecord* error = TakeError(op);
  if (!error) return true;
  const OpError shown = error->Show();
  error->Release();
  throw shown;
}

// A run that goes on here when `word` says so. Where there is no stand-in left, nobody takes our role meanwhile.
void EngineCore::AwaitInside(std::atomic<uint32_t>& word) {
  const auto done = [&] { return word.load(std::memory_order_acquire) == WaitNode::kDone; };
  if (SpinUntil(done, options_.spin, spin_places_)) return;
  EngineThread* driver = nullptr;
  try {
    driver = LendRole();
  } catch (const UsageError&) {
  }
  Park(word, kNever, false);
  EndDriving(driver);
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

bool EngineCore::Park(std::atomic<uint32_t>& word, Clock::time_point deadline, bool may_drive) {
  const bool driven = caller_pool_used_.load(std::memory_order_relaxed);
  const auto done = [&] { return word.load(std::memory_order_acquire) == WaitNode::kDone; };
  if (SpinUntil(done, driven ? std::chrono::nanoseconds{0} : options_.spin, spin_places_)) return true;
  bool in_time = true;
  while (in_time && !done()) {
    if (may_drive && DriveOne()) continue;
    uint32_t was = WaitNode::kPending;
    if (!word.compare_exchange_strong(was, WaitNode::kParked, std::memory_order_acq_rel)) break;
    in_time = SleepListed({&word, false}, WaitNode::kParked, deadline, may_drive);
    // Back from kParked or kDrive; kDone stays.
    was = word.load(std::memory_order_acquire);
    while (was != WaitNode::kDone && !word.compare_exchange_weak(was, WaitNode::kPending, std::memory_order_acq_rel)) {
    }
  }
  if (may_drive && driven && pool(kCallerPool).HasReady()) WakeDriver();  // somebody else's turn
  return done();
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
    parked_.push_back(&me);
    // seq_cst, then a look at the pool. Partner: WakeDriver, which has posted before it looks at the count.
    parked_count_.fetch_add(1, std::memory_order_seq_cst);
  }
  HeavyFence();
  if (!pool(kCallerPool).HasReady()) FutexWait(*me.word, expected, deadline);
  MutexLock lock(parked_mu_);
  if (const auto at = std::find(parked_.begin(), parked_.end(), &me); at != parked_.end()) parked_.erase(at);
  parked_count_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

// Changes the word that a driver sleeps on, then wakes it: a sleep that has not begun yet then ends at once.
void EngineCore::WakeDriver() {
  caller_pool_used_.store(true, std::memory_order_relaxed);
  LightFence();
  if (parked_count_.load(std::memory_order_relaxed) == 0) return;
  MutexLock lock(parked_mu_);
  while (!parked_.empty()) {
    const ParkedWaiter waiter = *parked_.back();
    parked_.pop_back();
    if (waiter.sequence) {
      waiter.word->fetch_add(1, std::memory_order_release);
    } else {
      uint32_t parked = WaitNode::kParked;
      if (!waiter.word->compare_exchange_strong(parked, WaitNode::kDrive, std::memory_order_acq_rel)) continue;
    }
    FutexWake(*waiter.word, kEveryone);
    return;
  }
}

bool EngineCore::DriveOne(uint8_t* epoch) {
  for (const RunFrame* f = t_frame; f; f = f->outer)
    if (f->core == this) return false;
  OpRecord* op = pool(kCallerPool).TryTake();
  if (!op) return false;
  if (epoch) *epoch = op->extra.epoch;
  while (op) op = Execute(Slot(), op, nullptr);  // a chain goes on
  return true;
}

}  // namespace engine::detail
