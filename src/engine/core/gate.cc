#include "core/gate.h"

#include <sched.h>

#include "core/core.h"

namespace engine::detail {

void PushGate::WaitUntilOpen(ThreadSlot& slot) {
  std::atomic<uint32_t>& closed = slot.core->gate().closed_;
  for (;;) {
    slot.pushing.store(0, std::memory_order_release);
    for (uint32_t n; (n = closed.load(std::memory_order_acquire)) != 0;) FutexWait(closed, n);
    slot.pushing.store(1, std::memory_order_relaxed);
    LightFence();
    if (closed.load(std::memory_order_acquire) == 0) return;
  }
}

void PushGate::Close(Slots& slots) {
  closed_.fetch_add(1, std::memory_order_seq_cst);
  HeavyFence();
  slots.ForEach([](ThreadSlot& slot) {
    // acquire: sees the registration that has just ended. Partner: the release store in Leave.
    while (slot.pushing.load(std::memory_order_acquire) != 0) sched_yield();
  });
}

void PushGate::Open() {
  closed_.fetch_sub(1, std::memory_order_release);
  FutexWake(closed_, kEveryone);
}

}  // namespace engine::detail
