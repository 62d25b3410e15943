#include <gtest/gtest.h>

#include "report.h"
#include "retire_model.h"

namespace checker {
namespace {

Outcome Explore(const RetireScenario& scenario) {
  RetireModel model(scenario);
  Explorer explorer(model);
  return explorer.Run();
}

void ExpectCaught(RetireScenario scenario, RetireFault fault) {
  ReportHolds(Explore(scenario));
  scenario.fault = fault;
  ReportCaught(Explore(scenario), "somebody sleeps although all has ended");
}

TEST(Retirement, WhoeverWaitsIsTold) {
  ReportHolds(Explore({.ops = 2, .waits = 1}));
  ReportHolds(Explore({.ops = 2, .parks = true}));
  ReportHolds(Explore({.ops = 2, .waits = 1, .parks = true}));
  ReportHolds(Explore({.ops = 1, .waits = 2}));
}
TEST(Retirement, NobodyIsAskedForWhatNobodyAwaits) { ReportHolds(Explore({.ops = 2})); }

TEST(Retirement, MutantSleeperNotWokenIsCaught) { ExpectCaught({.ops = 1, .waits = 1}, RetireFault::kSleeperNotWoken); }
TEST(Retirement, MutantWaitAllUnnoticedIsCaught) {
  ExpectCaught({.ops = 1, .waits = 1}, RetireFault::kWaitAllUnnoticed);
}
TEST(Retirement, MutantNoHeavyFenceIsCaught) { ExpectCaught({.ops = 1, .waits = 1}, RetireFault::kNoHeavyFence); }
TEST(Retirement, MutantNoSecondLookIsCaught) { ExpectCaught({.ops = 1, .parks = true}, RetireFault::kNoSecondLook); }
TEST(Retirement, MutantAnnouncedTooLateIsCaught) {
  ExpectCaught({.ops = 1, .parks = true}, RetireFault::kAnnouncedTooLate);
}

}  // namespace
}  // namespace checker
