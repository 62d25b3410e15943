// PushGate: what fork and the watchdog close to look at a moment without pushes.
//
// Light side: a push marks its slot, LightFence(), looks at the gate. Heavy side: closes the gate, HeavyFence(), waits
// until no slot is marked. A section holds one registration and no user code, so closing is bounded by pushes in
// progress, never by running ops or by back-pressure.
#pragma once

#include "core.h"

namespace engine::detail {

class PushGate {
 public:
  PushGate(EngineCore& core, ThreadSlot& slot) : slot_(slot) {
    slot_.pushing.store(1, std::memory_order_relaxed);
    LightFence();
    if (core.gate_.load(std::memory_order_acquire) != 0) [[unlikely]] WaitUntilOpen(core);
  }
  // release: the registration is whole. Partner: the acquire load in Close.
  ~PushGate() { slot_.pushing.store(0, std::memory_order_release); }
  PushGate(const PushGate&) = delete;

  // No push is in progress from Close until Open. Nestable; each Close needs its Open.
  static void Close(EngineCore& core);
  static void Open(EngineCore& core);

 private:
  void WaitUntilOpen(EngineCore& core);
  ThreadSlot& slot_;
};

}  // namespace engine::detail
