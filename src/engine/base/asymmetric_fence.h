// A store-load fence whose cost is paid by the rare side.
//
// Pattern (Dekker): the common side stores X, LightFence(), loads Y; the rare side stores Y, HeavyFence(), loads X.
// At least one of them sees the other's store. The light side is a compiler barrier where the kernel offers
// membarrier(PRIVATE_EXPEDITED), else a full fence. Used by: posting work / going to sleep (pool.cc), completing /
// WaitAll (epochs.cc), pushing / closing the push gate (gate.h).
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
// A fork child must register again.
void RegisterMembarrier() noexcept;

}  // namespace engine::detail
