#include "returns.h"

#include <new>

namespace engine_mxnet {

Returns::Queue& Returns::queue() noexcept {
  // Never destroyed: workers may end after main. No allocation: its first use may be in the child of a fork.
  alignas(Queue) static std::byte memory[sizeof(Queue)];
  static Queue* const queue = ::new (memory) Queue;
  return *queue;
}

bool Returns::TryGive(abi::Remains& function) noexcept {
  Queue& to = queue();
  uint32_t n = to.given.load(std::memory_order_relaxed);
  for (;;) {
    Place& place = to.places[n % kMost];
    // acquire: the place is empty. Partner: the release in TryTake.
    const uint32_t turn = place.turn.load(std::memory_order_acquire);
    if (turn == n) {
      if (!to.given.compare_exchange_weak(n, n + 1, std::memory_order_relaxed)) continue;
      place.function = std::move(function);
      place.turn.store(n + 1, std::memory_order_release);  // partner: the acquire in TryTake
      return true;
    }
    if (static_cast<int32_t>(turn - n) < 0) return false;  // full
    n = to.given.load(std::memory_order_relaxed);
  }
}

bool Returns::TryTake(abi::Remains& function) noexcept {
  Queue& from = queue();
  uint32_t n = from.taken.load(std::memory_order_relaxed);
  for (;;) {
    Place& place = from.places[n % kMost];
    // acquire: the function. Partner: the release in TryGive.
    const uint32_t turn = place.turn.load(std::memory_order_acquire);
    if (turn == n + 1) {
      if (!from.taken.compare_exchange_weak(n, n + 1, std::memory_order_relaxed)) continue;
      function = std::move(place.function);
      place.turn.store(n + kMost, std::memory_order_release);  // partner: the acquire in TryGive
      return true;
    }
    if (static_cast<int32_t>(turn - (n + 1)) < 0) return false;  // empty, or still being written
    n = from.taken.load(std::memory_order_relaxed);
  }
}

void Returns::DestroyAll() noexcept {
  for (abi::Remains function; TryTake(function);) function = {};
}

void Returns::Give(abi::Remains function) noexcept {
  if (!pushing_.load(std::memory_order_relaxed) || !TryGive(function)) function = {};
  // acq_rel: who gives the last one sees all that were given before. It destroys them, because perhaps nobody comes by for a long
  // time.
  if (expected_.fetch_sub(1, std::memory_order_acq_rel) == 1) DestroyAll();
}

}  // namespace engine_mxnet
