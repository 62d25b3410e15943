// PushGate: fork, shutdown and DescribePending close it, so that no push is being registered for a moment.
//
// Frequent side: a push marks its slot, calls LightFence(), and looks at the gate. Rare side: closes the gate, calls
// HeavyFence(), and waits until no slot is marked. One of the two sees the other. Between Enter and Leave there is one
// registration and no user code, so Close waits for some stores of other threads, never for running ops or for room.
//
// Threads: any.
// Fork:    closed during a fork; open in the child.
#pragma once

#include "base/asymmetric_fence.h"
#include "base/fork.h"
#include "core/slots.h"

namespace engine::detail {

class PushGate {
 public:
  // Waits while the gate is closed. Each Enter needs its Leave.
  void Enter(ThreadSlot& slot) {
    slot.pushing.store(1, std::memory_order_relaxed);
    LightFence();
    if (closed_.load(std::memory_order_acquire) != 0) [[unlikely]]
      WaitUntilOpen(slot);
  }
  // release: publishes the registration. Partner: the acquire load in Close.
  static void Leave(ThreadSlot& slot) { slot.pushing.store(0, std::memory_order_release); }

  // Between Close and Open no push is being registered. Several threads may close it; each Close needs its Open.
  void Close(Slots& slots);
  void Open();
  void AfterForkInChild() { Renew(*this); }

 private:
  static void WaitUntilOpen(ThreadSlot& slot);

  std::atomic<uint32_t> closed_{0};  // how many have closed it; futex word
};

}  // namespace engine::detail
