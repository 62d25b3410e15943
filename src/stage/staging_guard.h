// StagingGuard: decides whether steps run staged or whole, by measurement alone. Pure: it is told when steps began and ended.
//
// It compares in blocks: some steps as they run now, some the other way, some as they run now again, so that a machine that
// gets slower or faster meanwhile favours neither. It begins with whole steps, and a stage must be faster beyond doubt, and by
// two percent, to be opened: a tie goes to whole steps. It is kept while steps are faster with it. The first comparison has
// `steps` steps, or fewer where a few leave no doubt.
//
// It goes on comparing for ever, so that a decision that was wrong, or is no longer right, is undone. That may cost half a
// percent of the time. A step that runs the other way costs what it takes longer by, as far as that is known: little, where
// the two ways differ by little. A trial costs besides what it took longer than its steps are worth: nothing hides its first
// item, and a thread that begins to read is slow. So what the first comparison could not tell is compared again soon; what is
// sure is compared as if a step of the other way cost a quarter of a step at least. What the last comparisons measured is put
// together; what the newest one refutes is forgotten.
//
// A stage that is tried reads ahead beside its first steps, and uses that up. So a stage that a trial has opened is compared once
// more at once, in steps of a stage that runs on. It stays if they are faster at all. The trials no longer count then.
//
// Where processors are idle beside a step, a stage nearly always pays, and noise is what would say otherwise. There it is open
// from the beginning, without a trial, and is compared with whole steps as any stage that runs. A tie goes to the stage, and so
// does doubt: it is closed where steps are slower with it by more than the error of what was measured. One comparison or two close
// it only where they leave no doubt: else it is compared again at once.
//
// A step that takes far longer than usual is other work on the machine as often as its own way's fault. So it counts, but only
// up to a bound. The first steps of a trial may take longer by what is read beside them, which is nearly all that the trial reads:
// where the two sides fight for cores, all that the stage costs is in them. The time that a caller waits for its item counts as
// it is: a source that reads a block for several items takes long for one of them, which is just what a stage hides.
//
// Nobody waits: a comparison lasts until the ends that it needs are known.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/spi/smart_step.h"
#include "step_times.h"

namespace engine::detail {

// What a stage that is only tried has in its buffer at most, so that the trial ends soon after its last step.
constexpr size_t kTrialCapacity = 4;
// What is gained at least, measured or by the profile's costs, or a stage is not worth its threads and its memory.
constexpr double kWorth = 0.02;

// Whether a stage's thread finds a processor beside a step. `busy`: how many processors the process kept busy in each step
// that was profiled; none were: then nobody knows.
inline bool HasRoom(const Times& busy, int processors) {
  constexpr double kRoom = 0.75;  // of a processor
  return !busy.empty() && processors - Median(busy) >= kRoom;
}

// How many processors a block of whole steps keeps busy, from the start of each step to that of the next. A pause of the
// caller's is in one of these times, so the median does not see it.
class BlockBusy {
 public:
  // A step is started at `now`, when the process has used so many seconds of processors; `first`: of the block.
  void Started(bool first, double now, double used) {
    if (first) {
      each_.clear();
    } else {
      each_.push_back((used - used_) / (now - now_));
    }
    now_ = now, used_ = used;
  }
  const Times& each() const { return each_; }

 private:
  Times each_;
  double now_ = 0, used_ = 0;
};

class StagingGuard {
 public:
  using Ran = SmartStep::Ran;

  // `ahead`: how many items a stage has ready at most; `trial_ahead`: while trial(). `steps`: of the first comparison; 0: no
  // guard, staged from the beginning. `room`: whether processors are idle beside a step.
  StagingGuard(size_t ahead, size_t trial_ahead, size_t steps, bool room = false)
      : ahead_(ahead),
        trial_ahead_(trial_ahead),
        quarter_(std::max<size_t>(2, steps / 4)),
        room_(room),
        staged_(room || steps == 0),
        tried_(room && steps > 0) {
    cost_[0] = quarter_ + 1, cost_[1] = 2 * quarter_;
    if (steps == 0) {
      decided_ = true;
    } else {
      Begin();
    }
  }

