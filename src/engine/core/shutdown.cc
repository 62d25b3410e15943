// The end of an engine: drain, join the threads, report errors; and the end of Vars, which may outlive the engine.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/make_thread.h"
#include "base/per_thread.h"
#include "core/core.h"
#include "core/hook_frame.h"

namespace engine::detail {

// Waits until every op has settled, also the ops that running ops push meanwhile. Those belong to later epochs, so one
// WaitAll may not cover them. Nobody else may push any more: once nothing is pending, nothing will be.
bool EngineCore::SettleAll(Clock::time_point deadline) {
  do {
    if (!WaitAll(deadline, false)) return false;
    if (slots_.Pending() == 0) return true;
  } while (Clock::now() < deadline);
  return false;
}

// Ops whose Completion does not come within drain_timeout fail with ShutdownError; a device that is not done by then is
// lost. Each op that fails releases others, which may have to fail next, so this goes on as long as the number of
// pending ops gets smaller from time to time. It does not where ops push other ops for ever; then the shutdown gives
// up.
bool EngineCore::Drain() {
  if (SettleAll(After(options_.drain_timeout))) return true;
  const auto cause = MakeCause<ShutdownError>("the engine was shut down before the Completion was called");
  // At least a second, so that ops that have not started yet may start, however short the timeout is. It is counted in looks
  // and not by the clock: while the machine keeps the processor from all of this process, nothing can end.
  constexpr auto kLook = std::chrono::milliseconds(20);
  const auto patience = std::max<std::chrono::milliseconds>(options_.drain_timeout, std::chrono::seconds(1)) / kLook;
  uint64_t fewest = slots_.Pending();
  for (int64_t looks = 0; looks < patience; ++looks) {
    ReleaseAllHeld();               // each time: running ops may have pushed held ops meanwhile
    FailPendingCompletions(cause);  // each time: released ops may wait for Completions, too
    devices_->LoseBusy();
    if (SettleAll(Clock::now() + kLook)) return true;
    if (const uint64_t left = slots_.Pending(); left < fewest) {
      fewest = left;
      looks = 0;
    }
  }
  return false;
}

void EngineCore::Shutdown() {
  RefuseInside("Shutdown");
  const KeepAlive alive(this);
  MutexLock changing(change_mu_);
  if (admission_.phase() != Phase::kOpen) return;
  pools_.Start();  // may throw; nothing has changed then
  admission_.Enter(Phase::kDraining);
  gate_.Close(slots_);  // pushes in progress are registered then, and later ones see the phase
  gate_.Open();
  ReleaseAllHeld();
  chains_.ReleaseAll();
  bool drained = false;
  try {
    drained = Drain();
  } catch (const std::bad_alloc&) {  // what is left cannot even be failed
  }
  if (!drained) return GiveUp("ops did not end, and got no fewer for as long as drain_timeout");
  admission_.Enter(Phase::kClosed);
  JoinEverything();
  ReportUnseen();
}

// Ends the shutdown although ops are left, for example because a body never returns. The engine's memory is not freed,
// its threads are detached, ops that have not started are skipped when their turn comes, and no hook but those of
// workers is called any more. Needs no memory, but for the report.
void EngineCore::GiveUp(const char* why) noexcept {
  Retain();
  gave_up_.store(true, std::memory_order_relaxed);
  // From now on all ops go through ExecuteWatched, which asks BeforeRun. release: publishes the flag. Partner: none is
  // needed but the one that the queues have: an op that starts at this moment may still run.
  poisoned_.fetch_add(1, std::memory_order_release);
  watchdog_.Stop();
  threads_.DetachAll();
  try {
    auto cause = std::make_exception_ptr(ShutdownError(why + ("; pending: " + std::to_string(slots_.Pending()))));
    Unobserved(OpError("shutdown gave up: " + DescribeException(cause), "", {}, {}, cause));
    ReportUnseen();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "engine: shutdown gave up: %s; there is no memory to report more\n", why);
  }
}

void EngineCore::ShutdownOrGiveUp() noexcept {
  const auto give_up = [this](const char* why) {
    MutexLock changing(change_mu_);
    admission_.Enter(Phase::kDraining);
    GiveUp(why);
  };
  try {
    Shutdown();
  } catch (const Error& e) {  // the engine was stopped, and no threads can be made to run what is left
    give_up(e.what());
  } catch (const std::bad_alloc&) {
    give_up("ops are left, and there is no memory for the threads that are to run them");
  }
}

