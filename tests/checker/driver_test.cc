#include <gtest/gtest.h>

#include "claim_model.h"
#include "driver_model.h"
#include "report.h"

namespace checker {
namespace {

template <class Model, class S>
Outcome Explore(const S& scenario) {
  Model model(scenario);
  Explorer explorer(model);
  return explorer.Run();
}
template <class Model, class S, class Fault>
void ExpectCaught(S scenario, Fault fault, const char* rule) {
  ReportHolds(Explore<Model>(scenario));
  scenario.fault = fault;
  ReportCaught(Explore<Model>(scenario), rule);
}

constexpr char kLeft[] = "an op of the caller pool is left";

TEST(Driving, EveryOpIsRunWhileAThreadWaitsForIt) {
  ReportHolds(Explore<DriverModel>(DriverScenario{.posts = 1, .waiters = 1}));
  ReportHolds(Explore<DriverModel>(DriverScenario{.posts = 1, .waiters = 2}));
  ReportHolds(Explore<DriverModel>(DriverScenario{.posts = 2, .waiters = 2}));
  ReportHolds(Explore<DriverModel>(DriverScenario{.posts = 1, .waiters = 3}));
}
TEST(Driving, WhoIsRefusedADriverPassesItsWakeOn) {
  ReportHolds(Explore<DriverModel>(DriverScenario{.posts = 1, .waiters = 2, .inside = 1}));
  ReportHolds(Explore<DriverModel>(DriverScenario{.posts = 2, .waiters = 3, .inside = 1}));
  ReportHolds(Explore<DriverModel>(DriverScenario{.posts = 1, .waiters = 3, .inside = 2}));
}
TEST(Driving, MutantRefusedInSilenceIsCaught) {
  ExpectCaught<DriverModel>(DriverScenario{.waiters = 2, .inside = 1}, DriverFault::kRefusedInSilence, kLeft);
}
TEST(Driving, MutantNothingPassedIsCaught) {
  ExpectCaught<DriverModel>(DriverScenario{.waiters = 2}, DriverFault::kNothingPassed, kLeft);
}
TEST(Driving, MutantUsedReadEarlyIsCaught) {
  ExpectCaught<DriverModel>(DriverScenario{.waiters = 2}, DriverFault::kUsedReadEarly, kLeft);
}
TEST(Driving, MutantNoHeavyFenceIsCaught) {
  ExpectCaught<DriverModel>(DriverScenario{.waiters = 1}, DriverFault::kNoHeavyFence, kLeft);
}

TEST(Claims, AreTakenOnceWhileShutdownWalksOverThem) {
  ReportHolds(Explore<ClaimModel>(ClaimScenario{.pushes = {1}}));
  ReportHolds(Explore<ClaimModel>(ClaimScenario{.pushes = {1, 1}}));
  ReportHolds(Explore<ClaimModel>(ClaimScenario{.pushes = {1, 1}, .refused = 0, .shutdowns = 2}));
  ReportHolds(Explore<ClaimModel>(ClaimScenario{.pushes = {2}, .refused = 0, .shutdowns = 2}));
}
TEST(Claims, MutantOpenAtOnceIsCaught) {
  ExpectCaught<ClaimModel>(ClaimScenario{.pushes = {1}, .refused = 0}, ClaimFault::kOpenAtOnce, "that has no place");
}
TEST(Claims, MutantUncountedIsCaught) {
  ExpectCaught<ClaimModel>(ClaimScenario{.pushes = {2}}, ClaimFault::kUncounted, "a free block was written");
}

}  // namespace
}  // namespace checker
