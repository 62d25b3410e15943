// The guard of SmartStage on virtual clocks: which way it chooses, and after how many steps.
#include "staging_guard.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>

#include "partition.h"
#include "random_step.h"
#include "support/seed.h"

namespace engine::test {
namespace {

using detail::Cut;
using detail::StagingGuard;
using detail::StepGraph;

// A stage with a buffer in front of the rest, step by step: when steps begin.
class VirtualPipeline {
 public:
  VirtualPipeline(double stage, double rest, size_t capacity) : stage_(stage), rest_(rest), capacity_(capacity) {}
  // The time from the beginning of this step to the beginning of the next.
  double Step() {
    const size_t i = taken_.size();
    // Item i is begun when the one before is done and, with what is buffered and one in hand, there is a place for it.
    double begin = made_.empty() ? 0 : made_.back();
    if (i > capacity_) begin = std::max(begin, taken_[i - capacity_ - 1]);
    made_.push_back(begin + stage_);
    const double ready = std::max(made_.back(), free_);
    taken_.push_back(ready);
    const double before = free_;
    free_ = ready + rest_;
    return free_ - before;
  }

 private:
  double stage_, rest_, free_ = 0;
  size_t capacity_;
  std::vector<double> made_, taken_;
};

TEST(StagingGuardTest, TheGuardChoosesTheFasterWayExactly) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 7);
  int on = 0, off = 0;
  for (int i = 0; i < 2000; ++i) {
    StepGraph graph = RandomStep(random);
    const Cut cut = Partition(graph, {.seconds = 1e-6});
    if (cut.staged.empty()) continue;
    // What the machine really does differs from what was predicted: no cores, slow memory, costs that were wrong.
    const double drag = random.OneIn(2) ? 1 : 0.5 + static_cast<double>(random.Below(200)) / 100;
    const size_t capacity = 1 + random.Below(6);
    const double stage = cut.stage_seconds * drag, rest = cut.main_seconds * drag;
    const double staged = std::max(stage, rest), whole = cut.serial_seconds;
    StagingGuard guard(static_cast<int>(capacity) + 3, 4);
    std::optional<VirtualPipeline> pipeline;
    std::optional<detail::Ends> ends(std::in_place);
    double now = 0;
    while (!guard.decided()) {
      if (guard.on() && !pipeline) pipeline.emplace(stage, rest, capacity);
      const double begin = now;
      ends->Add(guard.started(), now += guard.on() ? pipeline->Step() : whole);
      if (!guard.Started(*ends, begin, begin)) continue;
      ends.emplace();
      pipeline.reset();
    }
    // As fast as each other, or nearly: either is right.
    if (std::abs(staged - whole) < 0.03 * whole) continue;
    EXPECT_EQ(guard.on(), staged < whole)
        << staged << " " << whole << " measured " << guard.staged_seconds() << " " << guard.whole_seconds();
    ++(guard.on() ? on : off);
  }
  EXPECT_GT(on, 100);
  EXPECT_GT(off, 100);
}

// A program that keeps `depth` steps in flight: when they end. Whole, the caller reads, and parsing runs beside the training
// of the steps before, or, on one `worker`, in turn with it; staged, the stage reads and parses, one item after the other.
class VirtualProgram {
 public:
  VirtualProgram(double read, double parse, double train, size_t capacity, size_t depth, bool one_worker)
      : read_(read), parse_(parse), train_(train), capacity_(capacity), depth_(depth), one_worker_(one_worker) {}
  // Starts a step, and returns when it will end.
  double Start(bool staged) {
    if (staged != staged_) made_.clear(), taken_.clear();
    staged_ = staged;
    if (ends_.size() >= depth_) now_ = std::max(now_, ends_[ends_.size() - depth_]);
    const double before = ends_.empty() ? 0 : ends_.back();
    double ready = 0;
    if (staged) {
      const size_t i = taken_.size();
      double begin = made_.empty() ? now_ : made_.back();
      if (i > capacity_) begin = std::max(begin, taken_[i - capacity_ - 1]);
      made_.push_back(begin + read_ + parse_);
      ready = now_ = std::max(now_, made_.back());
      taken_.push_back(now_);
    } else {
      now_ += read_;
      ready = (one_worker_ ? std::max(now_, before) : now_) + parse_;
    }
    ends_.push_back(std::max(ready, before) + train_);
    return ends_.back();
  }
  double now() const { return now_; }
  // Of one step, in the long run.
  double Pace(bool staged) {
    for (int i = 0; i < 300; ++i) Start(staged);
    const double from = ends_.back();
    for (int i = 0; i < 300; ++i) Start(staged);
    return (ends_.back() - from) / 300;
  }

