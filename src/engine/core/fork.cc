// Fork.
//
// Before a fork every engine closes its gate and takes the locks of what the child keeps: the Vars and the plans; then come
// those of the whole process (fork.h). Running ops go on. The parent opens the gate and has lost nothing. The child has one
// thread: it starts with new pools, slots and op memory; Vars with unfinished writes carry ForkedWhilePending; threads are
// made on first use. What belonged to the threads that are gone is left where it is: also the ops behind the Completions,
// HeldOps and Runs that the child's thread may hold, which are inert there.
#include "base/fork.h"

#include <pthread.h>

#include <algorithm>

#include "core/core.h"
#include "engine/spi/cost_model.h"

namespace engine::detail {

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
  gate_.Close(slots_);
  vars_.LockForFork();
  slots_.BeforeFork();
  chains_.BeforeFork();
}

void EngineCore::AfterForkInParent() NO_THREAD_SAFETY_ANALYSIS {
  chains_.AfterForkInParent();
  slots_.AfterForkInParent();
  vars_.UnlockForFork();
  gate_.Open();
}

// A fork inside an op: the child's end of it touches no Var. A run's other threads are gone: it never ends.
static void Orphan(OpRecord* op) {
  if (const auto orphan = KindOf(op).orphan) {
    orphan(op);
  } else {
    op->extra.flags |= kForgotten;
  }
}

// Each owner makes itself anew. The memory of the ops goes first, which slots have caches of.
void EngineCore::AfterForkInChild() NO_THREAD_SAFETY_ANALYSIS {
  vars_.UnlockForFork();
  for (BodyFrame* f = t_frame; f; f = f->outer)
    if (f->core == this) Orphan(f->op);
  Renew(ops_, BlockKind::kOps, options_.max_pending);
  Renew(completions_, BlockKind::kCompletions, size_t{1} << 10);
  Renew(errors_);
  tracing_ = false;
  slots_.AfterForkInChild();
  gate_.AfterForkInChild();
  admission_.AfterForkInChild();
  epochs_.AfterForkInChild();
  caller_pool_.AfterForkInChild(options_.workers == 0);
  chains_.AfterForkInChild(vars_);
  watchdog_.AfterForkInChild();
  Renew(change_mu_);
  threads_.AfterForkInChild();
  threads_lost_ = false;
  PoisonPendingAfterFork();
  // Its locks and threads are the parent's. It keeps the devices, which must not be destroyed here.
  (void)devices_.release();
  devices_ = MakeDevices(*this, options_, has_devices_.exchange(false));
  pools_.AfterForkInChild();
  threads_lost_ = !pools_.stopped() && admission_.phase() == Phase::kOpen;
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
