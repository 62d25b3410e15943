// Guard: whether the first steps ran faster staged or whole. Pure: it is shown how long steps took.
//
// Rounds of both ways, so that a machine that gets slower or faster in between favours neither; of each way the best round
// counts. The first steps of each turn are left out: a stage that has just begun has an empty buffer, and a caller that does
// not wait for each step first fills what it keeps in flight.
#pragma once

#include <algorithm>
#include <array>

namespace engine::detail {

class Guard {
 public:
  // `warm_up`: steps until either way runs evenly. steps == 0: no guard, staged from the beginning.
  Guard(int warm_up, int steps) : warm_up_(warm_up), steps_(steps), turn_(steps > 0 ? 0 : kTurns) {}

  bool on() const { return decided() ? steps_ == 0 || best_[1] < best_[0] : turn_ % 2 == 1; }
  bool decided() const { return turn_ == kTurns; }
  // A step took so long, on() or not.
  void Observe(double seconds) {
    if (decided()) return;
    if (++seen_ > warm_up_) sum_ += seconds;
    if (seen_ < warm_up_ + steps_) return;
    double& best = best_[turn_ % 2];
    best = turn_ < 2 ? sum_ / steps_ : std::min(best, sum_ / steps_);
    sum_ = 0;
    seen_ = 0;
    ++turn_;
  }
  // Of one step; 0: not measured.
  double whole_seconds() const { return best_[0]; }
  double staged_seconds() const { return best_[1]; }

 private:
  static constexpr int kTurns = 4;  // whole, staged, whole, staged

  int warm_up_, steps_;
  int turn_;
  int seen_ = 0;
  double sum_ = 0;
  std::array<double, 2> best_{};
};

}  // namespace engine::detail
