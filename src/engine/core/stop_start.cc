// Stop and Start. change_mu_ puts them and a shutdown one after another.
#include "core/core.h"
#include "core/hook_frame.h"

namespace engine::detail {

bool EngineCore::OnOwnThread() const {
  for (const BodyFrame* f = t_frame; f; f = f->outer)
    if (f->core == this) return true;
  return threads_.OwnThis() || HookFrame::Inside(this) || devices_->OnThisThread();
}

void EngineCore::RefuseInside(const char* call) const {
  if (OnOwnThread())
    throw UsageError(std::string(call) +
                     " inside an op or a hook of the engine would wait for itself: call it on another thread");
}

// Waits until no thread plays a role. It does not wait for threads whose op waits for something that only Start will
// run: they have lent their roles.
void EngineCore::Stop() {
  RefuseInside("Stop");
  const KeepAlive alive(this);
  MutexLock changing(change_mu_);
  if (admission_.phase() != Phase::kOpen) return;
  Slot();  // in a fork's child this makes the threads, which the first use would make otherwise, after the Stop
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