  // What was decided. Until then steps run as they would without the steps that compare: staged where there is room, else whole.
  bool staged() const { return staged_; }
  bool decided() const { return decided_; }
  // How the next step should run.
  bool on() const { return phase_ == kOther ? !staged_ : staged_; }
  // Whether the stage that runs now is only tried, and will be closed soon.
  bool trial() const { return phase_ == kOther && !staged_; }
  // Whether it wants to know when steps begin and end.
  bool watching() const { return phase_ != kRest; }
  // Grows when anything that it says changes.
  uint64_t changes() const { return changes_; }
  uint64_t comparisons() const { return comparisons_; }
  // What the comparisons say together: the logarithm of how many times as fast steps are staged, and its standard error.
  struct Gain {
    double gain = 0, error = 0;
  };
  Gain gain() const { return gain_; }
  // Whether no doubt is left: a stage pays, or it does not.
  bool sure() const { return decided_ && !tried_ && !again_ && Sure(gain_); }

  // Whether it is time to compare again.
  bool due() const {
    return phase_ == kRest && (!decided_ || tried_ || again_ ||
                               (!window_.empty() && saved_ >= price_ * static_cast<double>(cost_[staged_ ? 0 : 1])));
  }
  // Whether processors are idle beside whole steps, as those of this comparison have shown.
  void SetRoom(bool room) { room_ = room; }
  // Begins a comparison.
  void Begin() {
    blocks_.clear();
    Enter(kBefore);
  }
  // Gives up the comparison, because the end of a step will not be known. Another is due later. Needs no memory.
  void Abandon() {
    blocks_.clear();
    Enter(kRest);
  }

  // The block that a step belongs to that is about to be started; null: to none.
  StepBlock* BlockOf(Ran ran) {
    if (phase_ == kRest) return nullptr;
    if (ran == Ran::kDrained) return phase_ == kAfter && blocks_[1].staged() ? &blocks_[1] : nullptr;
    return blocks_.back().staged() == (ran == Ran::kStaged) ? &blocks_.back() : nullptr;
  }
  // A step was started `now` that was asked for at `asked`, and that its block, if it has one, expected; its caller took `got` seconds to get its item.
  void Started(Ran ran, double asked, double now, double got = 0) {
    if (decided_) saved_ += kShare - ((ran != Ran::kWhole) != staged_ ? price_ : 0);
    if (tried_ && ran != Ran::kWhole) trying_ += 1;
    if (StepBlock* block = BlockOf(ran)) block->Started(asked, now, got, ran == Ran::kDrained);
  }
  // More steps may have ended: on() may change, so this is called before a step begins. `begun`: how many items the stage has
  // begun that were not taken.
  void Look(size_t begun = 0) {
    if (phase_ == kRest) return;
    for (StepBlock& block : blocks_) block.Look();
    if (phase_ == kAfter) {
      if (blocks_[2].counted() >= Wanted(blocks_[2]) && blocks_[0].over() && blocks_[1].over()) Decide();
    } else if (trial() && Clear()) {
      Decide();
    } else if (Full(blocks_.back(), begun)) {
      Enter(phase_ == kBefore ? kOther : kAfter);
    }
  }

  // Seconds for one step; 0: not measured.
  double whole_seconds() const { return Seconds(false); }
  double staged_seconds() const { return Seconds(true); }

 private:
  enum Phase : uint8_t { kRest, kBefore, kOther, kAfter };

  static constexpr double kShare = 0.005;  // of the time goes into comparing
  // What a step that runs the other way costs at least, in steps: when all is sure, and while there is doubt.
  static constexpr double kSure = 0.25, kDoubtful = 0.01;
  // Standard errors: to stage after the first comparison, and after later ones, which are many.
  static constexpr double kFirst = 1.7, kLater = 2.5;
  static constexpr double kTie = 1.5;  // and to close a stage that has room
  static constexpr double kAlone = 3;  // and to do so by fewer than kFew comparisons
  static constexpr size_t kFew = 3;
  static constexpr double kRefuted = 3;     // standard errors
  static constexpr double kFinest = 0.003;  // no measurement is surer
  // kOutlier: a step counts as at most this many standard deviations from the median of its block; kOrdinary: but a
  // deviation below this share of the step always counts in full.
  static constexpr double kOutlier = 3.5, kOrdinary = 0.3;
  static constexpr double kClear = 0.25, kClearErrors = 4;  // a gain or a loss that a few steps are enough for
  static constexpr size_t kWindow = 16;                     // comparisons
  static constexpr double kTick = 1e-9;                     // no step takes less
  static constexpr size_t kFilling = 16;  // quarters of a comparison in which a buffer fills, if it does
  static constexpr size_t kFewest = 3;    // steps of a trial, or of a block that is compared early

