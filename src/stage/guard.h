// Guard: whether the first steps ran faster staged or whole. Pure: it is shown when steps began and ended.
//
// Turns of both ways, twice, so that a machine that gets slower or faster in between favours neither; of each way the best
// turn counts. A caller may keep many steps in flight. While it comes to have more of them it begins them faster than they
// end; while those of a faster turn before run out they end faster than it begins new ones; so the pace of a turn is the
// slower of the two, over the same steps. Left out are those before the first has ended, as many again, and those that a
// stage has ready by then. Nobody waits: a turn goes on until the end that it needs is known.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "sync.h"

namespace engine::detail {

// When the steps of one turn ended. Threads: any.
class Ends {
 public:
  // Step `step` ended at `now`. The list is in the order of the starts: a step counts once all before it have ended.
  void Add(size_t step, double now) {
    StageLock lock(mu_);
    if (ended_.size() <= step) ended_.resize(step + 1);
    ended_[step] = true;
    while (times_.size() < ended_.size() && ended_[times_.size()]) times_.push_back(now);
  }
  size_t count() const {
    StageLock lock(mu_);
    return times_.size();
  }
  // Of a step below count().
  double operator[](size_t step) const {
    StageLock lock(mu_);
    return times_[step];
  }

 private:
  mutable StageMutex mu_;
  std::vector<bool> ended_ STAGE_TSA(guarded_by(mu_));
  std::vector<double> times_ STAGE_TSA(guarded_by(mu_));
};

class Guard {
 public:
  // `warm_up`: steps until either way runs evenly. steps == 0: no guard, staged from the beginning.
  Guard(int warm_up, int steps)
      : warm_up_(static_cast<size_t>(warm_up)), steps_(static_cast<size_t>(steps)), turn_(steps > 0 ? 0 : kTurns) {}

  bool on() const { return decided() ? steps_ == 0 || best_[1] < best_[0] : turn_ % 2 == 1; }
  bool decided() const { return turn_ == kTurns; }
  // Of this turn.
  size_t started() const { return begins_.size(); }
  // Another step was started `now`, on() or not. `ends`: of this turn. True: the turn is over.
  bool Started(const Ends& ends, double now) {
    begins_.push_back(now);
    if (first_ == 0 && ends.count() > 0) first_ = started();
    const size_t from = 2 * first_ + warm_up_ - 1, to = from + steps_;
    if (first_ == 0 || ends.count() <= to) return false;
    const double seconds = std::max(ends[to] - ends[from], begins_[to] - begins_[from]) / static_cast<double>(steps_);
    double& best = best_[turn_ % 2];
    best = turn_ < 2 ? seconds : std::min(best, seconds);
    ++turn_;
    Restart();
    return true;
  }
  // The turn begins anew: an end of it will not be known.
  void Restart() {
    begins_.clear();
    first_ = 0;
  }
  // Of one step; 0: not measured.
  double whole_seconds() const { return best_[0]; }
  double staged_seconds() const { return best_[1]; }

 private:
  static constexpr int kTurns = 4;  // whole, staged, whole, staged

  size_t warm_up_, steps_;
  int turn_;
  std::vector<double> begins_;  // of the steps of this turn
  size_t first_ = 0;            // how many were started when the first had ended; 0: it has not
  std::array<double, 2> best_{};
};

}  // namespace engine::detail
