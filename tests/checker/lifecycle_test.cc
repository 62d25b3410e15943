// What a push can be besides a set of accesses: deletion, held and asynchronous ops, ops that make no version; and
// the look at Settled that a wait begins with.
#include <gtest/gtest.h>

#include "check.h"
#include "report.h"

namespace checker {
namespace {

void Holds(const char* text) { ReportHolds(Check(Scenario(text)), text); }

TEST(Deletion, ClosesTheVar) {
  Holds("del:Wx");
  Holds("del:Wx, Wx");
  Holds("Rx, del:Wx | Rx");
  Holds("Wx, del:Wx | Wx, Rx");
}
TEST(Deletion, ARefusedPushLeavesItsOtherVarsAlone) {
  Holds("del:Wy | Wx Wy | Wx");
  Holds("del:Wy | Rx Wy | Rx, Wx");
  Holds("del:Wz, Wx | Rx Wy Rz | Wx Ry");
}
TEST(Deletion, ARefusedPushMeetsFinishingWrites) {
  Holds("Wx, del:Wy | Wx Wy, Wx");
  Holds("Wx Wy, del:Wy | Wx Wy, Rx");
  Holds("del:Wx | Wx | Rx, Wx");
}
TEST(Deletion, OfTwoVarsOneDeletionWins) { Holds("del:Wx | del:Wx | Rx"); }

TEST(HeldOp, StartsOnlyWhenReleased) {
  Holds("held:none");
  Holds("held:Wx");
  Holds("held:Wx, Wx");
  Holds("held:Wx Ry, Rx Wy | Rx");
  Holds("held:Rx, Wx | held:Wx");
}
TEST(Bulk, IsReleasedWhenAnOpOutsideItComesBehind) {
  Holds("bulk:Wx");
  Holds("bulk:Wx, bulk:Wx, bulk:Rx, bulk:Wx");
  Holds("bulk:Wx, Wx");
  Holds("bulk:Wx | Rx | Wx");
  Holds("bulk:Wx | Rx, Rx");
  Holds("bulk:Rx | Wx");
  Holds("bulk:Wx, bulk:Rx | Rx | Wx");
  Holds("bulk:Rx | bulk:Rx | Wx");
  Holds("bulk:Wx | bulk:Wx | Wx");
  Holds("bulk:Wx, bulk:Ry Wx | bulk:Wy, bulk:Ux");
  Holds("bulk:Wx | del:Wx");
}
TEST(Bulk, IsReleasedWhenOnePusherHasBoth) {
  Holds("bulk:Wx, bulk:Rx, Rx, Wx");
  Holds("bulk:Wx, Rx, bulk:Wx, bulk:Wx");
}
// A member may start whenever it has its grants and its holder gives it its start, in whatever order that is.
TEST(Bulk, OrdersItsMembersLikeOtherOps) {
  Holds("bulk:Wx, bulk:Wx, bulk:Wx, Wx");
  Holds("bulk:Wx Wy, bulk:Wx, bulk:Wx Wy, Ry");
  Holds("bulk:Wx, bulk:Wx, Rx | Wx");
  Holds("bulk:Wx, bulk:Ux, bulk:Rx Wy | Ry");
  Holds("bulk:Wx, bulk:Wx, Wx | Wx");
}
// What its thread pushes past it, an op for the host: held ops that it does not need stay.
TEST(Bulk, OpsPassItBy) {
  Holds("bulk:Wx, Wy, bulk:Wx, Ry");
  Holds("Wx, bulk:Rx Wy, Ux, Ry");
  Holds("bulk:Wx, Wy, bulk:Rx Ry | Wx");
  Holds("bulk:Wx, here:Wy, bulk:Ry | here:Uy");
  Holds("bulk:Wx, del:Wy, bulk:Wx | Wy");
}

// What a refused push has taken is taken again at once, by ops that others push and release.
TEST(HeldOp, ARefusedOneIsKnownToNobody) {
  Holds("del:Wx | held:Wx");
  Holds("del:Wy, Wx | held:Wx Wy, Wx");
  Holds("del:Wy | held:Rx Wy, held:Wx | Rx");
}

TEST(AtItsPush, AnOpRunsBeforeItsPushReturns) {
  Holds("here:Wx, here:Wx, Rx");
  Holds("here:Wx, Wx | here:Ux, Rx");
  Holds("here:Wx Ry, here:Rx Wy | Wx Wy");
  Holds("here:Rx, here:Rx | here:Wx | Rx");
  Holds("del:Wx | here:Wx, here:none");
}

TEST(WaitInside, AnOpPushesAndWaitsForWhatItDoesNotHold) {
  Holds("Wx, inner:keep:Ry | Wy, Wy");
  Holds("Wx, inner:Wy, inner:Wz | Ry | Rz");
  Holds("here:Wx, inner:here:Wy, Rx | Wy");
  Holds("Rx, inner:Ry | Rx, Wx | Wy");
  Holds("async:Wx, inner:Ry, Wx | Wy");
}

TEST(EmptyOp, IsReadyAtOnce) { Holds("none, Wx | none"); }

TEST(AsyncOp, KeepsItsBlockUntilItsBodyIsOver) {
  Holds("async:Wx, Wx");
  Holds("async:Rx, Wx | Rx");
  Holds("async:Rx Wy, Wx | async:Rx, Ry");
  Holds("async:Rx Ry Rz, Wx Wy | Wz");
  Holds("async:held:Rx, async:Wx | Rx");
  Holds("async:Wx, Wx | Wx");
  Holds("async:none, async:held:Wx, Rx");
}

TEST(KeptVersion, IsSeenByTheReadersBehind) {
  Holds("Wx, keep:Ux, Rx");
  Holds("keep:Ux, Rx | Wx");
  Holds("Wx Ry, keep:Ux Uy | Rx, Wy");
}

TEST(Settled, IsTrueOnlyWhenEveryEarlierWriteHasEnded) {
  Holds("Wx, settled:x");
  Holds("Wx, settled:x | Wx, settled:x");
  Holds("Wx, Wx | Wx | settled:x");
  Holds("Wx Wy, Rx | settled:y, settled:x");
  Holds("Rx, keep:Wx, settled:x | Wx");
  Holds("Wx, del:Wx | settled:x | Wx");
}

}  // namespace
}  // namespace checker
