// PushGate: what fork and the watchdog close to look at a moment without pushes.
//
// Light side: a push marks its slot, LightFence(), looks at the gate. Heavy side: closes the gate, HeavyFence(), waits
// until no slot is marked. A section holds one registration and no user code, so closing is bounded by pushes in
// progress, never by running ops or by back-pressure.
#pragma once

#include "core/core.h"

namespace engine::detail {

// The gate also knows who pushes: while one slot alone has ever pushed, its registrations are exclusive. The first push
// of a second slot ends that for good, with the gate closed, so that no exclusive registration is in progress.
class PushGate {
 public:
  // Returns whether the registration is exclusive. Each Enter needs its Leave.
  [[nodiscard]] static bool Enter(EngineCore& core, ThreadSlot& slot) {
    slot.pushing.store(1, std::memory_order_relaxed);
    LightFence();
    if (core.gate_.load(std::memory_order_acquire) != 0) [[unlikely]]
      WaitUntilOpen(core, slot);
    ThreadSlot* sole = core.sole_pusher_.load(std::memory_order_relaxed);
    if (sole == &slot) [[likely]]
      return true;
    return sole != kManyPushers && NewPusher(core, slot) == &slot;
  }
  // release: the registration is whole. Partner: the acquire load in Close.
  static void Leave(ThreadSlot& slot) { slot.pushing.store(0, std::memory_order_release); }

  // No push is in progress from Close until Open. Nestable; each Close needs its Open.
  static void Close(EngineCore& core);
  static void Open(EngineCore& core);

 private:
  static void WaitUntilOpen(EngineCore& core, ThreadSlot& slot);
  static ThreadSlot* NewPusher(EngineCore& core, ThreadSlot& slot);
};

}  // namespace engine::detail
