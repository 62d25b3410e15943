// Stop and start, one after another with each other and with a shutdown.
#include "core/core.h"
#include "core/hook_frame.h"

namespace engine::detail {

bool EngineCore::OnOwnThread() const {
  for (const BodyFrame* f = t_frame; f; f = f->outer)
    if (f->core == this) return true;
  return threads_.OwnThis() || HookFrame::Inside(this);
}

void EngineCore::RefuseInside(const char* call) const {
  if (OnOwnThread())
    throw UsageError(std::string(call) + " inside an op or a hook of the engine would wait for itself");
}

// Waits for the roles to come back, not for threads whose op waits for something that only Start will run.
void EngineCore::Stop() {
  RefuseInside("Stop");
  const KeepAlive alive(this);
  MutexLock changing(change_mu_);
  if (admission_.phase() != Phase::kOpen) return;
  Slot();  // in the child of a fork the threads are made on first use: not behind our back
  if (pools_.Stop()) JoinRoles();
}

void EngineCore::JoinRoles() {
  threads_.AwaitRoles();
  admission_.Wake();
  threads_.JoinIdle();
}

void EngineCore::Start() {
  RefuseInside("Start");
  const KeepAlive alive(this);
  MutexLock changing(change_mu_);
  if (admission_.phase() == Phase::kOpen) pools_.Start();
}

}  // namespace engine::detail
