// Held ops: their place in the order is taken at the push, their start waits for the release.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(HeldOpsTest);

TEST_P(HeldOpsTest, TakesItsPlaceAtThePush) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::vector<int> seen;
  HeldOp held = eng.PushHeld({.updates = {a}}, [&] { seen.push_back(1); });
  eng.Push({.updates = {a}}, [&] { seen.push_back(2); });
  EXPECT_FALSE(Done(eng, a));
  EXPECT_TRUE(seen.empty());
  held.Release();
  held.Release();  // again is nothing
  eng.Wait(a);
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
}

TEST_P(HeldOpsTest, DroppingReleases) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  bool ran = false;
  {
    HeldOp held = eng.PushHeld({.writes = {a}}, [&] { ran = true; });
  }
  eng.Wait(a);
  EXPECT_TRUE(ran);
}

TEST_P(HeldOpsTest, MovingKeepsItHeldAndAssigningReleasesTheOld) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp first = HoldWrite(eng, a);
  HeldOp moved = std::move(first);
  first.Release();
  EXPECT_FALSE(Done(eng, a));
  moved = HoldWrite(eng, b);
  eng.Wait(a);
  EXPECT_FALSE(Done(eng, b));
  moved.Release();
  eng.Wait(b);
}

TEST_P(HeldOpsTest, ReleasedBeforeItsVarsAreFreeWaitsForThem) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp first = HoldWrite(eng, a);
  HeldOp second = eng.PushHeld({.reads = {a}, .writes = {b}}, [] {});
  second.Release();
  EXPECT_FALSE(Done(eng, b));
  first.Release();
  eng.Wait(b);
}

TEST_P(HeldOpsTest, AreReleasedOnAnyThread) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::vector<HeldOp> held;
  for (int i = 0; i < 64; ++i) held.push_back(eng.PushHeld({.updates = {a}}, [] {}));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < held.size(); i += 4) held[i].Release();
    });
  eng.Wait(a);
  for (auto& t : threads) t.join();
  EXPECT_EQ(a.version(), 64u);
}

TEST_P(HeldOpsTest, PoisonedWhileHeldIsSkipped) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Fail(eng, a);
  HeldOp held = eng.PushHeld({.reads = {a}, .writes = {b}}, [] { FAIL() << "must be skipped"; });
  held.Release();
  EXPECT_THROW(eng.Wait(b), OpError);
}

TEST(HeldOpsDefaultTest, EmptyOneReleasesNothing) {
  HeldOp none;
  none.Release();
}

}  // namespace
}  // namespace engine::test
