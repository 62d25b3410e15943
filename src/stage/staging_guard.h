// StagingGuard: decides whether the first steps ran faster staged or whole. Pure: it is told when steps began and ended.
//
// Both ways have two turns, alternating, so that a machine that gets slower or faster meanwhile favours neither. The
// better turn of each way counts.
// The pace of a turn is the slower of two: that at which its steps began, and that at which the same steps ended. For
// the caller may have many steps in flight: while their number grows, steps begin faster than they end; while those of
// an earlier, faster turn run out, steps end faster than new ones begin. Not counted are the steps before the first one
// ends, as many again, the steps that a stage has ready by then, and pauses (as between epochs), which say nothing
// about either way. Nobody waits: a turn lasts until the ends that it needs are known.
// The two turns of one way show the noise. A stage that gains less than the noise (or than 3 %, if the noise is larger)
// is dropped, so that the decision is the same the next time.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/sync.h"

namespace engine::detail {

// Ends: when the steps of one turn ended. Threads: any.
class Ends {
 public:
  // Step `step` ended at `now`. Steps are listed in the order of their starts, so a step counts when all steps before
  // it have ended.
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
  // When `step`, which is below count(), ended.
  double operator[](size_t step) const {
    MutexLock lock(mu_);
    return times_[step];
  }

 private:
  mutable Mutex mu_;
  std::vector<bool> ended_ GUARDED_BY(mu_);
  std::vector<double> times_ GUARDED_BY(mu_);
};

class StagingGuard {
 public:
  // `warm_up`: how many steps until either way runs evenly. steps == 0: no guard; staged from the beginning.
  StagingGuard(int warm_up, int steps)
      : warm_up_(static_cast<size_t>(warm_up)), steps_(static_cast<size_t>(steps)), turn_(steps > 0 ? 0 : kTurns) {}

  bool on() const {
    if (!decided()) return turn_ % 2 == 1;
    return steps_ == 0 || best_[1] < best_[0] - std::min(noise_, kClear * best_[0]);
  }
  bool decided() const { return turn_ == kTurns; }
  // How many steps of this turn have started.
  size_t started() const { return begins_.size(); }
  // One more step, which was asked for at `asked`, was started `now`, staged if on(). `ends`: of this turn. Returns
  // true if the turn is over.
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
  // Begins the turn anew, because the end of one of its steps will not be known.
  void Restart() {
    begins_.clear();
    gaps_.clear();
    first_ = 0;
  }
  // Seconds for one step; 0: not measured.
  double whole_seconds() const { return best_[0]; }
  double staged_seconds() const { return best_[1]; }

 private:
  static constexpr int kTurns = 4;  // whole, staged, whole, staged
  static constexpr double kClear = 0.03;
  static constexpr double kPause = 4;  // in steps; a shorter gap is the caller's own work, which a stage may slow down

  // The time, between the begins of two steps, in gaps that are far longer than a step.
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
  std::vector<double> gaps_;    // before each step: how long nothing was in flight and nobody had asked for the step
  std::vector<double> begins_;  // of the steps of this turn
  size_t first_ = 0;            // how many steps had started when the first one ended; 0: it has not ended
  std::array<double, 2> best_{};
  double noise_ = 0;
};

}  // namespace engine::detail
