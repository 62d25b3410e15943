// WaitingProgram: a program on a virtual clock that waits for each of its steps, which a guard of SmartStage watches.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <numbers>
#include <utility>
#include <vector>

#include "random_step.h"
#include "staging_guard.h"

namespace engine::test {

using detail::kTrialCapacity;
using detail::StagingGuard;
using Ran = SmartStep::Ran;
using Draw = std::function<double()>;

constexpr int kSteps = 16;  // of the first comparison; with the eight that are timed before the cut, 24

inline double Exactly() { return 1; }
// Factors around 1, normally distributed on a logarithmic scale.
inline Draw Noise(Random& random, double deviation) {
  return [&random, deviation] {
    const auto uniform = [&] { return (static_cast<double>(random.Below(1 << 30)) + 0.5) / (1 << 30); };
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
    return std::exp(deviation * normal);
  };
}

// A program that waits for each of its steps. Whole, it reads and trains in turn; staged, a stage with one thread reads ahead.
// `read`: seconds of reading an item; `whole`, `staged`: of training with it, in a step that runs so.
class WaitingProgram {
 public:
  WaitingProgram(Draw read, double whole, double staged, Draw jitter = Exactly, size_t capacity = 1, int steps = kSteps,
                 bool room = false)
      : guard_(capacity + 3, std::min(capacity, kTrialCapacity) + 3, static_cast<size_t>(steps), room),
        read_(std::move(read)),
        whole_(whole),
        staged_(staged),
        jitter_(std::move(jitter)),
        capacity_(capacity) {}
  WaitingProgram(double read, double whole, double staged, Draw jitter = Exactly, size_t capacity = 1)
      : WaitingProgram([read] { return read; }, whole, staged, std::move(jitter), capacity) {}

  void Step() {
    if (open_ && !closing_) Make(now_);
    if (guard_.watching()) guard_.Look(ready_.size());
    if (!guard_.on() && open_) closing_ = true;
    if (closing_ && ready_.empty()) open_ = closing_ = false;
    if (guard_.on() && !open_) Open();
    const double asked = now_;
    Ran ran = Ran::kWhole;
    if (open_) {
      ran = closing_ ? Ran::kDrained : Ran::kStaged;
      while (ready_.empty()) Make(made_);
      now_ = std::max(now_, ready_.front());
      ready_.pop_front();
      taken_.push_back(now_);
    } else {
      now_ += read_() * jitter_();
    }
    const double begun = now_;
    now_ += (open_ ? staged_ : whole_) * jitter_() * slowness_;
    if (open_ && !closing_ && drag_ > 0) {
      const size_t before = count_;
      Make(now_);
      now_ += static_cast<double>(count_ - before) * drag_ * jitter_();
    }
    ++steps_;
    in_stage_ += open_;
    if (guard_.decided()) after_ += now_ - asked, ++(open_ ? staged_steps_ : whole_steps_);
    detail::StepBlock* block = guard_.watching() ? guard_.BlockOf(ran) : nullptr;
    if (block) block->Expect(), block->ends()->Add(block->started(), now_);
    guard_.Started(ran, asked, begun, begun - asked);
    if (guard_.due()) guard_.Begin();
    now_ += own_;
  }
  WaitingProgram& Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
    return *this;
  }
  // Steps until it has decided.
  int Decide() {
    while (!guard_.decided()) {
      Step();
      if (guard_.watching()) guard_.Look(ready_.size());
    }
    return steps_;
  }
  void Pause(double seconds) { now_ += seconds; }
  void Own(double seconds) { own_ = seconds; }  // work of the caller's after each step
  // So much longer takes a step for each item that is read beside it: the two fight for a core.
  WaitingProgram& Drag(double seconds) {
    drag_ = seconds;
    return *this;
  }
  // So long takes it until a stage that was opened begins to read.
  WaitingProgram& Starts(double seconds) {
    starts_ = seconds;
    return *this;
  }
  // What whole steps that are compared say from now on.
  WaitingProgram& Room(bool room) {
    guard_.SetRoom(room);
    return *this;
  }
  double now() const { return now_; }
  // From now on training takes so long.
  void Becomes(double whole, double staged) { whole_ = whole, staged_ = staged; }
  void Slower(double factor) { slowness_ *= factor; }
  bool staged() const { return guard_.staged(); }
  const StagingGuard& guard() const { return guard_; }
  int steps() const { return steps_; }
  // The share of steps that ran staged.
  double staged_share() const { return static_cast<double>(in_stage_) / steps_; }
  // What steps since the first decision took longer, of all their time, because they ran in the way that takes `longer` by each.
  double cost(double longer) const { return std::abs(longer) * (longer > 0 ? staged_steps_ : whole_steps_) / after_; }

 private:
  void Open() {
    open_ = true;
    made_ = now_ + starts_;
    ready_.clear(), taken_.clear();
    count_ = 0;
    Make(now_);
  }
  // The stage begins the items that it has time and room for until `until`.
  void Make(double until) {
    const size_t places = (guard_.trial() ? std::min(capacity_, kTrialCapacity) : capacity_) + 1;
    for (;;) {
      if (count_ >= taken_.size() + places) return;
      const double begin = count_ < places ? made_ : std::max(made_, taken_[count_ - places]);
      if (begin > until) return;
      ready_.push_back(made_ = begin + read_() * jitter_());
      ++count_;
    }
  }

  StagingGuard guard_;
  Draw read_;
  double whole_, staged_, slowness_ = 1, own_ = 0, drag_ = 0, starts_ = 0;
  Draw jitter_;
  size_t capacity_, count_ = 0;
  bool open_ = false, closing_ = false;
  double now_ = 0, made_ = 0;
  std::deque<double> ready_;
  std::vector<double> taken_;
  int steps_ = 0, in_stage_ = 0;
  double after_ = 0, staged_steps_ = 0, whole_steps_ = 0;  // since the first decision
};

}  // namespace engine::test
