// Guard: whether the first steps ran faster staged or whole. Pure: it is shown when steps began and ended.
//
// Turns of both ways, twice, so that a machine that gets slower or faster in between favours neither; of each way the best
// turn counts. A caller may keep many steps in flight. While it comes to have more of them it begins them faster than they
// end; while those of a faster turn before run out they end faster than it begins new ones; so the pace of a turn is the
// slower of the two, over the same steps. Left out are those before the first has ended, as many again, and those that a
// stage has ready by then; and pauses, as between epochs, which say nothing of either way. Nobody waits: a turn goes on
// until the end that it needs is known. Two turns of one way tell the noise: a stage that gains less than that (or than 3 %,
// where there is more of it) is dropped, so that the verdict is the same the next time.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/sync.h"

namespace engine::detail {

// When the steps of one turn ended. Threads: any.
class Ends {
 public:
  // Step `step` ended at `now`. The list is in the order of the starts: a step counts once all before it have ended.
  void Add(size_t step, double now) {
    MutexLock lock(mu_);
    if (ended_.size() <= step) ended_.resize(step + 1);
    ended_[step] = true;
    while (times_.size() < ended_.size() && ended_[times_.size()]) times_.push_back(now);
  }
  size_t count() const {
    MutexLock lock(mu_);
    return times_.size();
  }
  // Of a step below count().
  double operator[](size_t step) const {
    MutexLock lock(mu_);
    return times_[step];
  }

 private:
  mutable Mutex mu_;
  std::vector<bool> ended_ GUARDED_BY(mu_);
  std::vector<double> times_ GUARDED_BY(mu_);
};

class Guard {
 public:
  // `warm_up`: steps until either way runs evenly. steps == 0: no guard, staged from the beginning.
  Guard(int warm_up, int steps)
      : warm_up_(static_cast<size_t>(warm_up)), steps_(static_cast<size_t>(steps)), turn_(steps > 0 ? 0 : kTurns) {}

  bool on() const {
    if (!decided()) return turn_ % 2 == 1;
    return steps_ == 0 || best_[1] < best_[0] - std::min(noise_, kClear * best_[0]);
  }
  bool decided() const { return turn_ == kTurns; }
  // Of this turn.
  size_t started() const { return begins_.size(); }
  // Another step, asked for at `asked`, was started `now`, on() or not. `ends`: of this turn. True: the turn is over.
  bool Started(const Ends& ends, double asked, double now) {
    const size_t before = started();
    const bool idle = before > 0 && ends.count() >= before;
    gaps_.push_back(idle ? std::max(0.0, asked - ends[before - 1]) : 0);
    begins_.push_back(now);
    if (first_ == 0 && ends.count() > 0) first_ = started();
    const size_t from = 2 * first_ + warm_up_ - 1, to = from + steps_;
    if (first_ == 0 || ends.count() <= to) return false;
    const double all = std::max(ends[to] - ends[from], begins_[to] - begins_[from]);
    const double seconds = (all - Pauses(from, to)) / static_cast<double>(steps_);
    double& best = best_[turn_ % 2];
    if (turn_ >= 2) noise_ = std::max(noise_, std::abs(best - seconds));
    best = turn_ < 2 ? seconds : std::min(best, seconds);
    ++turn_;
    Restart();
    return true;
  }
  // The turn begins anew: an end of it will not be known.
  void Restart() {
    begins_.clear();
    gaps_.clear();
    first_ = 0;
  }
  // Of one step; 0: not measured.
  double whole_seconds() const { return best_[0]; }
  double staged_seconds() const { return best_[1]; }

 private:
  static constexpr int kTurns = 4;  // whole, staged, whole, staged
  static constexpr double kClear = 0.03;
  static constexpr double kPause = 4;  // steps; a shorter gap is the caller's own work, which a stage may slow down

  // Between the begins of two steps: the time in gaps that are far longer than a step.
  double Pauses(size_t from, size_t to) const {
    std::vector<double> steps;
    for (size_t i = from + 1; i <= to; ++i) steps.push_back(begins_[i] - begins_[i - 1]);
    const auto middle = steps.begin() + static_cast<ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end());
    double sum = 0;
    for (size_t i = from + 1; i <= to; ++i)
      if (gaps_[i] > kPause * *middle) sum += gaps_[i];
    return sum;
  }

  size_t warm_up_, steps_;
  int turn_;
  std::vector<double> gaps_;    // before each step: nothing was in flight, and nobody had asked for it yet
  std::vector<double> begins_;  // of the steps of this turn
  size_t first_ = 0;            // how many were started when the first had ended; 0: it has not
  std::array<double, 2> best_{};
  double noise_ = 0;
};

}  // namespace engine::detail