namespace {

// The engines that this thread has destroyed inside one of their ops: the op may be running inside a push, which goes on to
// use the engine when the shutdown is over elsewhere. Their memory goes with the thread.
struct DestroyedInside {
  std::vector<EngineCore*> cores;
  ~DestroyedInside() {
    for (EngineCore* core : cores) core->Release();
  }
};

}  // namespace

// For a destructor inside an op or a hook of the engine, which can neither throw nor wait.
void EngineCore::ShutdownElsewhere() noexcept {
  if (!threads_.OwnThis()) {
    Retain();
    try {
      PerThread<DestroyedInside>::Get().cores.push_back(this);
    } catch (const std::bad_alloc&) {  // its memory stays until the process ends
    }
  }
  auto cause = std::make_exception_ptr(
      UsageError("an engine was destroyed on one of its own threads; another thread finishes its shutdown"));
  Unobserved(OpError(DescribeException(cause), "", {}, {}, cause));
  Retain();
  try {
    MakeThread("a thread that finishes a shutdown", [this] {
      ShutdownOrGiveUp();
      Release();
    }).detach();
  } catch (const Error& e) {  // no thread can shut the engine down: it stays until the process ends
    std::fprintf(stderr, "engine: %s\n", e.what());
  }
}

void EngineCore::JoinEverything() {
  watchdog_.Stop();
  pools_.Stop();  // first: a pool that a late push makes gets no threads then
  JoinRoles();
  threads_.JoinAll();
  devices_->Close();
}

// Inside on_unobserved a further report goes to stderr, so that the hook need not be re-entrant.
void EngineCore::Unobserved(const OpError& error) {
  constexpr auto kKind = HookFrame::Kind::kUnobserved;
  if (options_.on_unobserved && !HookFrame::Inside(this, kKind)) {
    RunHook(this, kKind, "on_unobserved", [&] { options_.on_unobserved(error); });
  } else {
    std::fprintf(stderr, "engine: an error that nobody waited for: %s\n", error.what());
  }
}

void EngineCore::ReportUnseen() {
  while (ErrorRecord* error = errors_.TakeUnseen()) {
    try {
      Unobserved(error->Show());
    } catch (const std::bad_alloc&) {
      std::fprintf(stderr, "engine: an error of op '%s' that nobody waited for; there is no memory to report more\n",
                   error->op);
    }
    error->Release();
  }
}

void EngineCore::Release() {
  // acq_rel: the last holder sees what the others did to the engine's memory.
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void EngineCore::ReleaseVarCore(VarCore* var) {
  if (var->completer.refs.fetch_sub(1, std::memory_order_acq_rel) == 1) FreeVar(var);
}

void EngineCore::FreeVar(VarCore* var) {
  if (ErrorRecord* poison = var->completer.poison.load(std::memory_order_relaxed)) {
    poison->Release();
    poisoned_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (VarPoints* points = var->completer.points.load(std::memory_order_acquire)) FreePoints(points);
  devices_->ForgetVar(var);
  var->pusher.core = nullptr;  // says that the block is free, for the walk over Vars in a fork's child
  {
    const EndSlot slot(slots_);
    (*slot).var_cache.Return(kVarClass, var);
  }
  Release();
}

void RetainVar(VarCore* var) noexcept { var->completer.refs.fetch_add(1, std::memory_order_relaxed); }

// The last handle registers the deletion before it drops its count, because without a count of ours the Var may be
// gone. A count of 2 means the engine's and ours: nobody else has a handle to copy or to drop then.
void ReleaseVar(VarCore* var) noexcept {
  EngineCore* const core = var->pusher.core;
  uint32_t refs = var->completer.refs.load(std::memory_order_acquire);
  while (refs > 2) {
    // acq_rel: whoever drops the last handle sees what the others did.
    if (var->completer.refs.compare_exchange_weak(refs, refs - 1, std::memory_order_acq_rel)) return;
  }
  if (refs == 2 && var->completer.deleting.exchange(1, std::memory_order_acq_rel) == 0) core->DeleteVar(var);
  if (var->completer.refs.fetch_sub(1, std::memory_order_acq_rel) == 1) core->FreeVar(var);
}

uint64_t VarVersion(const VarCore* var) noexcept { return var->settled.load(std::memory_order_acquire); }
const char* VarName(const VarCore* var) noexcept { return var->pusher.name; }
void* VarTag(const VarCore* var) noexcept { return var->completer.tag; }

}  // namespace engine::detail