 private:
  double read_, parse_, train_;
  size_t capacity_, depth_;
  bool one_worker_;
  bool staged_ = false;
  double now_ = 0;
  std::vector<double> made_, taken_, ends_;
};

TEST(StagingGuardTest, TheGuardChoosesTheFasterWayForCallersThatDoNotWait) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 9);
  int on = 0, off = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto cost = [&](uint64_t most) { return static_cast<double>(1 + random.Below(most)); };
    const double read = cost(1000), parse = cost(1000), train = cost(1000);
    const size_t capacity = 1 + random.Below(4), depth = 1 + random.Below(40);
    const bool one_worker = random.OneIn(2);
    const auto program = [&] { return VirtualProgram(read, parse, train, capacity, depth, one_worker); };
    const double staged = program().Pace(true), whole = program().Pace(false);
    if (std::abs(staged - whole) < 0.1 * whole) continue;
    StagingGuard guard(static_cast<int>(capacity) + 3, 16);
    VirtualProgram real = program();
    std::optional<detail::Ends> ends(std::in_place);
    std::vector<double> coming;
    size_t seen = 0;
    while (!guard.decided()) {
      const double asked = real.now();
      coming.push_back(real.Start(guard.on()));
      for (; seen < coming.size() && coming[seen] <= real.now(); ++seen) ends->Add(seen, coming[seen]);
      if (!guard.Started(*ends, asked, real.now())) continue;
      ends.emplace();
      coming.clear();
      seen = 0;
    }
    EXPECT_EQ(guard.on(), staged < whole)
        << read << " " << parse << " " << train << " capacity " << capacity << " depth " << depth << " one worker "
        << one_worker << ": " << staged << " " << whole << " measured " << guard.staged_seconds() << " "
        << guard.whole_seconds();
    ++(guard.on() ? on : off);
  }
  EXPECT_GT(on, 100);
  EXPECT_GT(off, 100);
}

TEST(StagingGuardTest, APauseOfTheCallersSaysNothingOfEitherWay) {
  for (const bool faster : {false, true}) {
    StagingGuard guard(2, 8);
    const double whole = 1, staged = faster ? 0.9 : 1.1;
    double now = 0;
    std::optional<detail::Ends> ends(std::in_place);
    int paused = 0;
    while (!guard.decided()) {
      const bool better = guard.on() == faster;
      if (better && guard.started() == 4) now += 100, ++paused;  // in every turn of the better way
      const double asked = now += 0.25;                          // the caller's own work
      now += guard.on() ? staged : whole;
      ends->Add(guard.started(), now);
      if (guard.Started(*ends, asked, asked)) ends.emplace();
    }
    EXPECT_GE(paused, 1);
    EXPECT_EQ(guard.on(), faster);
    EXPECT_NEAR(guard.staged_seconds(), staged + 0.25,
                0.25 / 3 + 1e-9);  // its own work in that step goes with the pause
    EXPECT_NEAR(guard.whole_seconds(), whole + 0.25, 0.25 / 3 + 1e-9);
  }
}

// Steps of the guard until it has decided, for a caller that waits for each step, and whether it stays staged. `read`: how
// long reading each item takes; a stage hides it. The eight steps that are timed before the cut have told the guard of it.
std::pair<int, bool> StepsToDecide(double whole, double staged, const std::function<double()>& jitter,
                                   double predicted = 0, const std::function<double()>& read = nullptr) {
  StagingGuard guard(4, 16, predicted);
  for (int i = 0; read && i < 7; ++i) guard.Got(read());
  std::optional<detail::Ends> ends(std::in_place);
  double now = 0;
  int steps = 0;
  while (!guard.decided()) {
    if (guard.Look(*ends)) ends.emplace();
    if (guard.decided()) break;
    const double asked = now, item = read ? read() : 0, got = guard.on() ? 0 : item;
    const double seconds = got + (guard.on() ? staged : whole) * jitter();
    const bool over = guard.Started(*ends, asked, asked + got, got);
    now += seconds;
    if (over) {
      ends.emplace();
    } else {
      ends->Add(guard.started() - 1, now);
    }
    ++steps;
  }
  return {steps, guard.on()};
}

// With the eight steps that are timed before the cut that makes 24.
TEST(StagingGuardTest, AClearGainIsDecidedWithinSixteenSteps) {
  const auto even = [] { return 1.0; };
  EXPECT_EQ(StepsToDecide(1, 0.7, even), std::pair(16, true));
  EXPECT_EQ(StepsToDecide(1, 1.2, even), std::pair(16, false));
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 11);
  const auto uneven = [&] { return 0.99 + static_cast<double>(random.Below(200)) / 10000; };  // by one percent
  for (int i = 0; i < 200; ++i) {
    const auto [steps, on] = StepsToDecide(1, i % 2 ? 0.8 : 1.25, uneven);
    EXPECT_LE(steps, 16);
    EXPECT_EQ(on, i % 2 == 1);
  }
}

