#include "core/lent_roles.h"

#include "core/core.h"

namespace engine::detail {

LentRoles::LentRoles() {
  for (const BodyFrame* f = t_frame; f; f = f->outer) PauseOwnRun(*f->core);
}

LentRoles::~LentRoles() {
  for (BodyFrame* f = t_in_piece ? nullptr : t_frame; f; f = f->outer)
    if (std::exchange(f->paused, false) && Forks() == forks_) EngineCore::BeginOwnRun(f->core->Slot());
  while (EngineThread* driver = drivers_) {
    drivers_ = driver->next_lent;
    Threads::EndDriving(driver);
  }
}

void LentRoles::Lend(EngineCore& awaited) {
  LendOf(awaited);
  if (t_in_piece) return;  // the other roles belong to the op's thread; only that thread may lend them
  for (const BodyFrame* f = t_frame; f; f = f->outer) {
    bool seen = f->core == &awaited;
    for (const BodyFrame* inner = t_frame; inner != f; inner = inner->outer) seen |= inner->core == f->core;
    if (seen) continue;
    try {
      LendOf(*f->core);
    } catch (const Error&) {
    } catch (const std::bad_alloc&) {
    }
  }
}

void LentRoles::LendOf(EngineCore& core) {
  bool drives = false, ours = false;
  for (const BodyFrame* f = t_frame; f; f = f->outer) {
    ours |= f->core == &core;
    drives |= f->core == &core && f->op->extra.pool == kCallerPool;
  }
  drives |= !ours && core.caller_pool().used();
  if (drives) Keep(core.threads().StartDriver());
  LendWorker(core);
  PauseOwnRun(core);
}

void LentRoles::PauseOwnRun(EngineCore& core) {
  if (t_in_piece) return;  // the frames are the op's thread's
  ThreadSlot* const slot = core.slots().MineOrNull();
  if (!slot || slot->own_runs.Read() % 2 == 0) return;
  core.EndOwnRun(*slot);
  BodyFrame* frame = t_frame;
  while (frame && frame->core != &core) frame = frame->outer;
  if (frame) frame->paused = true;
}

void LentRoles::LendWorker(EngineCore& core) {
  core.RefuseWaitInHook();
  for (const BodyFrame* f = t_frame; f; f = f->outer)
    if (f->core == &core && (f->op->extra.flags & kInChain)) core.chains().Leave(f->op);
  Worker* const role = core.Slot().worker;
  if (!role) return;
  Slots& slots = core.slots();
  ThreadSlot* const own = slots.Take();
  EngineThread* player;
  try {
    player = core.threads().TakeStandIn();
  } catch (...) {
    slots.Return(own);
    throw;
  }
  slots.Remember(own);
  t_role_lent = true;
  EngineCore::BeginOwnRun(*own);
  core.threads().PlayOn(*player, *role);
}

bool LentRoles::AddDriver(EngineCore& core) {
  if (!MayAddDriver(core)) return false;
  try {
    Keep(core.threads().StartDriver());
    return true;
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
  none_to_be_had_ = true;
  // The wake that brought us here was to have an op run. Another thread can.
  core.caller_pool().PassOn();  // mutant: refused_driver_keeps_its_wake
  return false;
}

bool LentRoles::MayAddDriver(const EngineCore& core) const {
  for (const EngineThread* driver = drivers_; driver; driver = driver->next_lent)
    if (driver->core == &core) return false;
  return !none_to_be_had_;
}

}  // namespace engine::detail
