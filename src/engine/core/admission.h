// Admission: may this thread push now? The engine's phase, and the bounds on pending ops.
//
// Soft: a push from outside waits while max_pending ops are pending, but only while some op is ready or running:
// what waits for completions of its own pusher must not stop it. Checked when a thread's block cache is empty, so a
// bound may be exceeded by a magazine a thread. Hard: any push beyond throws.
//
// Threads: any; the phase is set by the thread that ends the engine.
// Errors:  UsageError once the engine drains, but for what its running ops push; BackPressureError at the hard bound.
// Fork:    made anew in the child. An engine that another thread was shutting down is closed there.
#pragma once

#include "base/fork.h"
#include "base/sync.h"
#include "sched/thread_slot.h"

namespace engine::detail {

enum class Phase : uint8_t {
  kOpen,      // -> kDraining, by Shutdown
  kDraining,  // -> kClosed, when all has ended; in a fork's child at once
  kClosed
};

class Admission {
 public:
  explicit Admission(EngineCore& core, Phase phase = Phase::kOpen) : core_(core), phase_(phase) {}

  Phase phase(std::memory_order order = std::memory_order_relaxed) const { return phase_.load(order); }
  void Enter(Phase next) {
    phase_.store(next, std::memory_order_release);
  }  // acquire: whose memory goes with the engine
  // Once the engine is not open: what its running ops push while it drains is part of the program; anything else is too late.
  static bool MayPushLate(const EngineCore& core);
  [[noreturn]] static void Refuse();

  bool MakeRoom(ThreadSlot& slot, bool may_wait);  // false: no room, and may not wait
  // relaxed: behind the LightFence of a completer, or of a push.
  bool Waiters() const { return waiters_.load(std::memory_order_relaxed) != 0; }
  void NoteEnd(ThreadSlot& slot, const Worker* worker);  // an op ended while a push waits for room
  void Wake();                                           // pushes that wait look again

  void AfterForkInChild() { Renew(*this, core_, phase() == Phase::kDraining ? Phase::kClosed : phase()); }

 private:
  void WaitForRoom(ThreadSlot& slot);
  bool HostMayProgress();

  EngineCore& core_;
  std::atomic<Phase> phase_;
  std::atomic<uint32_t> waiters_{0};
  std::atomic<uint32_t> changes_{0};  // futex word
};

}  // namespace engine::detail
