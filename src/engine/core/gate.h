// PushGate: what fork and the watchdog close to look at a moment without pushes.
//
// Light side: a push marks its slot, LightFence(), looks at the gate. Heavy side: closes the gate, HeavyFence(), waits
// until no slot is marked. A section holds one registration and no user code, so closing is bounded by pushes in
// progress, never by running ops or by back-pressure.
#pragma once

#include "core/core.h"

namespace engine::detail {

class PushGate {
 public:
  // Each Enter needs its Leave.
  static void Enter(EngineCore& core, ThreadSlot& slot) {
    slot.pushing.store(1, std::memory_order_relaxed);
    LightFence();
    if (core.gate_.load(std::memory_order_acquire) != 0) [[unlikely]]
      WaitUntilOpen(core, slot);
  }
  // release: the registration is whole. Partner: the acquire load in Close.
  static void Leave(ThreadSlot& slot) { slot.pushing.store(0, std::memory_order_release); }

  // No push is in progress from Close until Open. Nestable; each Close needs its Open.
  static void Close(EngineCore& core);
  static void Open(EngineCore& core);

 private:
  static void WaitUntilOpen(EngineCore& core, ThreadSlot& slot);
};

}  // namespace engine::detail
