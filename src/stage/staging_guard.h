// StagingGuard: decides whether the first steps ran faster staged or whole. Pure: it is told when steps began and ended.
//
// It is a sequential test. A turn of one way ends as soon as the pace of its steps is known well enough: after three
// steps that take alike, and after `steps` of them at the latest. If the two ways then differ by clearly more than what is
// not known of either, that decides, after some sixteen steps of a caller that waits for each. Otherwise both ways have one
// more turn, so that a machine that gets slower or faster meanwhile favours neither, and the better turn of each way counts.
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
  // `warm_up`: how many steps until a stage runs evenly, if the caller does not wait for the steps. `steps`: how many are
  // measured in one turn at most; 0: no guard, staged from the beginning.
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
    return Look(ends);
  }
  // Whether the turn is over, now that more steps may have ended: so that the next step runs as the test decides.
  bool Look(const Ends& ends) {
    if (decided() || first_ == 0 || ends.count() == 0) return false;
    // With a caller that waited for the first step before it started the second, a stage does not get ahead of the steps.
    const size_t from = first_ <= 2 ? kEven : 2 * first_ + warm_up_ - 1, most = from + steps_;
    const size_t to = std::min({most, ends.count() - 1, begins_.size() - 1});
    const size_t count = to > from ? to - from : 0;
    if (count < std::min(steps_, kLeast)) return false;
    const Pace pace = PaceOf(ends, from, to);
    if (to < most && kSure * pace.error > kClear * pace.seconds) return false;
    End(pace);
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

  static constexpr size_t kLeast = 3;  // steps of a turn
  static constexpr size_t kEven = 2;   // steps until a caller that waits sees either way run evenly
  static constexpr double kSure = 2;   // standard errors

  struct Pace {
    double seconds = 0;  // for a step
    double error = 0;    // standard error
  };
  Pace PaceOf(const Ends& ends, size_t from, size_t to) const {
    const bool by_ends = ends[to] - ends[from] >= begins_[to] - begins_[from];
    const double longest = LongestGap(from, to);
    const auto took = [&](size_t i) {
      const double all = by_ends ? ends[i] - ends[i - 1] : begins_[i] - begins_[i - 1];
      return gaps_[i] > longest ? all - gaps_[i] : all;  // a pause says nothing about either way
    };
    const auto count = static_cast<double>(to - from);
    double sum = 0, squares = 0;
    for (size_t i = from + 1; i <= to; ++i) sum += took(i);
    const double seconds = sum / count;
    for (size_t i = from + 1; i <= to; ++i) squares += (took(i) - seconds) * (took(i) - seconds);
    return {.seconds = seconds, .error = count > 1 ? std::sqrt(squares / (count - 1) / count) : 0};
  }

  // The turn is over.
  void End(const Pace& pace) {
    double& best = best_[turn_ % 2];
    if (turn_ < 2) error_ += pace.error;
    if (turn_ >= 2) noise_ = std::max(noise_, std::abs(best - pace.seconds));
    best = turn_ < 2 ? pace.seconds : std::min(best, pace.seconds);
    ++turn_;
    if (turn_ == 2 && std::abs(best_[0] - best_[1]) > kClear * best_[0] + kSure * error_) turn_ = kTurns;
    Restart();
  }

  // Longer gaps than this, between the begins of two steps, are pauses: they are far longer than a step.
  double LongestGap(size_t from, size_t to) const {
    std::vector<double> steps;
    for (size_t i = from + 1; i <= to; ++i) steps.push_back(begins_[i] - begins_[i - 1]);
    const auto middle = steps.begin() + static_cast<ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end());
    return kPause * *middle;
  }

  size_t warm_up_, steps_;
  int turn_;
  std::vector<double> gaps_;    // before each step: how long nothing was in flight and nobody had asked for the step
  std::vector<double> begins_;  // of the steps of this turn
  size_t first_ = 0;            // how many steps had started when the first one ended; 0: it has not ended
  std::array<double, 2> best_{};
  double error_ = 0;  // of both first turns together
  double noise_ = 0;
};

}  // namespace engine::detail
