// PushGate: what fork and the watchdog close to look at a moment without pushes.
//
// Light side: a push marks its slot, LightFence(), looks at the gate. Heavy side: closes the gate, HeavyFence(), waits
// until no slot is marked. A section holds one registration and no user code, so closing is bounded by pushes in
// progress, never by running ops or by back-pressure.
//
// Fork: closed over it; open in the child.
#pragma once

#include "base/asymmetric_fence.h"
#include "base/fork.h"
#include "core/slots.h"

namespace engine::detail {

class PushGate {
 public:
  // Each Enter needs its Leave.
  void Enter(ThreadSlot& slot) {
    slot.pushing.store(1, std::memory_order_relaxed);
    LightFence();
    if (closed_.load(std::memory_order_acquire) != 0) [[unlikely]]
      WaitUntilOpen(slot);
  }
  // release: the registration is whole. Partner: the acquire load in Close.
  static void Leave(ThreadSlot& slot) { slot.pushing.store(0, std::memory_order_release); }

  // No push is in progress from Close until Open. Nestable; each Close needs its Open.
  void Close(Slots& slots);
  void Open();
  void AfterForkInChild() { Renew(*this); }

 private:
  static void WaitUntilOpen(ThreadSlot& slot);

  std::atomic<uint32_t> closed_{0};  // how often; futex word
};

}  // namespace engine::detail
