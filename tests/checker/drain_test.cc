#include "drain_model.h"

#include <gtest/gtest.h>

#include "report.h"

namespace checker {
namespace {

Outcome Explore(const DrainScenario& scenario) {
  DrainModel model(scenario);
  Explorer explorer(model);
  return explorer.Run();
}

void ExpectCaught(DrainScenario scenario, DrainFault fault, const char* rule) {
  ReportHolds(Explore(scenario));
  scenario.fault = fault;
  ReportCaught(Explore(scenario), rule);
}

constexpr char kTooEarly[] = "WaitAll returned before an op ended";

TEST(WaitAll, WaitsForEveryPushThatHadReturned) {
  ReportHolds(Explore({.pushes = {2}, .waits = 1}));
  ReportHolds(Explore({.pushes = {1, 1}, .waits = 1}));
}
TEST(WaitAll, CallsOverlap) { ReportHolds(Explore({.pushes = {1, 1}, .waits = 2})); }

TEST(WaitAll, ARefusedPushTakesItsCountBack) { ReportHolds(Explore({.pushes = {1}, .waits = 1, .refusal = true})); }

TEST(WaitAll, MutantOneParityMissesAStraggler) {
  ExpectCaught({.pushes = {1}, .waits = 2}, DrainFault::kOneParity, kTooEarly);
}
TEST(WaitAll, MutantPushedFirstIsCaught) {
  ExpectCaught({.pushes = {1, 1}, .waits = 1}, DrainFault::kPushedFirst, kTooEarly);
}
TEST(WaitAll, MutantNoHeavyFenceIsCaught) {
  ExpectCaught({.pushes = {1}, .waits = 1}, DrainFault::kNoHeavyFence, "a WaitAll sleeps");
}
TEST(WaitAll, MutantUnfencedLookIsCaught) {
  ExpectCaught({.pushes = {2}, .waits = 1}, DrainFault::kUnfencedLook, "a WaitAll sleeps");
}
TEST(WaitAll, MutantRefusalUnnotedIsCaught) {
  ExpectCaught({.pushes = {}, .waits = 1, .refusal = true}, DrainFault::kRefusalUnnoted, "a WaitAll sleeps");
}

}  // namespace
}  // namespace checker
