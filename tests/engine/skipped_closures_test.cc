// What the closure of a skipped op holds is destroyed as inside its op: destructors may push and wait.
#include "support/engine_test.h"

namespace engine::test {
namespace {

struct AtTheEnd {
  std::function<void()> call;
  ~AtTheEnd() {
    if (call) call();
  }
};

// There is no room for a push from outside of ops, and the one worker is the thread that pushes.
TEST(SkippedClosures, MayPushWithoutRoom) {
  EngineOptions o = Quiet(1);
  o.max_pending = 1;
  Engine eng(o);
  const Var bad = eng.NewVar("bad"), other = eng.NewVar("other");
  std::atomic<int> ran{0};
  HeldOp held = HoldWrite(eng, bad);
  auto at_the_end = std::make_shared<AtTheEnd>();
  at_the_end->call = [&] {
    for (int i = 0; i < 200; ++i) eng.Push({.updates = {other}}, [&] { ++ran; });
  };
  Fail(eng, bad);
  eng.Push({.name = "skipped", .reads = {bad}}, [kept = std::move(at_the_end)] {});
  held.Release();
  EXPECT_THROW(eng.WaitAll(), OpError);
  eng.WaitAll();  // for what was pushed since the other began
  EXPECT_EQ(ran, 200);
}

// The wait lends the worker, so the op that it waits for may run.
TEST(SkippedClosures, MayWaitForAnotherOp) {
  Engine eng(Quiet(1));
  const Var bad = eng.NewVar("bad"), other = eng.NewVar("other");
  std::atomic<bool> waited{false};
  HeldOp held = HoldWrite(eng, bad);
  auto at_the_end = std::make_shared<AtTheEnd>();
  at_the_end->call = [&] {
    eng.Push({.writes = {other}}, [] {});
    eng.Wait(other);
    waited = true;
  };
  Fail(eng, bad);
  eng.Push({.name = "skipped", .reads = {bad}}, [kept = std::move(at_the_end)] {});
  held.Release();
  EXPECT_THROW(eng.WaitAll(), OpError);
  EXPECT_TRUE(waited);
}

}  // namespace
}  // namespace engine::test
