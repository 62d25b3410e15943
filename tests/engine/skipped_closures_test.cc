// What the closure of a skipped op holds is destroyed as inside its op: destructors may push and wait.
#include "support/on_device.h"

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
  eng.WaitAll();
  EXPECT_TRUE(waited);
}

// The same on a device, whose thread the destructor runs on.
TEST(SkippedClosures, OfOpsOnADeviceMayPushWithoutRoom) {
  for (const bool async : {false, true}) {
    EngineOptions o = OnDevice(1);
    o.max_pending = 1;
    Engine eng(o);
    const Var bad = eng.NewVar("bad"), other = eng.NewVar("other");
    std::atomic<int> ran{0};
    HeldOp held = HoldWrite(eng, bad);
    auto at_the_end = std::make_shared<AtTheEnd>();
    at_the_end->call = [&] {
      for (int i = 0; i < 200; ++i) eng.Push({.updates = {other}, .place = Gpu(0)}, [&](RunContext&) { ++ran; });
    };
    Fail(eng, bad);
    if (async) {
      eng.PushAsync({.name = "skipped", .reads = {bad}, .place = Gpu(0)},
                    [kept = std::move(at_the_end)](RunContext&, Completion done) { done(); });
    } else {
      eng.Push({.name = "skipped", .reads = {bad}, .place = Gpu(0)}, [kept = std::move(at_the_end)](RunContext&) {});
    }
    held.Release();
    EXPECT_THROW(eng.WaitAll(), OpError);
    eng.WaitAll();  // for what was pushed during the first one
    EXPECT_EQ(ran, 200);
  }
}

// An op that waits for its device could wait for itself, so the wait lends the device's thread.
TEST(SkippedClosures, OfOpsOnADeviceMayWaitForAnotherOp) {
  for (const Placement place : {Gpu(0), Placement{}}) {
    Engine eng(OnDevice(1));
    const Var bad = eng.NewVar("bad"), other = eng.NewVar("other");
    std::atomic<bool> waited{false};
    HeldOp held = HoldWrite(eng, bad);
    auto at_the_end = std::make_shared<AtTheEnd>();
    at_the_end->call = [&] {
      eng.Push({.writes = {other}, .place = place}, [](RunContext&) {});
      eng.Wait(other);
      waited = true;
    };
    Fail(eng, bad);
    eng.Push({.name = "skipped", .reads = {bad}, .place = Gpu(0)}, [kept = std::move(at_the_end)](RunContext&) {});
    held.Release();
    EXPECT_THROW(eng.WaitAll(), OpError);
    eng.WaitAll();
    EXPECT_TRUE(waited);
  }
}

// What is given back there is behind no work of the op, which has none.
TEST(SkippedClosures, OfOpsOnADeviceMayGiveMemoryBack) {
  Engine eng(OnDevice(1));
  const Var bad = eng.NewVar("bad"), made = eng.NewVar("made");
  auto memory = std::make_shared<DeviceMemory>();
  eng.Push({.writes = {made}, .place = Gpu(0)}, [memory](RunContext& ctx) { *memory = ctx.Allocate(1 << 20); });
  eng.Wait(made);
  const void* const before = memory->data();
  HeldOp held = HoldWrite(eng, bad);
  Fail(eng, bad);
  eng.Push({.name = "skipped", .reads = {bad}, .place = Gpu(0)}, [kept = std::move(memory)](RunContext&) {});
  held.Release();
  EXPECT_THROW(eng.WaitAll(), OpError);
  const void* after = nullptr;
  eng.Push({.writes = {made}, .place = Gpu(0)}, [&](RunContext& ctx) { after = ctx.Allocate(1 << 20).data(); });
  eng.Wait(made);
  EXPECT_EQ(after, before);
}

// Those of ops that ran there go when they retire.
TEST(SkippedClosures, OfOpsThatHaveRetiredMayPushWithoutRoom) {
  EngineOptions o = OnDevice(1);
  o.max_pending = 1;
  Engine eng(o);
  const Var a = eng.NewVar("a"), other = eng.NewVar("other");
  std::atomic<int> ran{0};
  for (int i = 0; i < 5; ++i) {
    auto at_the_end = std::make_shared<AtTheEnd>();
    at_the_end->call = [&] {
      for (int k = 0; k < 50; ++k) eng.Push({.updates = {other}}, [&] { ++ran; });
    };
    eng.Push({.updates = {a}, .place = Gpu(0)}, [kept = std::move(at_the_end)](RunContext&) {});
  }
  while (ran < 250) eng.WaitAll();
}

// Some thread that looks at the device destroys them, and waits there.
TEST(SkippedClosures, OfOpsThatHaveRetiredMayWaitForAnotherOp) {
  for (const Placement place : {Placement(), Gpu(0)}) {
    Engine eng(OnDevice(1));
    const Var a = eng.NewVar("a"), other = eng.NewVar("other");
    std::atomic<int> waited{0};
    for (int i = 0; i < 5; ++i) {
      auto at_the_end = std::make_shared<AtTheEnd>();
      at_the_end->call = [&] {
        eng.Push({.updates = {other}, .place = place}, [](RunContext&) {});
        eng.Wait(other);
        ++waited;
      };
      eng.Push({.updates = {a}, .place = Gpu(0)}, [kept = std::move(at_the_end)](RunContext&) {});
    }
    while (waited < 5) eng.WaitAll();
  }
}

}  // namespace
}  // namespace engine::test
