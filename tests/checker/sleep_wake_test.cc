#include "sleep_wake_model.h"

#include <gtest/gtest.h>

#include "report.h"

namespace checker {
namespace {

Outcome Explore(const SleepScenario& scenario) {
  SleepWakeModel model(scenario);
  Explorer explorer(model);
  return explorer.Run();
}

void ExpectHolds(const SleepScenario& scenario) {
  const Outcome outcome = Explore(scenario);
  ReportHolds(outcome);
}

void ExpectCaught(SleepScenario scenario, SleepFault fault, const char* rule) {
  ReportHolds(Explore(scenario));
  scenario.fault = fault;
  ReportCaught(Explore(scenario), rule);
}

constexpr char kLost[] = "a wake was lost";
constexpr char kMiscounted[] = "a count of workers is wrong";

TEST(SleepWake, NoWakeIsLostWithOneWorker) { ExpectHolds({.posters = 1, .posts = 3, .workers = 1}); }
TEST(SleepWake, NoWakeIsLostWithTwoPosters) { ExpectHolds({.posters = 2, .posts = 1, .workers = 2}); }
TEST(SleepWake, NoWakeIsLostWithThreeWorkers) { ExpectHolds({.posters = 1, .posts = 2, .workers = 3}); }
TEST(SleepWake, NoWakeIsLostWithThreePosts) { ExpectHolds({.posters = 1, .posts = 3, .workers = 2}); }
TEST(SleepWake, AsManyOpsRunAtOnceAsThereAreWorkers) {
  ExpectHolds({.posters = 1, .posts = 2, .workers = 2, .ops_meet = true});
  ExpectHolds({.posters = 2, .posts = 1, .workers = 2, .ops_meet = true});
  ExpectHolds({.posters = 1, .posts = 3, .workers = 3, .ops_meet = true});
}

TEST(SleepWake, MutantDroppedWakeIsCaught) {
  ExpectCaught({.posters = 1, .posts = 1, .workers = 1}, SleepFault::kNoSecondLook, kLost);
}
TEST(SleepWake, MutantNoHeavyFenceIsCaught) {
  ExpectCaught({.posters = 1, .posts = 1, .workers = 1}, SleepFault::kNoHeavyFence, kLost);
}
TEST(SleepWake, MutantSearcherUntilAsleepIsCaught) {
  ExpectCaught({.posters = 1, .posts = 1, .workers = 1}, SleepFault::kSearcherUntilAsleep, kLost);
}
TEST(SleepWake, MutantNobodyPassesTheSearchOnIsCaught) {
  ExpectCaught({.posters = 1, .posts = 2, .workers = 2, .ops_meet = true}, SleepFault::kNobodyPassesOn, kLost);
}
TEST(SleepWake, MutantReliesOnASearcherUnfencedIsCaught) {
  ExpectCaught({.posters = 1, .posts = 2, .workers = 2, .ops_meet = true}, SleepFault::kReliesUnfenced, kLost);
}
// A waker that is slow to clear the flag hits the worker's next sleep, which then ends without being uncounted.
TEST(SleepWake, MutantWokenOutsideTheLockIsCaught) {
  ExpectCaught({.posters = 1, .posts = 2, .workers = 1}, SleepFault::kWokenOutsideLock, kMiscounted);
}

}  // namespace
}  // namespace checker
