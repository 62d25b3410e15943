#include "byte_bound.h"

#include <chrono>

#include "engine/trace.h"
#include "wait.h"

namespace engine_python {

void ByteBound::Await(uint64_t bytes) const {
  const auto fits = [&] { return pending() == 0 || pending() + bytes <= most_; };
  if (most_ == 0 || fits()) return;
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::milliseconds(100);
  const engine::TracedWait traced(engine::WaitCause::kRoom);
  uint64_t ended = ended_.load(std::memory_order_relaxed);
  for (auto quiet_since = Clock::now(); !fits();) {
    NapAndCheckSignals();
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
