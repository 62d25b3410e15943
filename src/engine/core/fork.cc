// The push gate, and fork.
//
// Before a fork every engine closes its gate and takes the locks of what the child keeps: the Vars and the plans; then come
// those of the whole process (fork.h). Running ops go on. The parent opens the gate and has lost nothing. The child has one
// thread: it starts with new pools, slots and op memory; Vars with unfinished writes carry ForkedWhilePending; threads are
// made on first use. What belonged to the threads that are gone is left where it is: also the ops behind the Completions,
// HeldOps and Runs that the child's thread may hold, which are inert there.
#include "base/fork.h"

#include <pthread.h>

#include <algorithm>

#include "core/engine_thread.h"
#include "core/gate.h"
#include "engine/spi/cost_model.h"

namespace engine::detail {

void PushGate::WaitUntilOpen(EngineCore& core, ThreadSlot& slot) {
  for (;;) {
    slot.pushing.store(0, std::memory_order_release);
    for (uint32_t n; (n = core.gate_.load(std::memory_order_acquire)) != 0;) FutexWait(core.gate_, n);
    slot.pushing.store(1, std::memory_order_relaxed);
    LightFence();
    if (core.gate_.load(std::memory_order_acquire) == 0) return;
  }
}

void PushGate::Close(EngineCore& core) {
  core.gate_.fetch_add(1, std::memory_order_seq_cst);
  HeavyFence();
  MutexLock lock(core.slots_mu_);
  for (auto& slot : core.slots_) {
    // acquire: the registration that has just ended. Partner: the release store in Leave.
    while (slot->pushing.load(std::memory_order_acquire) != 0) sched_yield();
  }
}

void PushGate::Open(EngineCore& core) {
  core.gate_.fetch_sub(1, std::memory_order_release);
  FutexWake(core.gate_, kEveryone);
}

namespace {

constinit Mutex g_cores_mu;
std::vector<EngineCore*>& Cores() {
  static auto* cores = new std::vector<EngineCore*>;  // never destroyed: fork may come late
  return *cores;
}
// Written without the analysis: the locks are taken before the fork and dropped after it, in both processes. Models come
// first: a model may drop a plan, whose Vars need the gate, with its lock held.
void Before() NO_THREAD_SAFETY_ANALYSIS {
  Policies();  // a static: the child must not find another thread making it
  CostModel::BeforeFork();
  g_cores_mu.Lock();
  LockPlans();
  for (EngineCore* core : Cores()) core->BeforeFork();
  LockLoopbackWorlds();
  LockNames();
}
void UnlockAll(bool in_child) NO_THREAD_SAFETY_ANALYSIS {
  UnlockNames();
  UnlockLoopbackWorlds();
  for (EngineCore* core : Cores()) in_child ? core->AfterForkInChild() : core->AfterForkInParent();
  g_cores_mu.Unlock();
  UnlockPlans();
  CostModel::AfterFork(in_child);
}
void InParent() { UnlockAll(false); }
void InChild() {
  g_forks.fetch_add(1, std::memory_order_relaxed);
  LoseTbb();
  RegisterMembarrier();
  UnlockAll(true);
}

// When the library is loaded: a fork beside the first engine's construction then waits for it.
[[maybe_unused]] const bool g_registered = pthread_atfork(&Before, &InParent, &InChild) == 0;

}  // namespace

void EngineCore::EnlistForFork() {
  MutexLock lock(g_cores_mu);
  Cores().push_back(this);
}

void EngineCore::DelistForFork() {
  MutexLock lock(g_cores_mu);
  std::erase(Cores(), this);
}

void EngineCore::BeforeFork() NO_THREAD_SAFETY_ANALYSIS {
  PushGate::Close(*this);
  vars_.LockForFork();
  slots_mu_.Lock();
  chains_.BeforeFork();
}

void EngineCore::AfterForkInParent() NO_THREAD_SAFETY_ANALYSIS {
  chains_.AfterForkInParent();
  slots_mu_.Unlock();
  vars_.UnlockForFork();
  PushGate::Open(*this);
}

// A fork inside an op: the child's end of it touches no Var. A run's other threads are gone: it never ends.
static void Orphan(OpRecord* op) {
  if (const auto orphan = KindOf(op).orphan) {
    orphan(op);
  } else {
    op->extra.flags |= kForgotten;
  }
}

void EngineCore::AfterForkInChild() NO_THREAD_SAFETY_ANALYSIS {
  vars_.UnlockForFork();
  id_.store(NewId(), std::memory_order_relaxed);
  for (RunFrame* f = t_frame; f; f = f->outer)
    if (f->core == this) Orphan(f->op);
  Renew(ops_, BlockKind::kOps, options_.max_pending);
  Renew(completions_, BlockKind::kCompletions, size_t{1} << 10);
  Renew(errors_);
  Renew(spare_mu_);
  Renew(slots_mu_);
  Renew(slots_);
  Renew(pools_mu_);
  Renew(pools_made_);
  Renew(threads_mu_);
  Renew(threads_);
  Renew(idle_);
  Renew(parked_mu_);
  Renew(last_parked_, nullptr);
  Renew(drain_mu_);
  Renew(change_mu_);
  watchdog_.AfterForkInChild();
  playing_ = 0;
  parked_count_ = 0;
  room_waiters_ = 0;
  draining_ = 0;
  drained_before_ = epoch_number_;
  gate_ = 0;
  Renew(liveness_->mu);
  liveness_->core = nullptr;  // this thread's slot is the parent's, and no longer one to give back
  liveness_ = std::make_shared<Liveness>();
  liveness_->core = this;
  tracing_ = false;
  threads_lost_ = false;
  PoisonPendingAfterFork();
  chains_.AfterForkInChild(vars_);
  // Its locks and threads are the parent's. It keeps the devices, which must not be destroyed here.
  (void)devices_.release();
  devices_ = MakeDevices(*this, options_, has_devices_.exchange(false));
  device_pools_ = 0;
  MakePools();
  // Another thread was shutting it down, and is gone: there is nothing left to drain.
  if (phase_ == Phase::kDraining) phase_ = Phase::kClosed;
  threads_lost_ = !stopped_ && phase_ == Phase::kOpen;
  t_engine_id = 0;  // the walk may have taken a slot: the next call looks for it again, and starts the threads
}

void EngineCore::PoisonPendingAfterFork() {
  ErrorRecord* error = nullptr;
  std::vector<VarCore*> deleted;
  vars_.ForEachBlock(kVarClass, kVarClass + 1, [&](void* block) {
    auto* var = static_cast<VarCore*>(block);
    if (var->pusher.core != this) return;
    const uint64_t pushed = var->pushed.load(std::memory_order_relaxed);
    // relaxed: this is the only thread. The points are not freed: a lock of theirs may have been held.
    const VarPoints* points = var->completer.points.exchange(nullptr, std::memory_order_relaxed);
    if (var->settled.load(std::memory_order_relaxed) < pushed || (points && devices_->Unretired(*points))) {
      if (!error)
        error = ErrorRecord::NewRoot("", {},
                                     std::make_exception_ptr(ForkedWhilePending(
                                         "a write was pending when the process forked; the parent has it")));
      SetPoison(var, error);  // mutant: fork_without_poison
    }
    var->settled.store(pushed, std::memory_order_relaxed);
    var->tail.store(0, std::memory_order_relaxed);
    var->entered = 0;
    if (var->completer.deleting.load(std::memory_order_relaxed)) deleted.push_back(var);
  });
  if (error) error->Release();
  // Outside the walk: freeing goes through this thread's slot. The engine itself holds a count, so it stays.
  for (VarCore* var : deleted) ReleaseVarCore(var);
}

}  // namespace engine::detail
