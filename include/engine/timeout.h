// Timeout: how long a call may take at most.
//
// Any std::chrono duration of whole numbers converts to it. A duration that nanoseconds cannot hold, such as
// milliseconds::max(), means for ever; std::chrono's own conversion would overflow. Zero or less: the call looks and
// does not wait.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <ratio>
#include <utility>

namespace engine {

class Timeout {
 public:
  template <std::integral Rep, class Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> given) noexcept {  // NOLINT: implicit by design
    if constexpr (std::ratio_less_v<Period, std::nano>) {
      nanoseconds_ = std::chrono::duration_cast<std::chrono::nanoseconds>(given);
    } else {
      using Wide = std::chrono::duration<int64_t, Period>;
      constexpr int64_t kMost = std::chrono::duration_cast<Wide>(kForever).count();
      if (std::cmp_greater(given.count(), kMost)) {
        nanoseconds_ = kForever;
      } else if (std::cmp_less(given.count(), -kMost)) {
        nanoseconds_ = -kForever;
      } else {
        nanoseconds_ = Wide(static_cast<int64_t>(given.count()));
      }
    }
  }
  static constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();
  constexpr std::chrono::nanoseconds nanoseconds() const noexcept { return nanoseconds_; }

 private:
  std::chrono::nanoseconds nanoseconds_{0};
};

}  // namespace engine
