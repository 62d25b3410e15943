// Jitter: in a build with ENGINE_JITTER, a thread sleeps there for a moment, once in a while. It stands where others may go on before this
// thread has done the rest: around locks, sleeps and wakes, and behind what the end of an op publishes. So the orders of events that
// otherwise take a thread that the system interrupts there come often. In any other build it is nothing.
//
// Threads: any.
#pragma once

#ifdef ENGINE_JITTER
#include <time.h>

#include <cstdint>
#endif

namespace engine::detail {

#ifdef ENGINE_JITTER
inline void Jitter() noexcept {
  constexpr uint64_t kOneOf = 64, kBelowNanos = 2'000'000;
  static thread_local uint64_t state = 0;
  if (state == 0) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    state = ((static_cast<uint64_t>(now.tv_nsec) * 2654435761u) ^ reinterpret_cast<uintptr_t>(&state)) | 1;
  }
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  if (state % kOneOf != 0) return;
  const timespec moment{0, static_cast<long>((state >> 20) % kBelowNanos)};
  nanosleep(&moment, nullptr);
}
#else
inline void Jitter() noexcept {}
#endif

}  // namespace engine::detail
