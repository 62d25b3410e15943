// PushGate: fork, shutdown and DescribePending close it, so that no push is being registered for a moment.
//
// Frequent side: a push marks its slot, calls LightFence(), and looks at the gate. Rare side: closes the gate, calls
// HeavyFence(), and waits until no slot is marked. One of the two sees the other. Between Enter and Leave there is one
// registration and no user code, so Close waits for some stores of other threads, never for running ops or for room.
//
// While a trace is on, every registration takes the way of a closed gate, which records it. So a push pays nothing for
// traces while none is on.
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
  // Waits while the gate is closed. Each Enter needs its Leave. `op` is the one that will be registered; null: none, a tail
  // is only looked at.
  void Enter(ThreadSlot& slot, OpRecord* op) {
    slot.pushing.store(1, std::memory_order_relaxed);
    LightFence();
    if (closed_.load(std::memory_order_acquire) != 0) [[unlikely]]
      EnterSlowly(slot, op);
  }
  // release: publishes the registration. Partner: the acquire load in Close.
  static void Leave(ThreadSlot& slot) { slot.pushing.store(0, std::memory_order_release); }

  // Between Close and Open no push is being registered. Several threads may close it; each Close needs its Open.
  void Close(Slots& slots);
  void Open();
  void Watch(bool on);  // a trace is on: calls EngineCore::TracePush for each registration
  void AfterForkInChild() { Renew(*this); }

 private:
  static void EnterSlowly(ThreadSlot& slot, OpRecord* op);

  static constexpr uint32_t kWatched = 1u << 31;
  std::atomic<uint32_t> closed_{0};  // how many have closed it, and kWatched; futex word
};

}  // namespace engine::detail