// A CSV file is read in blocks: one item of six takes 8 ms, the others 2, beside a step of 30. What the stage hides is the
// mean of them; a few steps that take alike are just those without a block.
TEST(StagingGuardTest, WhatABlockOfTheSourceTakesCountsForAllItsItems) {
  for (int first = 0; first < 6; ++first) {
    int item = first;
    const auto read = [&] { return ++item % 6 == 0 ? 8.0 : 2.0; };
    const auto [steps, on] = StepsToDecide(
        30, 30.6, [] { return 1.0; }, 0.09, read);
    EXPECT_TRUE(on) << first;
    EXPECT_LE(steps, 16) << first;
    item = first;
    EXPECT_FALSE(StepsToDecide(
                     30, 34.5, [] { return 1.0; }, 0.09, read)
                     .second)
        << first;
  }
}

// Every seventh step is met by other work on the machine, and takes up to twice as long.
TEST(StagingGuardTest, OtherWorkOnTheMachineIsTakenForNeitherWay) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 13);
  const auto jitter = [&] {
    const double even = 0.99 + static_cast<double>(random.Below(200)) / 10000;
    return random.OneIn(7) ? even * (1.2 + static_cast<double>(random.Below(80)) / 100) : even;
  };
  int right = 0, late = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto [steps, on] = StepsToDecide(1, i % 2 ? 0.92 : 1.08, jitter, 0.08);
    right += on == (i % 2 == 1);
    late += steps > 16;
  }
  EXPECT_GT(right, 990);
  EXPECT_LT(late, 500);
}

TEST(StagingGuardTest, WhereNothingCanBeMeasuredThePredictionDecides) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 14);
  const auto jitter = [&] { return 0.6 + static_cast<double>(random.Below(8000)) / 10000; };
  int on = 0, off = 0;
  for (int i = 0; i < 500; ++i) {
    on += StepsToDecide(1, 0.9, jitter, 0.1).second;
    off += !StepsToDecide(1, 0.995, jitter, 0.005).second;
  }
  EXPECT_GT(on, 400);
  EXPECT_GT(off, 300);
}

// Whatever was predicted: where steps can be measured, a stage that slows them is dropped, and so is one that brings nothing.
TEST(StagingGuardTest, AWrongPredictionDoesNotOutweighWhatWasMeasured) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 15);
  const auto uneven = [&] { return 0.98 + static_cast<double>(random.Below(400)) / 10000; };  // by two percent
  for (const double predicted : {0.02, 0.1, 0.5}) {
    int wrong = 0;
    for (int i = 0; i < 500; ++i) {
      wrong += StepsToDecide(1, 1.05, uneven, predicted).second;
      wrong += !StepsToDecide(1, 0.9, uneven, predicted).second;
    }
    EXPECT_LE(wrong, 10) << predicted;
  }
  EXPECT_FALSE(StepsToDecide(
                   1, 1, [] { return 1.0; }, 0.1)
                   .second);
  // However uneven: a stage that is ten times as slow is not what was predicted.
  const auto wild = [&] { return 0.3 + static_cast<double>(random.Below(14000)) / 10000; };
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(StepsToDecide(1, 10, wild, 0.02).second);
}

TEST(StagingGuardTest, UnevenStepsAreMeasuredForLonger) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 12);
  const auto uneven = [&] { return 0.7 + static_cast<double>(random.Below(6000)) / 10000; };
  int longer = 0;
  for (int i = 0; i < 100; ++i) longer += StepsToDecide(1, 0.9, uneven).first > 20;
  EXPECT_GT(longer, 80);
}

TEST(StagingGuardTest, WhatIsWithinTheNoiseIsNoReasonToStage) {
  for (const double gain : {0.01, 0.1}) {
    StagingGuard guard(2, 8);
    double now = 0;
    std::optional<detail::Ends> ends(std::in_place);
    for (int turn = 0; !guard.decided();) {
      const double asked = now;
      now += (guard.on() ? 1 - gain : 1) * (turn < 2 ? 1.02 : 1);  // the machine has become faster by 2 %
      ends->Add(guard.started(), now);
      if (!guard.Started(*ends, asked, asked)) continue;
      ends.emplace();
      ++turn;
    }
    EXPECT_EQ(guard.on(), gain == 0.1);
  }
}

}  // namespace
}  // namespace engine::test
