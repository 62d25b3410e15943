#include "core/gate.h"

#include <sched.h>

#include "core/core.h"

namespace engine::detail {

void PushGate::EnterSlowly(ThreadSlot& slot, OpRecord* op) {
  std::atomic<uint32_t>& closed = slot.core->gate().closed_;
  uint32_t n;
  while (((n = closed.load(std::memory_order_acquire)) & ~kWatched) != 0) {
    slot.pushing.store(0, std::memory_order_release);
    for (; (n & ~kWatched) != 0; n = closed.load(std::memory_order_acquire)) FutexWait(closed, n);
    slot.pushing.store(1, std::memory_order_relaxed);
    LightFence();
  }
  if ((n & kWatched) && op) slot.core->TracePush(op);
}

// relaxed: a push that overlaps the start or the end of a trace may be in it or not.
void PushGate::Watch(bool on) {
  if (on) {
    closed_.fetch_or(kWatched, std::memory_order_relaxed);
  } else {
    closed_.fetch_and(~kWatched, std::memory_order_relaxed);
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
