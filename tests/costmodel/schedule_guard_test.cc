// The guard and the samples on numbers alone: no clock is in here.
#include "schedule_guard.h"

#include "samples.h"
#include "support/engine_test.h"
#include "support/seed.h"

namespace engine::costmodel {
namespace {

using test::Random;
using Verdict = ScheduleGuard::Verdict;

// Steps one after another; `of(with_new, step)` says how long each takes.
template <class F>
uint64_t Drive(ScheduleGuard& guard, F&& of) {
  uint64_t steps = 0;
  for (; guard.verdict() == Verdict::kOpen && steps < 10000; ++steps) {
    const ScheduleGuard::Turn turn = guard.Next();
    if (const double nanos = of(turn.with_new, steps); nanos > 0) {
      guard.Add(turn.id, nanos);
    } else {
      guard.Void(true);
    }
  }
  return steps;
}

TEST(ScheduleGuardTest, KeepsWhatIsFasterAndGoesBackFromWhatIsSlower) {
  SCOPED_TRACE(test::SeedLine());
  for (const double speed : {0.5, 0.9, 1.1, 2.0}) {
    ScheduleGuard guard;
    Random random(test::Seed());
    const uint64_t steps = Drive(guard, [&](bool with_new, uint64_t) {
      return (with_new ? speed : 1.0) * (1000 + static_cast<double>(random.Below(50)));
    });
    EXPECT_EQ(guard.verdict(), speed < 1 ? Verdict::kKeep : Verdict::kGoBack) << speed;
    EXPECT_EQ(steps, 2 * (ScheduleGuard::kWarmUps + ScheduleGuard::kPairs));
    EXPECT_NEAR(guard.ratio(), speed, 0.06);
  }
}

// What is in force after the comparison is not slower than what was before by more than the guard lets pass.
TEST(ScheduleGuardTest, ThePolicyNeverLeavesAPlanSlower) {
  SCOPED_TRACE(test::SeedLine());
  Random random(test::Seed());
  for (int i = 0; i < 300; ++i) {
    const double speed = 0.8 + 0.001 * static_cast<double>(random.Below(500));
    ScheduleGuard guard;
    Drive(guard, [&](bool with_new, uint64_t) {
      return (with_new ? speed : 1.0) * (1000 + static_cast<double>(random.Below(30)));
    });
    const bool kept = guard.verdict() == Verdict::kKeep;
    EXPECT_FALSE(kept && speed > ScheduleGuard::kTolerance + 0.03) << speed;
    EXPECT_FALSE(!kept && speed < 0.97) << speed;
  }
}

TEST(ScheduleGuardTest, DriftFallsOnBoth) {
  // Steps get slower all the time, whichever they are: nothing is held against the new schedule, which is 2 % faster.
  ScheduleGuard guard;
  Drive(guard,
        [](bool with_new, uint64_t step) { return (with_new ? 0.98 : 1.0) * (1000 + 50 * static_cast<double>(step)); });
  EXPECT_EQ(guard.verdict(), Verdict::kKeep);
}

TEST(ScheduleGuardTest, OutliersDecideNothing) {
  ScheduleGuard guard;
  Drive(guard, [](bool with_new, uint64_t step) {
    return with_new && step % 5 == 0 ? 1e6 : with_new ? 900.0 : 1000.0;
  });
  EXPECT_EQ(guard.verdict(), Verdict::kKeep);
}

TEST(ScheduleGuardTest, FailedStepsDoNotCountAndOverlappingOnesEndInAnyOrder) {
  ScheduleGuard guard;
  std::vector<ScheduleGuard::Turn> open;
  Random random(3);
  for (int i = 0; guard.verdict() == Verdict::kOpen && i < 1000; ++i) {
    open.push_back(guard.Next());
    if (open.size() < 7) continue;
    const size_t at = random.Below(open.size());
    if (random.OneIn(6)) {
      guard.Void(random.OneIn(2));
    } else {
      guard.Add(open[at].id, open[at].with_new ? 800 : 1000);
    }
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
  }
  EXPECT_EQ(guard.verdict(), Verdict::kKeep);
  EXPECT_EQ(guard.pairs(), ScheduleGuard::kPairs);
  EXPECT_DOUBLE_EQ(guard.ratio(), 0.8);
}

TEST(ScheduleGuardTest, IfNoStepSucceedsItGoesBack) {
  ScheduleGuard guard;
  Drive(guard, [](bool, uint64_t) { return 0.0; });
  EXPECT_EQ(guard.verdict(), Verdict::kGoBack);
  EXPECT_EQ(guard.pairs(), 0u);
}

TEST(SamplesTest, AreRobustAndBounded) {
  Samples samples;
  for (int i = 0; i < 100000; ++i) samples.Add(i % 10 == 0 ? 1e9 : 100 + i % 7);
  const Estimate told = samples.Tell();
  EXPECT_EQ(told.samples, 100000u);
  EXPECT_GE(told.nanos, 100);
  EXPECT_LE(told.nanos, 107) << "a tenth of outliers";
  EXPECT_LE(told.spread, 7);
  std::vector<double> even{4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(EstimateOf(even).nanos, 2.5);
  EXPECT_EQ(Samples().Tell().samples, 0u);
}

TEST(SamplesTest, ADispatchIsWhatLiesBetweenReadyAndBegun) {
  // On one worker: 0 ends at 100, 1 begins at 130. On another: 2 is behind 1, which ends at 200, and begins at 250, although
  // its worker has been free since 50. Nodes of one task are not dispatched after each other.
  const Dag dag(5, std::vector<Graph::Edge>{{1, 2, Graph::Edge::Kind::kOrder}});
  const std::vector<NodeTime> times{{10, 100, 0}, {130, 200, 0}, {250, 300, 1}, {20, 50, 1}, {900, 950, 1}};
  const std::vector<uint32_t> task{0, 1, 2, 3, 2};
  EXPECT_DOUBLE_EQ(DispatchOf(dag, times, task, 5), (30.0 + 50.0) / 2 - 5);
  EXPECT_EQ(DispatchOf(dag, std::vector<NodeTime>(5), task, 5), 0);
}

}  // namespace
}  // namespace engine::costmodel
