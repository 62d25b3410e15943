#include "byte_bound.h"

#include <time.h>

#include <algorithm>
#include <chrono>

#include "engine/trace.h"
#include "gil.h"
#include "wait.h"

namespace engine_python {
namespace {

// A call that sleeps goes on when this part of the bound is free again, because each sleep costs two switches of threads and
// a turn at the GIL. `examples/programs/images.py`: 700 switches of the calling thread for 200 images without, 80 with it.
constexpr uint64_t kRefillDivisor = 2;
// Fewer pending calls than this for each worker may leave one without work before the thread that sleeps is awake.
constexpr uint64_t kFewCalls = 2;

}  // namespace

bool ByteBound::Refill(uint64_t bytes, size_t workers) const {
  // seq_cst: Await adds to waiters_ and then calls this; Release subtracts from pending_ and then loads waiters_. One
  // of the two sees the other.
  const uint64_t now = pending_.load(std::memory_order_seq_cst);
  if (now == 0) return true;
  if (now + bytes > most_) return false;
  // relaxed: a call that ends takes itself off this count first, so who sees its bytes gone sees that, too.
  return now <= most_ / kRefillDivisor || calls_.load(std::memory_order_relaxed) < kFewCalls * workers;
}

void ByteBound::Counted::Release() noexcept {
  if (!bound_) return;
  // relaxed: Await reads both only to see whether calls still come to an end; a stale count costs it one slice.
  if (running_) bound_->running_.fetch_sub(1, std::memory_order_relaxed);
  bound_->ended_.fetch_add(1, std::memory_order_relaxed);
  bound_->calls_.fetch_sub(1, std::memory_order_relaxed);  // the next line publishes it
  // seq_cst: either this load sees the waiter, or the waiter sees that there is room. Partners: in Await, the addition to
  // waiters_ and the load of pending_ behind it.
  bound_->pending_.fetch_sub(bytes_, std::memory_order_seq_cst);
  if (uint32_t waiters = bound_->waiters_.load(std::memory_order_seq_cst); waiters > 0) {
    // relaxed: written in front of the addition that the load above has seen.
    const uint64_t needed = bound_->needed_.load(std::memory_order_relaxed);
    if (bound_->Refill(needed, bound_->workers_.load(std::memory_order_relaxed)))
      while (waiters-- > 0) sem_post(&bound_->room_);
  }
  bound_.reset();
}

void ByteBound::Await(uint64_t bytes, size_t workers) {
  const uint64_t pending =
      pending_.load(std::memory_order_relaxed);  // relaxed: if calls end meanwhile, it does not sleep
  if (most_ == 0 || pending == 0 || pending + bytes <= most_) return;
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::milliseconds(100);
  const engine::TracedWait traced(engine::WaitCause::kRoom);
  uint64_t ended = ended_.load(std::memory_order_relaxed);
  for (auto quiet_since = Clock::now(); !Refill(bytes, workers);) {
    // The GIL guards what the next lines write. All waiters look when there is room for the smallest.
    const bool first = waiters_.load(std::memory_order_relaxed) == 0;
    if (first || bytes < needed_.load(std::memory_order_relaxed)) needed_.store(bytes, std::memory_order_relaxed);
    workers_.store(workers, std::memory_order_relaxed);
    waiters_.fetch_add(1, std::memory_order_seq_cst);  // publishes them
    WithoutGil([&] {
      if (!Refill(bytes, workers)) {
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
