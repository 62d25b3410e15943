// Order, versions and recycling: writes, readers between them, and overlapping sets of Vars.
#include <gtest/gtest.h>

#include "check.h"
#include "report.h"

namespace checker {
namespace {

void Holds(const char* text) { ReportHolds(Check(Scenario(text)), text); }
void HoldsFine(const char* text) {
  Scenario scenario(text);
  scenario.fine = true;
  ReportHolds(Check(scenario), std::string(text) + "   (fine)");
}
void HoldsSpinning(const char* text) {
  Scenario scenario(text);
  scenario.spins = true;
  ReportHolds(Check(scenario), std::string(text) + "   (spinning on locked tails)");
}

TEST(OneVar, WritesFormAChain) {
  Holds("Wx");
  Holds("Wx, Wx");
  Holds("Wx, Wx | Wx");
  Holds("Wx | Wx | Wx, Wx");
}
TEST(OneVar, FiveWritesShareRecycledBlocks) { Holds("Wx, Wx, Wx | Wx, Wx"); }
TEST(OneVar, ReadersRunTogetherBetweenWrites) {
  Holds("Wx | Rx | Rx");
  Holds("Wx, Rx | Rx, Wx");
  Holds("Rx, Wx, Rx | Rx");
  Holds("Wx, Rx | Wx, Rx");
}
TEST(OneVar, GroupsAreRecycledWhileOthersJoin) {
  Holds("Wx, Rx, Wx | Rx, Wx");
  Holds("Wx | Rx, Wx | Rx");
  Holds("Wx, Rx | Rx | Rx");
}

// Every op of one Var: a push of one access has a way of its own, and meets here nothing but its like.
TEST(OneAccess, PushersMeetOnOneVar) {
  Holds("Wx, Wx, Wx");
  Holds("Wx, Rx, Rx, Wx");
  Holds("Wx | Ux | Rx, Wx");
  Holds("Wx, Ry | Wy, Rx | Ux");
  HoldsFine("Rx, Wx | Wx");
  HoldsFine("Wx | Rx | Rx");
}
TEST(OneAccess, IsRefusedForADeletedVar) {
  Holds("del:Wx | Wx | Rx");
  Holds("Rx | del:Wx | Rx, Wx");
  Holds("Wx, del:Wx | Wx, Wx | Rx");
  HoldsSpinning("del:Wx | Rx, Wx");
  HoldsFine("del:Wx | Wx | Rx");
}
TEST(OneAccess, MeetsPushesOfSeveralVars) {
  Holds("Wx | Wx Wy | Wy");
  Holds("Wx, Ry | Rx Wy | Ry");
  Holds("Rx | Wx Ry, Wy | Wx");
  Holds("Wx Wy, del:Wy, Wx Wy, Rx");
  Holds("Wx Wy | del:Wy | Wx, Wx Wy");
}

TEST(ManyVars, OverlappingPushesAreOrderedOneWay) {
  Holds("Wx Wy | Wx Wy");
  Holds("Wx Ry | Rx Wy");
  Holds("Wx Wy | Wx Wy | Wx Wy");
  Holds("Rx Ry | Wx Ry | Rx Wy");
}
TEST(ManyVars, OverlapsFormARing) {
  Holds("Wx Ry | Wy Rz | Rx Wz");
  Holds("Wx Wy | Wy Wz | Wx Wz");
  Holds("Wx Ry, Wx | Wy Rz | Rx Wz");
}
TEST(ManyVars, ReadersOfThreeVarsMeetWriters) { Holds("Rx Ry Rz | Wx Wy Wz | Wx Ry Rz"); }
TEST(ManyVars, UpdatesAreWrites) { Holds("Ux Ry, Rx Uy | Ux Uy"); }
TEST(ManyVars, OpsOfOnePusherKeepTheirOrder) {
  Holds("Wx, Rx Wy | Wx Ry");
  Holds("Wx Wy, Wx Wy | Wx Wy");
  Holds("Rx Ry, Wx Ry | Rx Wy, Rx");
}

// A plan's run, which always writes something (its own Var): each Var goes after its last use, and ops behind it go on, while the run still uses others.
TEST(Runs, ReleaseTheirVarsOneByOne) {
  Holds("parts:Wx Wy");
  Holds("parts:Wx Wy, Wx, Wy");
  Holds("parts:Wx Ry, parts:Rx Wy");
  Holds("parts:Wx Ry, Rx | Wy");
  Holds("parts:Wx Wy | Wx Wy");
  Holds("parts:Rx Wy | Wx");
  Holds("parts:Wx Wy, settled:x | settled:y");
  Holds("parts:Wx Ry, parts:Wx Wy");
  Holds("parts:Wx Wy, Wx | Wy");
}

// The run's op and its gates: each is granted and ends by itself, and to the order of the Vars all are one.
TEST(Gates, AreRegisteredInOneStepWithTheirRun) {
  Holds("Wx, with:Wy");
  Holds("Wx, with:Wy | Wx, with:Wy");
  Holds("Wx, with:Wy | Wy, with:Wx");
  Holds("Wx, with:Ry | Rx, with:Wy");
  Holds("Wx, with:Wy | Wx Wy, Rx");
  Holds("parts:Wx Ry, with:Wz | Wx Wz | Ry");
  Holds("Rx, with:Wy, with:Rz | Wx Ry, Wz");
  HoldsFine("Wx, with:Ry | Rx, with:Wy");
  HoldsSpinning("Wx, with:Wy | Wy, with:Wx");
}
TEST(Gates, AreRefusedWithTheirRun) {
  Holds("del:Wy | Wx, with:Wy | Wx");
  Holds("del:Wx | Wx, with:Ry | Wy");
  Holds("Wx, with:Wy, del:Wx | Wy, with:Rx");
}

// The plain fields (`entered`, `successor`, `op`, versions) are written where nobody can look at them yet.
TEST(PlainFields, AreWrittenInTime) {
  HoldsFine("Wx, Wx | Wx");
  HoldsFine("Rx | Wx, Rx");
  HoldsFine("Wx, Rx | Rx");
  HoldsFine("Wx Ry | Rx Wy");
  HoldsFine("del:Wy | Rx Wy | Wx");
}

TEST(Lock, APusherSpinsOnALockedTail) {
  HoldsSpinning("Wx, Wx | Wx");
  HoldsSpinning("Wx | Wx | Wx");
  HoldsSpinning("Wx Ry | Rx Wy");
  HoldsSpinning("Wx, Rx | Rx, Wx");
  HoldsSpinning("del:Wx | Wx Wy | Ry");
}

}  // namespace
}  // namespace checker
