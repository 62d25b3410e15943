// Stop and start, one after another with each other and with a shutdown.
#include "core/engine_thread.h"

namespace engine::detail {

void EngineCore::RefuseInside(const char* call) const {
  if (OnOwnThread())
    throw UsageError(std::string(call) + " inside an op or a hook of the engine would wait for itself");
}

// Waits for the roles to come back, not for threads whose op waits for something that only Start will run.
void EngineCore::Stop() {
  RefuseInside("Stop");
  const Hold hold(this);
  MutexLock changing(change_mu_);
  if (admission_.phase() != Phase::kOpen) return;
  Slot();  // in the child of a fork the threads are made on first use: not behind our back
  {
    MutexLock lock(pools_mu_);
    if (stopped_) return;
    stopped_ = true;
    ForEachPool([](class Pool& p) { p.StopWorkers(); });
  }
  JoinRoles();
}

void EngineCore::JoinRoles() {
  for (uint32_t n; (n = playing_.load(std::memory_order_acquire)) != 0;) FutexWait(playing_, n);
  admission_.Wake();
  JoinIdle();
}

void EngineCore::Start() {
  RefuseInside("Start");
  const Hold hold(this);
  MutexLock changing(change_mu_);
  if (admission_.phase() == Phase::kOpen) StartStopped();
}

void EngineCore::StartStopped() {
  MutexLock lock(pools_mu_);
  if (!stopped_) return;
  StartPools();
  stopped_ = false;
}

}  // namespace engine::detail
