// Each fault that dependency.h can carry is found, in a scenario that holds without it, and for the expected reason.
#include <gtest/gtest.h>

#include "check.h"
#include "report.h"

namespace checker {
namespace {

using engine::detail::Mutant;

void IsCaught(Mutant mutant, const char* text, const char* rule) {
  const Scenario scenario(text);
  ReportHolds(Check(scenario), text);
  ReportCaught(Check(scenario, mutant), rule, text);
}

constexpr char kTwoWays[] = "ordered one way on one Var and the other way on another";
constexpr char kUsedFreedOp[] = "use after free: an op's block";

TEST(DependencyProtocol, MutantSortedWithoutLockingIsCaught) {
  IsCaught(Mutant::kSortedWithoutLocking, "Wx Wy | Wx Wy", kTwoWays);
}
TEST(DependencyProtocol, MutantOrderSwapOnOneVarIsCaught) {
  IsCaught(Mutant::kOrderSwapOnOneVar, "Wx Wy | Wx Wy", kTwoWays);
}
TEST(DependencyProtocol, MutantLinkBeforePublishIsCaught) {
  IsCaught(Mutant::kLinkBeforePublish, "Wx, Wx", "a finished write hangs on its Var");
}
// The block of a finished write is pushed again as the new tail, and the old completer makes that tail idle.
TEST(DependencyProtocol, MutantDoneBeforeIdleIsCaught) {
  IsCaught(Mutant::kDoneBeforeIdle, "Wx, Wx | Wx", "an op was recycled before it ended");
}
TEST(DependencyProtocol, MutantMissingPinIsCaught) { IsCaught(Mutant::kMissingPin, "Wx, Wx", kUsedFreedOp); }
TEST(DependencyProtocol, MutantMissingCloseBiasIsCaught) {
  IsCaught(Mutant::kMissingCloseBias, "Rx | Wx", "use after free: a group");
  IsCaught(Mutant::kMissingCloseBias, "Rx | Rx | Wx", "an op became ready before an op ahead of it");
}
TEST(DependencyProtocol, MutantDroppedGrantIsCaught) {
  IsCaught(Mutant::kDroppedGrant, "Wx, Rx | Rx", "deadlock: an op never became ready");
}
TEST(DependencyProtocol, MutantForgottenHolderIsCaught) {
  IsCaught(Mutant::kForgottenHolder, "bulk:Wx, bulk:Rx, Rx", "deadlock: an op never became ready");
}
TEST(DependencyProtocol, MutantSettledLateIsCaught) {
  IsCaught(Mutant::kSettledLate, "parts:Wx, Wx, settled:x", "settled != pushed at the end");
}
TEST(DependencyProtocol, MutantTogetherOneByOneIsCaught) {
  IsCaught(Mutant::kTogetherOneByOne, "Wx, with:Wy | Wx, with:Wy", kTwoWays);
}
// The next faults are the caller's: nothing in the protocol completes an op twice.
TEST(DependencyProtocol, MutantDoubleCompletionIsCaught) {
  ReportHolds(Check(Scenario("Wx")), "Wx");
  ReportCaught(Check(Scenario("twice:Wx")), "use after free", "twice:Wx");
}
// The claim of a held op that is out before the op is registered, and a push that is then refused.
TEST(DependencyProtocol, MutantClaimBeforeItsOpIsCaught) {
  ReportHolds(Check(Scenario("del:Wx | held:Wx, Wy | Wy")));
  ReportCaught(Check(Scenario("del:Wx | early:Wx, Wy | Wy")), "an op became ready twice");
}
// A run whose last write is left to others, and which still reads.
TEST(DependencyProtocol, MutantRunWithoutAPinIsCaught) {
  ReportHolds(Check(Scenario("parts:Wx Ry")), "parts:Wx Ry");
  ReportCaught(Check(Scenario("parts:unpinned:Wx Ry")), "an op was recycled before it ended", "parts:unpinned:Wx Ry");
}

}  // namespace
}  // namespace checker
