// The counter of a task with several predecessors, or of a use that several nodes may be the last to make.
// A template over its atomic, so that tests/checker runs this very code through every interleaving.
#pragma once

#include <atomic>
#include <cstdint>

namespace engine::detail {

// One arrival; true for the last one, which sets the counter back to `initial` for the frame's next run.
// `others`: another thread may be at the counter. Without, no read-modify-write is needed: what hands tasks to another thread
// comes after these stores and publishes them, and the thread that hands them out counts with `others` from then on.
template <class Counter>
[[gnu::always_inline]] inline bool CountDown(Counter& count, uint32_t initial, bool others) {
  // acquire, and acq_rel: who arrives last sees what the others did. A count of one is ours alone to take.
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
