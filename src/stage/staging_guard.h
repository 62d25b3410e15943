// StagingGuard: decides whether the first steps ran faster staged or whole. Pure: it is told when steps began and ended.
//
// It is a sequential test. A turn of one way ends as soon as the pace of its steps is known well enough: after five steps
// that take alike, and after `steps` of them at the latest. Then what was measured is weighed against what the cut
// predicts, each by how sure it is: on a quiet machine the measurement decides, on a noisy one the prediction does. If that
// is not clear after a turn of each way, both have one more, so that a machine that gets slower or faster meanwhile favours
// neither; the better turn of each way counts, because other work on the machine only ever makes steps slower. A stage
// that gains less than two percent is dropped.
//
// How long a step takes, for a caller that waits for its steps, has two parts. Getting the item counts by its mean, over
// all turns: a source that reads a block for several items takes long for one of them, which is just what a stage hides.
// The rest counts by its median, because there a step that takes far longer is other work on the machine. For a caller with
// many steps in flight the parts overlap, and the mean of the slower of two paces counts: that at which its steps began, and
// that at which the same steps ended. While their number grows, steps begin faster than they end; while those of
// an earlier, faster turn run out, steps end faster than new ones begin. Not counted are the steps before the first one
// ends, as many again, the steps that a stage has ready by then, and pauses (as between epochs), which say nothing
// about either way. Nobody waits: a turn lasts until the ends that it needs are known.
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
  // measured in one turn at most; 0: no guard, staged from the beginning. `predicted`: the gain, in the
  // terms of Gain, that the costs of the parts of a step promise.
  StagingGuard(int warm_up, int steps, double predicted = 0)
      : warm_up_(static_cast<size_t>(warm_up)),
        steps_(static_cast<size_t>(steps)),
        predicted_(predicted),
        turn_(steps > 0 ? 0 : kTurns) {}

  bool on() const {
    if (!decided()) return turn_ % 2 == 1;
    return steps_ == 0 || Believed().gain > kWorth;
  }
  bool decided() const { return turn_ == kTurns; }
  // How many steps of this turn have started.
  size_t started() const { return begins_.size(); }
  // Before the comparison, the caller of a step that ran whole took so long to get its item.
  void Got(double seconds) { ways_[0].got.push_back(seconds); }
  // One more step, which was asked for at `asked`, was started `now`, staged if on(); the caller took `got` seconds to get its
  // item. `ends`: of this turn. Returns true if the turn is over.
  bool Started(const Ends& ends, double asked, double now, double got = 0) {
    const size_t before = started();
    const bool idle = before > 0 && ends.count() >= before;
    gaps_.push_back(idle ? std::max(0.0, asked - ends[before - 1]) : 0);
    got_.push_back(got);
    begins_.push_back(now);
    if (first_ == 0 && ends.count() > 0) first_ = started();
    return Look(ends);
  }
  // Whether the turn is over, now that more steps may have ended: so that the next step runs as the test decides.
  bool Look(const Ends& ends) {
    if (decided() || first_ == 0 || ends.count() == 0) return false;
    const size_t from = first_ <= 2 ? kEven : 2 * first_ + warm_up_ - 1, most = from + steps_;
    const size_t to = std::min({most, ends.count() - 1, begins_.size() - 1});
    const size_t count = to > from ? to - from : 0;
    if (count < std::min(steps_, kLeast)) return false;
    const std::vector<double> took = Took(ends, from, to);
    const double pace = apart() ? Median(took) : Mean(took);
    if (to < most && kSure * Error(Scatter(took, pace), count) > kClear * pace) return false;
    End(took, pace, {got_.begin() + static_cast<ptrdiff_t>(from) + 1, got_.begin() + static_cast<ptrdiff_t>(to) + 1});
    return true;
  }
  // Begins the turn anew, because the end of one of its steps will not be known.
  void Restart() {
    begins_.clear();
    gaps_.clear();
    got_.clear();
    first_ = 0;
  }
  // Seconds for one step; 0: not measured.
  double whole_seconds() const { return Seconds(ways_[0]); }
  double staged_seconds() const { return Seconds(ways_[1]); }

 private:
  static constexpr int kTurns = 4;  // whole, staged, whole, staged
  static constexpr double kClear = 0.03;
  static constexpr double kWorth = 0.02;  // what is gained at least, or a stage is not worth its threads and its memory
  static constexpr double kTrust = 0.05;  // standard error of the prediction, or half of it if that is more
  static constexpr double kRefuted = 3;   // standard errors
  static constexpr double kFinest = 0.005;  // no measurement is surer
  static constexpr double kPause = 4;  // in steps; a shorter gap is the caller's own work, which a stage may slow down

  static constexpr size_t kLeast = 5;  // steps of a turn: with three before them, twice, and eight before the cut, 24
  static constexpr size_t kEven = 2;   // steps until a caller that waits sees either way run evenly
  static constexpr double kSure = 2;   // standard errors

  using Times = std::vector<double>;
  struct Way {
    double rest = 0;  // seconds for a step without getting the item; 0: not measured
    size_t steps = 0;
    double differ = -1;  // between its two turns; below zero: it had one
    Times got;
  };
  struct Gain {
    double gain, error;  // the logarithm of how many times as fast steps are staged, which for small gains is the gain
  };

  static double Mean(const Times& times) {
    double sum = 0;
    for (double t : times) sum += t;
    return times.empty() ? 0 : sum / static_cast<double>(times.size());
  }
  static double Median(Times times) {
    const size_t half = times.size() / 2;
    std::sort(times.begin(), times.end());
    return times.size() % 2 ? times[half] : (times[half - 1] + times[half]) / 2;
  }
  static double Deviation(const Times& times, double middle) {
    double squares = 0;
    for (double t : times) squares += (t - middle) * (t - middle);
    return times.size() > 1 ? std::sqrt(squares / static_cast<double>(times.size() - 1)) : 0;
  }
  static double Error(double scatter, size_t steps) { return scatter / std::sqrt(static_cast<double>(steps)); }

  // Whether getting the item counts apart: the caller waited, in this turn and before, for the first step before it started
  // the second. Then a stage does not get ahead of the steps either.
  bool apart() const { return even_ && first_ <= 2; }
  // The standard deviation of steps; for those of a caller that waits, as what is usual says it, times that by which the
  // error of a median is larger than that of a mean.
  double Scatter(const Times& took, double pace) const {
    if (!apart()) return Deviation(took, pace);
    Times off;
    for (double t : took) off.push_back(std::abs(t - pace));
    return 1.4826 * 1.2533 * Median(std::move(off));
  }

  // What the steps of this turn took; of a caller that waits, without getting the item.
  Times Took(const Ends& ends, size_t from, size_t to) const {
    const bool by_ends = ends[to] - ends[from] >= begins_[to] - begins_[from];
    const double longest = LongestGap(from, to);
    Times took;
    for (size_t i = from + 1; i <= to; ++i) {
      double t = by_ends ? ends[i] - ends[i - 1] : begins_[i] - begins_[i - 1];
      if (gaps_[i] > longest) t -= gaps_[i];  // a pause says nothing about either way
      if (apart()) t = std::max(0.0, t - got_[i]);
      took.push_back(t);
    }
    return took;
  }

  // The turn is over.
  void End(const Times& took, double pace, Times got) {
    Way& way = ways_[static_cast<size_t>(turn_ % 2)];
    for (double t : took) off_.push_back(t - pace);
    if (!apart() && even_) {
      even_ = false;
      for (Way& w : ways_) w.rest += w.steps > 0 ? Mean(w.got) : 0, w.got.clear();
    }
    if (turn_ >= 2) way.differ = std::abs(way.rest - pace);
    if (turn_ < 2 || pace < way.rest) way.rest = pace, way.steps = took.size();
    if (even_) way.got.insert(way.got.end(), got.begin(), got.end());
    ++turn_;
    if (turn_ == 2) {
      const Gain believed = Believed();
      if (std::abs(believed.gain - kWorth) > kSure * believed.error) turn_ = kTurns;
    }
    Restart();
  }

  double Seconds(const Way& way) const { return way.steps > 0 ? way.rest + Mean(way.got) : 0; }

  // What staging brings, by what was measured and by what was predicted. A prediction that the measurement refutes says
  // nothing.
  Gain Believed() const {
    double scatter = 0, squares = 0;
    if (even_) {  // of all turns together, because a few steps may take alike by chance
      Times off;
      for (double t : off_) off.push_back(std::abs(t));
      scatter = 1.4826 * 1.2533 * Median(std::move(off));
    } else {
      scatter = Deviation(off_, 0);
    }
    double noise = 1;  // of the better way: other work on the machine need not have met both turns
    for (const Way& way : ways_) {
      const double all = Seconds(way);
      squares += std::pow(Error(scatter, way.steps) / all, 2);
      if (!way.got.empty()) squares += std::pow(Error(Deviation(way.got, Mean(way.got)), way.got.size()) / all, 2);
      noise = std::min(noise, std::max(0.0, way.differ) / all);
    }
    const double measured = std::log(Seconds(ways_[0]) / Seconds(ways_[1]));
    const double error = std::max(kFinest, std::sqrt(squares + noise * noise));
    const double trust = std::max(kTrust, std::abs(predicted_) / 2);
    if (std::abs(measured - predicted_) > kRefuted * std::hypot(error, trust))
      return {.gain = measured, .error = error};
    const double sure = 1 / (error * error), weight = 1 / (trust * trust);
    return {.gain = (measured * sure + predicted_ * weight) / (sure + weight), .error = 1 / std::sqrt(sure + weight)};
  }

  // Longer gaps than this, between the begins of two steps, are pauses: they are far longer than a step.
  double LongestGap(size_t from, size_t to) const {
    Times steps;
    for (size_t i = from + 1; i <= to; ++i) steps.push_back(begins_[i] - begins_[i - 1]);
    return kPause * Median(std::move(steps));
  }

  size_t warm_up_, steps_;
  double predicted_;
  int turn_;
  Times gaps_;                 // before each step: how long nothing was in flight and nobody had asked for the step
  Times got_;                  // how long each step's caller took to get the item
  Times begins_;               // of the steps of this turn
  size_t first_ = 0;           // how many steps had started when the first one ended; 0: it has not ended
  std::array<Way, 2> ways_{};  // whole, staged
  Times off_;                  // how far each step was from the pace of its turn
  bool even_ = true;           // apart() in every turn; else `rest` is all of a step
};

}  // namespace engine::detail
