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

// Blocks beyond the size classes go back to a pool that all threads share, so what was refused is soon another's.
std::vector<Var> ManyVars(Engine& eng) {
  std::vector<Var> vars(40);
  for (Var& var : vars) var = eng.NewVar();
  return vars;
}

TEST_P(HeldOpsTest, ARefusedOneTouchesNoOp) {
  EngineOptions o = Quiet(workers());
  o.max_pending = 8;
  Engine eng(o);
  std::vector<Var> refused_vars = ManyVars(eng);
  Var gone = eng.NewVar("gone");
  refused_vars.push_back(gone);
  eng.Delete(gone);
  std::atomic<bool> stop{false};
  std::atomic<int> refused{0};
  std::thread refuses([&] {
    while (!stop) {
      EXPECT_THROW(eng.PushHeld({.reads = refused_vars}, [] { FAIL() << "refused, and ran"; }), UsageError);
      ++refused;
    }
  });
  const std::vector<Var> mine = ManyVars(eng);
  int inside = 0, together = 0;  // guarded by the engine
  std::atomic<int> ran{0};
  int pushed = 0;
  const int enough = kSanitized ? 200 : 2000;
  for (int round = 0; round < enough || refused < enough; ++round) {
    for (int i = 0; i < 4; ++i, ++pushed)
      eng.Push({.updates = mine}, [&] {
        together += inside++;
        ++ran;
        --inside;
      });
    eng.Wait(mine[0]);
  }
  stop = true;
  refuses.join();
  EXPECT_EQ(together, 0);
  EXPECT_EQ(ran, pushed);
}

TEST_P(HeldOpsTest, OfManyVarsAreReleasedByShutdown) {
  bool ran = false;
  Engine eng(Quiet(workers()));
  HeldOp held = eng.PushHeld({.writes = ManyVars(eng)}, [&] { ran = true; });
  eng.Shutdown();
  EXPECT_TRUE(ran);
}

TEST_P(HeldOpsTest, OfManyVarsAwaitTheirCompletionLikeOthers) {
  EngineOptions o = Quiet(workers());
  o.drain_timeout = 20ms;
  Completion never;
  Engine eng(o);
  const std::vector<Var> vars = ManyVars(eng);
  eng.PushAsync({.writes = vars}, [&](RunContext&, Completion done) { never = std::move(done); });
  eng.Shutdown();
  EXPECT_TRUE(CausedBy<ShutdownError>(ErrorOf([&] { eng.Wait(vars[0]); })));
}

// The blocks of claims and completions are taken and given back while shutdown looks for those that are left.
TEST_P(HeldOpsTest, HandlesMayGoWhileTheEngineShutsDown) {
  for (int round = 0; round < (kSanitized ? 20 : 100); ++round) {
    Engine eng(Quiet(workers()));
    Var a = eng.NewVar("a");
    std::atomic<int> ran{0}, started{0};
    std::vector<HeldOp> held;
    std::vector<Completion> open(32);
    for (int i = 0; i < 32; ++i) {
      held.push_back(eng.PushHeld({.reads = {a}}, [&] { ++ran; }));
      eng.PushAsync({.reads = {a}}, [&, i](RunContext&, Completion done) {
        open[i] = std::move(done);
        ++started;
      });
    }
    while (started < 32) eng.WaitAllFor(0ns);  // drives
    Gate go;
    std::thread drops([&] {
      go.Wait();
      for (HeldOp& h : held) h.Release();
      for (Completion& done : open) done();
    });
    go.Open();
    eng.Shutdown();
    drops.join();
    EXPECT_EQ(ran, 32);
  }
}

TEST(HeldOpsDefaultTest, EmptyOneReleasesNothing) {
  HeldOp none;
  none.Release();
}

}  // namespace
}  // namespace engine::test
