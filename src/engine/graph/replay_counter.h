// The counter of a task with several predecessors, or of a use that any of several nodes may end. A template over its
// atomic, so that tests/checker runs this very code through every interleaving.
#pragma once

#include <atomic>
#include <cstdint>

namespace engine::detail {

// One arrival. Returns true for the last one, which sets the counter back to `initial` for the frame's next run.
// `others`: another thread may be at the counter. If not, no read-modify-write is needed: a thread that gives tasks to
// another one does so after these stores, which publishes them, and counts with `others` from then on.
template <class Counter>
[[gnu::always_inline]] inline bool CountDown(Counter& count, uint32_t initial, bool others) {
  // acquire, and acq_rel below: whoever arrives last sees what the others did. If the count is one, only we can take
  // it.
  const uint32_t left = count.load(std::memory_order_acquire);
  if (left != 1) {
    if (!others) {
      count.store(left - 1, std::memory_order_relaxed);
      return false;
    }
    if (count.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  }
  count.store(initial, std::memory_order_relaxed);
  return true;
}

}  // namespace engine::detail
