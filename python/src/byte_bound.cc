#include "byte_bound.h"

#include <time.h>

#include <chrono>

#include "engine/trace.h"
#include "gil.h"
#include "wait.h"

namespace engine_python {

void ByteBound::Held::Release() noexcept {
  if (!bound_) return;
  // relaxed: Await reads both only to see whether calls still come to an end; a stale count costs it one slice.
  if (running_) bound_->running_.fetch_sub(1, std::memory_order_relaxed);
  bound_->ended_.fetch_add(1, std::memory_order_relaxed);
  // seq_cst: either this load sees the waiter, or the waiter sees that there is room. Partners: in Await, the addition to
  // waiters_ and the load of pending_ behind it.
  bound_->pending_.fetch_sub(bytes_, std::memory_order_seq_cst);
  for (uint32_t i = bound_->waiters_.load(std::memory_order_seq_cst); i-- > 0;) sem_post(&bound_->room_);
  bound_.reset();
}

void ByteBound::Await(uint64_t bytes) {
  const auto fits = [&] {
    // seq_cst: behind the addition to waiters_. Partner: Release.
    const uint64_t now = pending_.load(std::memory_order_seq_cst);
    return now == 0 || now + bytes <= most_;
  };
  if (most_ == 0 || fits()) return;
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::milliseconds(100);
  const engine::TracedWait traced(engine::WaitCause::kRoom);
  uint64_t ended = ended_.load(std::memory_order_relaxed);
  for (auto quiet_since = Clock::now(); !fits();) {
    WithoutGil([&] {
      waiters_.fetch_add(1, std::memory_order_seq_cst);
      if (!fits()) {
        timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += std::chrono::nanoseconds(kSlice).count();
        until.tv_sec += until.tv_nsec / 1'000'000'000;
        until.tv_nsec %= 1'000'000'000;
        sem_clockwait(&room_, CLOCK_MONOTONIC, &until);
      }
      waiters_.fetch_sub(1, std::memory_order_relaxed);  // relaxed: if Release still sees it, it posts once too often
    });
    if (WaitsForSignals()) CheckSignals();
    const uint64_t now_ended = ended_.load(std::memory_order_relaxed);
    if (running_.load(std::memory_order_relaxed) != 0 || now_ended != ended) {
      ended = now_ended;
      quiet_since = Clock::now();
    } else if (Clock::now() - quiet_since > kPatience) {
      return;
    }
  }
}

}  // namespace engine_python
