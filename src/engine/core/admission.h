// Admission: decides whether a thread may push now, by the engine's phase and the bounds on pending ops.
//
// Soft bound (max_pending): a push from outside waits while that many ops are pending, as long as some op is ready or
// running. It does not wait for ops that wait themselves, because they may wait for this very pusher. The bound is
// checked when a thread's block cache is empty, so each thread may exceed it by one magazine.
// Hard bound (hard_max_pending): a push beyond it throws.
//
// Threads: any; the thread that ends the engine sets the phase.
// Errors:  UsageError once the engine drains, except for pushes of its running ops; BackPressureError at the hard
//          bound.
// Fork:    made anew in the child. An engine that another thread was shutting down is closed there.
#pragma once

#include <string>

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
  // release: publishes the end of what came before. Partner: the acquire in DropCompletion.
  void Enter(Phase next) { phase_.store(next, std::memory_order_release); }
  // For an engine that is not open: true for a push by a running op while the engine drains.
  static bool MayPushLate(const EngineCore& core);
  [[noreturn]] static void Refuse(const std::string& what);

  bool MakeRoom(ThreadSlot& slot, bool may_wait);  // false: there is no room, and the push may not wait
  // relaxed: read behind a LightFence of a completer or a push. Partner: the HeavyFence in WaitForRoom.
  bool Waiters() const { return waiters_.load(std::memory_order_relaxed) != 0; }
  void NoteEnd(ThreadSlot& slot, const Worker* worker);  // an op ended while a push waits for room
  void Wake();                                           // has the pushes that wait look again

  void AfterForkInChild() { Renew(*this, core_, phase() == Phase::kDraining ? Phase::kClosed : phase()); }

 private:
  class Announced;
  void WaitForRoom(ThreadSlot& slot);
  bool HostMayProgress();
  // Whether an op runs that no worker's state tells of, or is queued for the caller pool. Its end then wakes the pushes that wait.
  bool OthersRun();

  EngineCore& core_;
  std::atomic<Phase> phase_;
  std::atomic<uint32_t> waiters_{0};
  std::atomic<uint32_t> changes_{0};  // futex word
};

}  // namespace engine::detail
