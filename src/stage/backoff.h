// Backoff: how long a source is left alone after an ignored error, and when ignored errors are too many. Pure.
//
// A malformed row here and there costs nothing. A persistent error would make producers spin, so beyond the eighth
// error in a row there are pauses of 1 ms, 2 ms, 4 ms … 1 s, and beyond the budget the error is no longer ignored.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace engine::detail {

class Backoff {
 public:
  explicit Backoff(int budget) : budget_(budget) {}
  // One more error in a row. Returns the pause before the next item; nothing if this error is beyond the budget.
  std::optional<std::chrono::milliseconds> Ignored() {
    if (++in_a_row_ > budget_) return {};
    const int beyond = in_a_row_ - kFree;
    return beyond <= 0 ? std::chrono::milliseconds(0)
                       : std::min(std::chrono::milliseconds(1 << std::min(beyond - 1, kMostDoublings)), kMost);
  }
  // An item was made.
  void Finished() { in_a_row_ = 0; }

 private:
  static constexpr int kFree = 8, kMostDoublings = 10;
  static constexpr std::chrono::milliseconds kMost{1000};
  int budget_, in_a_row_ = 0;
};

}  // namespace engine::detail
