// Fork.
//
// Before a fork, every engine closes its gate and takes the locks of what the child keeps: its Vars, slots and chains.
// The locks of the whole process are taken, too (fork.h). Running ops go on. Afterwards the parent drops the locks and
// has lost nothing. The child has one thread. It starts with new pools, slots and op memory; Vars with unfinished
// writes carry ForkedWhilePending; threads are made on first use. What belonged to the threads that are gone is neither
// used nor freed, the ops of the parent's Completions, HeldOps and Runs included: the child may have such handles, and
// they do nothing.
#include "base/fork.h"

#include <pthread.h>

#include "core/core.h"
#include "core/wait_log.h"
#include "engine/spi/cost_model.h"

namespace engine::detail {

namespace {

constinit Mutex g_cores_mu;
std::vector<EngineCore*>& Cores() {
  static auto* cores = new std::vector<EngineCore*>;  // never destroyed: fork may come late
  return *cores;
}
// Without the analysis of locks, because they are taken before the fork and dropped after it. Models come first: a
// model may drop a plan while its lock is taken, and dropping a plan needs the gate.
void Before() NO_THREAD_SAFETY_ANALYSIS {
  Policies();  // makes the static now: in the child, its guard could be locked by a thread that does not exist there
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
  // A plan that was dropped meanwhile ends here, behind all locks: with it end its cost model, what its values hold, and
  // perhaps its engine.
  const std::vector<std::shared_ptr<PlanCore>> dropped = UnlockPlans();
  CostModel::AfterFork(in_child);
}
void InParent() { UnlockAll(false); }
void InChild() {
  g_forks.fetch_add(1, std::memory_order_relaxed);
  LoseTbb();
  RegisterMembarrier();
  UnlockAll(true);
}

// Registered when the library is loaded, so that a fork beside the construction of the first engine waits for that.
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

// Called in the child for each op inside whose body the fork was: when that body ends, the op must not touch its Vars.
static void Orphan(OpRecord* op) {
  if (const auto orphan = KindOf(op).orphan) {
    orphan(op);
  } else {
    op->extra.flags |= kForgotten;
  }
}

// Each owner makes itself anew. The memory of ops comes before the slots, which have caches of it.
void EngineCore::AfterForkInChild() NO_THREAD_SAFETY_ANALYSIS {
  vars_.UnlockForFork();
  for (BodyFrame* f = t_frame; f; f = f->outer)
    if (f->core == this) Orphan(f->op);
  Renew(ops_, BlockKind::kOps, options_.max_pending);
  Renew(completions_, BlockKind::kCompletions, size_t{1} << 10);
  Renew(errors_);
  tracing_ = false;
  Renew(trace_mu_);
  WaitLog::AfterForkInChild();
  slots_.AfterForkInChild();
  gate_.AfterForkInChild();
  admission_.AfterForkInChild();
  epochs_.AfterForkInChild();
  caller_pool_.AfterForkInChild(options_.workers == 0);
  chains_.AfterForkInChild(vars_);
  watchdog_.AfterForkInChild();
  Renew(change_mu_);  // mutant: shutdown_lock_of_the_parent
  threads_.AfterForkInChild();
  threads_lost_ = false;
  const std::vector<VarCore*> deleted = PoisonPendingAfterFork();
  // Left as it is, because its locks and threads are the parent's, and because it keeps the devices, which must not be
  // destroyed here.
  (void)devices_.release();
  const bool had_devices = has_devices_.exchange(false);  // mutant: devices_found_in_a_child
  devices_ = MakeDevices(*this, options_, had_devices);
  pools_.AfterForkInChild();
  // After the walk, because freeing a Var takes the arena's lock. And now that the devices are the child's, because they
  // are told of it, and locks of the parent's may be taken for ever.
  for (VarCore* var : deleted) ReleaseVarCore(var);
  threads_lost_ = !pools_.stopped() && admission_.phase() == Phase::kOpen;
  // The walk above may have given this thread a slot; the next call must look again, to start the threads.
  t_engine_id = 0;
}

// Of a Var, in the child. The record is left as it is: its exception may be the program's, whose destructor must not run under
// the locks of a fork.
void EngineCore::ForgetPoisonAfterFork(VarCore* var) {
  if (var->completer.poison.exchange(nullptr, std::memory_order_relaxed))
    poisoned_.fetch_sub(1, std::memory_order_relaxed);
}

std::vector<VarCore*> EngineCore::PoisonPendingAfterFork() {
  ErrorRecord* error = nullptr;
  std::vector<VarCore*> deleted;
  vars_.ForEachBlock(kVarClass, kVarClass + 1, [&](void* block, uint32_t) {
    auto* var = static_cast<VarCore*>(block);
    if (var->pusher.core != this) return;
    const uint64_t pushed = var->pushed.load(std::memory_order_relaxed);
    // relaxed: the child has no other thread. The points are not freed, because their lock may be taken for ever.
    const VarPoints* points = var->completer.points.exchange(nullptr, std::memory_order_relaxed);
    const bool unretired = points && devices_->Unretired(*points);  // mutant: device_work_lost_by_a_fork
    if (var->settled.load(std::memory_order_relaxed) < pushed || unretired) {
      if (!error)
        error = ErrorRecord::NewRoot("", {},
                                     std::make_exception_ptr(ForkedWhilePending(
                                         "a write was pending when the process forked; the parent has it")));
      ForgetPoisonAfterFork(var);
      SetPoison(var, error);  // mutant: fork_without_poison
    }
    var->settled.store(pushed, std::memory_order_relaxed);
    var->tail.store(0, std::memory_order_relaxed);
    var->entered = 0;
    // The engine's count of a Var whose deletion is over is gone; handles may keep the Var.
    if (var->completer.deleting.load(std::memory_order_relaxed) &&
        var->delete_op.extra.state.load(std::memory_order_relaxed) != OpState::kFree) {
      ForgetPoisonAfterFork(var);
      deleted.push_back(var);
    }
  });
  if (error) error->Release();
  return deleted;
}

}  // namespace engine::detail