  // What one comparison measured.
  struct Compared {
    double gain = 0;    // the logarithm of how many times as fast steps are staged, which for small gains is the gain
    double weight = 0;  // 1 / weight: its variance, in variances of a step
    double squares = 0, freedom = 0;  // the variance of a step, relative to it, is squares / freedom
    double doubt = 0;                 // how far the two blocks of one way are apart, beyond what the variance explains
    double whole = 0, staged = 0;     // seconds of a step
    double lasted = 0;  // by how many steps the block of the other way was longer than as many of this way
  };

  // Without memory for a block it throws, and has changed nothing.
  void Enter(Phase phase) {
    if (phase != kRest) {
      const bool staged = phase == kOther ? !staged_ : staged_;
      // A stage that was just opened has not yet filled its buffer; in a trial that is part of what is measured. A buffer that
      // is hardly ever full is not waited for.
      const size_t ahead = std::min(phase == kOther && staged ? trial_ahead_ : ahead_, kFilling * quarter_);
      blocks_.emplace_back(staged, staged && (phase == kAfter || tried_) ? 1 + ahead : 1, ahead);
    }
    phase_ = phase;
    ++changes_;
  }
  // How many steps of a block that is not a trial count.
  size_t Wanted(const StepBlock& block) const {
    if (!block.waits()) return 2 * quarter_;
    if (!decided_) return block.staged() ? quarter_ : staged_ ? 2 * quarter_ - 1 : quarter_ - 1;
    return block.staged() == staged_ || tried_ ? 2 * quarter_ : quarter_;
  }
  // Whether a block has all its steps. Of a caller that waits, their ends are known soon.
  bool Full(const StepBlock& block, size_t begun) const {
    if (!block.known()) return false;
    if (!block.waits()) return block.counted() >= Wanted(block);
    // The items that a stage has begun will be steps of its trial.
    if (trial()) return block.started() >= kFewest && block.started() + begun >= 2 * quarter_;
    return block.started() >= block.from() + Wanted(block);
  }
  // Whether what is known of a trial leaves no doubt already.
  bool Clear() const {
    if (blocks_[0].counted() < kFewest || blocks_[1].counted() < kFewest) return false;
    const Compared now = Compare();
    const double enough = kClear + kClearErrors * std::sqrt(now.squares / now.freedom / now.weight);
    return now.gain > enough || Compare(0).gain < -enough;  // beside its first steps a trial reads more than its share
  }

  // What the blocks say. `beside`: by so many items that are read beside it a step of a trial may take longer.
  Compared Compare() const { return Compare(trial_ahead_); }
  Compared Compare(size_t beside) const {
    struct Pace {
      double mean, steps;
    };
    Compared out;
    std::vector<StepBlock::Took> took;
    Times off;
    for (const StepBlock& block : blocks_) {
      took.push_back(block.took());
      const double middle = Median(took.back().rest), usual = std::max(kTick, middle + Mean(took.back().got));
      for (double t : took.back().rest) off.push_back(std::abs(t - middle) / usual);
    }
    const double most = std::max(kOrdinary, kOutlier * 1.4826 * Median(std::move(off)));
    std::vector<Pace> paces;
    for (size_t n = 0; n < took.size(); ++n) {
      StepBlock::Took& of = took[n];
      const double middle = Median(of.rest), bound = most * (middle + Mean(of.got));
      const double read =
          n == 1 && blocks_[1].staged() && !staged_ ? static_cast<double>(beside) * Mean(took[0].got) : 0;
      double longer = 0;
      for (size_t i = 0; i < of.rest.size(); ++i) {
        const double usual = std::clamp(of.rest[i], middle - bound, middle + bound);
        longer += std::clamp(of.rest[i] - usual, 0.0, read);
        of.rest[i] = usual + of.got[i];
      }
      const double mean = std::max(kTick, Mean(of.rest)), steps = static_cast<double>(of.rest.size());
      for (double t : of.rest) out.squares += std::pow((t - mean) / mean, 2);
      out.freedom += steps - 1;
      paces.push_back({mean + longer / steps, steps});
    }
    double here = paces[0].mean, variance = 1 / paces[0].steps;
    out.freedom = std::max(1.0, out.freedom);
    if (paces.size() > 2) {
      here = (paces[0].mean + paces[2].mean) / 2;
      variance = (1 / paces[0].steps + 1 / paces[2].steps) / 4;
      const double apart = std::abs(paces[0].mean - paces[2].mean) / here;
      out.doubt = std::max(0.0, apart / 2 - 2 * std::sqrt(out.squares / out.freedom * variance));
    }
    out.lasted = blocks_[1].waits() ? blocks_[1].lasted() / here - static_cast<double>(blocks_[1].started() - 1) : 0;
    out.weight = 1 / (variance + 1 / paces[1].steps);
    (staged_ ? out.staged : out.whole) = here;
    (staged_ ? out.whole : out.staged) = paces[1].mean;
    out.gain = std::log(out.whole / out.staged);
    return out;
  }

