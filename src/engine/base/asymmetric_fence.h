// A store-load fence between a frequent and a rare side, whose cost the rare side pays.
//
// Pattern (Dekker): the frequent side stores X, calls LightFence(), loads Y; the rare side stores Y, calls
// HeavyFence(), loads X. At least one of them sees the other's store. If the kernel has membarrier(PRIVATE_EXPEDITED),
// the light side is only a compiler barrier; otherwise both are full fences. Used by posting work / going to sleep
// (pool.cc), completing / WaitAll (epochs.cc), pushing / closing the push gate (gate.h).
#pragma once

#include <atomic>

namespace engine::detail {

extern const bool g_has_membarrier;  // set before main and constant afterwards; false under ThreadSanitizer

inline void LightFence() noexcept {
  if (g_has_membarrier) [[likely]] {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}
void HeavyFence() noexcept;
// Called in a fork's child, which must register for membarrier again.
void RegisterMembarrier() noexcept;

}  // namespace engine::detail
