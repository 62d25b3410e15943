// The end of an engine: drain, join, report. And of what outlives it.
#include <algorithm>
#include <cstdio>

#include "base/make_thread.h"
#include "core/core.h"
#include "core/hook_frame.h"

namespace engine::detail {

// True when every op has settled, those too that ops push while we wait: each of these falls into a later epoch than
// the op that pushed it, so one WaitAll does not cover them. Nobody else pushes any more, so no pending op stays none.
bool EngineCore::SettleAll(Clock::time_point deadline) {
  do {
    if (!WaitAll(deadline, false)) return false;
    if (slots_.Pending() == 0) return true;
  } while (Clock::now() < deadline);
  return false;
}

// Completions that do not come within drain_timeout fail with ShutdownError; a device that is not done by then is lost. Each
// that fails releases others, which may fail next: so this goes on as long as fewer ops are left from time to time. (Ops
// that push their like for ever end that.)
bool EngineCore::Drain() {
  if (SettleAll(After(options_.drain_timeout))) return true;
  const auto cause = MakeCause<ShutdownError>("the engine was shut down before the Completion was called");
  // Long enough for what has not even started to get there, however short the timeout.
  const auto patience =
      Timeout(std::max<std::chrono::milliseconds>(options_.drain_timeout, std::chrono::seconds(1))).nanoseconds();
  uint64_t fewest = slots_.Pending();
  auto since = Clock::now();
  do {
    ReleaseAllHeld();               // again: what running ops held meanwhile
    FailPendingCompletions(cause);  // again: what they release may wait for completions itself
    devices_->LoseBusy();
    if (SettleAll(Clock::now() + std::chrono::milliseconds(20))) return true;
    if (const uint64_t left = slots_.Pending(); left < fewest) {
      fewest = left;
      since = Clock::now();
    }
  } while (Clock::now() - since < patience);
  return false;
}

void EngineCore::Shutdown() {
  RefuseInside("Shutdown");
  const KeepAlive alive(this);
  MutexLock changing(change_mu_);
  if (admission_.phase() != Phase::kOpen) return;
  pools_.Start();  // throws, and then nothing has changed
  admission_.Enter(Phase::kDraining);
  gate_.Close(slots_);  // pushes in progress are registered now, later ones see the phase
  gate_.Open();
  ReleaseAllHeld();
  chains_.ReleaseAll();
  if (!Drain())
    return GiveUp(std::to_string(slots_.Pending()) + " ops did not end, and got no fewer for as long as drain_timeout");
  admission_.Enter(Phase::kClosed);
  JoinEverything();
  ReportUnseen();
}

// A body that never returns, say: its thread cannot be taken away. The engine's memory stays for it, and the process may
// end. No hook is called any more but by a worker.
void EngineCore::GiveUp(const std::string& why) {
  Retain();
  watchdog_.Stop();
  threads_.DetachAll();
  auto cause = std::make_exception_ptr(ShutdownError(why));
  Unobserved(OpError("shutdown gave up: " + DescribeException(cause), "", {}, {}, cause));
  ReportUnseen();
}

void EngineCore::ShutdownOrGiveUp() noexcept {
  try {
    Shutdown();
  } catch (const Error& e) {  // stopped, and cannot be started to run what is left
    MutexLock changing(change_mu_);
    admission_.Enter(Phase::kDraining);
    GiveUp(e.what());
  }
}

// For a destructor inside an op or a hook of ours: it cannot throw, and cannot wait.
void EngineCore::ShutdownElsewhere() noexcept {
  auto cause = std::make_exception_ptr(
      UsageError("an engine was destroyed on one of its own threads; another thread finishes its shutdown"));
  Unobserved(OpError(DescribeException(cause), "", {}, {}, cause));
  Retain();
  try {
    MakeThread("a thread that finishes a shutdown", [this] {
      ShutdownOrGiveUp();
      Release();
    }).detach();
  } catch (const Error& e) {  // nobody is left to shut it down: it goes with the process
    std::fprintf(stderr, "engine: %s\n", e.what());
  }
}

void EngineCore::JoinEverything() {
  watchdog_.Stop();
  pools_.Stop();  // a pool that a refused push still makes gets no threads
  JoinRoles();
  threads_.JoinAll();
  devices_->Close();
}

// Inside on_unobserved a further report goes to stderr: the hook need not be re-entrant.
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
    Unobserved(error->Show());
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
  var->pusher.core = nullptr;  // what the fork child's walk over Vars looks at
  {
    const EndSlot slot(slots_);
    (*slot).var_cache.Return(kVarClass, var);
  }
  Release();
}

void RetainVar(VarCore* var) noexcept { var->completer.refs.fetch_add(1, std::memory_order_relaxed); }

// The last handle starts the deletion while it still counts: once our count is gone the Var may be gone, too, or be
// another one already. A count of 2 is the engine's and ours, so nobody else can copy or drop a handle then.
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

}  // namespace engine::detail