  // What the comparisons from number `from` up to `to` say together.
  Gain Together(size_t from, size_t to) const {
    double squares = 0, freedom = 0, weight = 0, sum = 0, doubt = 0, spread = 0;
    for (const Compared& c : window_) squares += c.squares, freedom += c.freedom;
    for (size_t i = from; i < to; ++i) {
      const Compared& c = window_[i];
      weight += c.weight, sum += c.weight * c.gain, doubt += std::pow(c.weight * c.doubt, 2);
    }
    const double gain = sum / weight;
    double variance = squares / freedom;
    for (size_t i = from; i < to; ++i) spread += window_[i].weight * std::pow(window_[i].gain - gain, 2);
    // Comparisons that differ by more than their steps do: then that is what is not known.
    if (to - from > 2) variance = std::max(variance, spread / static_cast<double>(to - from - 1));
    return {gain, std::max(kFinest, std::sqrt(variance / weight + doubt / (weight * weight)))};
  }

  static bool Sure(const Gain& known) {
    const double doubt = kLater * known.error;
    return known.gain > doubt || known.gain < kWorth - doubt;
  }
  // What a step costs that runs the other way, in steps.
  double Price() const {
    const double longer = (staged_ ? gain_.gain : -gain_.gain) + gain_.error;
    return std::max(std::expm1(std::max(0.0, longer)), Sure(gain_) ? kSure : kDoubtful);
  }

  void Decide() {
    window_.push_back(Compare());
    const double newest = window_.back().gain;
    if (decided_ && blocks_[1].staged() && !staged_)
      saved_ -= std::max(0.0, window_.back().lasted - price_ * static_cast<double>(blocks_[1].started()));
    if (tried_) {  // what trials say is not put together with what a stage that runs on does
      window_.erase(window_.begin(), window_.end() - 1);
      if (decided_ && newest <= 0) saved_ -= trying_ * price_;  // the steps since then ran the wrong way
    }
    if (window_.size() > kWindow) window_.pop_front();
    const size_t last = window_.size() - 1;
    if (last > 0) {
      const Gain before = Together(0, last), now = Together(last, last + 1);
      if (std::abs(before.gain - now.gain) > kRefuted * std::hypot(before.error, now.error))
        window_.erase(window_.begin(), window_.end() - 1);
    }
    gain_ = Together(0, window_.size());
    const double enough = std::max(kWorth, (decided_ ? kLater : kFirst) * gain_.error);
    const bool trial = blocks_[1].staged();
    cost_[trial ? 1 : 0] = std::max(trial ? 2 * quarter_ : quarter_ + 1, blocks_[1].started());
    const bool few = staged_ && room_ && window_.size() < kFew;
    staged_ = gain_.gain > (!staged_ ? enough : room_ ? -(few ? kAlone : kTie) * gain_.error : 0);
    again_ = few && staged_ && gain_.gain <= -kTie * gain_.error;
    decided_ = true;
    price_ = Price();
    tried_ = trial && staged_;
    trying_ = 0;
    ++comparisons_;
    blocks_.clear();
    Enter(kRest);
  }

  double Seconds(bool staged) const {
    double sum = 0;
    for (const Compared& c : window_) sum += staged ? c.staged : c.whole;
    if (!window_.empty()) return sum / static_cast<double>(window_.size());
    for (const StepBlock& block : blocks_) {
      if (block.staged() != staged || block.counted() == 0) continue;
      const StepBlock::Took took = block.took();
      return Median(took.rest) + Mean(took.got);
    }
    return 0;
  }

  size_t ahead_, trial_ahead_;
  size_t quarter_;  // of the steps of a comparison
  bool room_;
  bool staged_, decided_ = false;
  bool tried_;          // staged, and only a trial has said so, or none
  double trying_ = 0;   // steps that ran staged since then
  bool again_ = false;  // seems to lose, by too few comparisons
  Phase phase_ = kRest;
  std::deque<StepBlock> blocks_;  // of this comparison
  std::deque<Compared> window_;   // the last comparisons
  size_t cost_[2];                // steps of a comparison that run the other way, if that is whole, or staged
  Gain gain_;
  double price_ = 1;  // of a step that runs the other way, in steps
  double saved_ = 0;  // what comparing may cost by now, in steps
  uint64_t changes_ = 0, comparisons_ = 0;
};

}  // namespace engine::detail
