// Bodies that a thread of the program runs: while it waits (no workers, naive, inline), or inside a push (naive, inline). Each
// is run by somebody, and pushes as it would on a worker.
#include "engine/bulk.h"
#include "support/engine_test.h"
#include "support/threads.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(DrivingTest);

// --- a waiter that leaves passes on the wake that it was given

// A thread that waits, asleep when the constructor returns.
class Waiter {
 public:
  explicit Waiter(std::function<void()> wait) {
    thread_ = std::thread([this, wait = std::move(wait)] {
      tid_ = gettid();
      wait();
    });
    AwaitSleep();
  }
  ~Waiter() { thread_.join(); }
  void AwaitSleep() const { AwaitAsleep(tid_); }

 private:
  std::atomic<int> tid_{0};
  std::thread thread_;
};

void PushNaive(Engine& eng, const OpDesc& op, std::function<void()> body) {
  const PolicyScope naive = eng.EnterPolicy({Policy::kNaive});
  eng.Push(op, std::move(body));
}

HeldOp PushNaiveBehind(Engine& eng, const Var& before, const Var& made) {
  const PolicyScope naive = eng.EnterPolicy({Policy::kNaive});
  HeldOp held = HoldWrite(eng, before);
  eng.Push({.name = "naive", .reads = {before}, .writes = {made}}, [] {});
  return held;
}

TEST(DriverTest, AWaitThatEndsPassesItsWakeOn) {
  Engine eng(Quiet(1));
  Var made = eng.NewVar("made"), mine = eng.NewVar("mine"), before = eng.NewVar("before");
  Gate gate;
  eng.Push({.name = "blocks"}, [&] { gate.Wait(); });
  eng.Push({.name = "wakes", .writes = {before}}, [] {});
  eng.Push({.name = "ends", .writes = {mine}}, [] {});  // before the thread that "wakes" woke has looked
  PushNaive(eng, {.name = "naive", .reads = {before}, .writes = {made}}, [] {});
  const Waiter needs_it([&] { eng.Wait(made); });
  const Waiter leaves([&] { eng.Wait(mine); });  // the last that went to sleep is woken first
  gate.Open();
}

TEST(DriverTest, AWaitAllThatEndsPassesItsWakeOn) {
  Engine eng(Quiet(2));
  Var made = eng.NewVar("made"), start = eng.NewVar("start"), before = eng.NewVar("before");
  HeldOp held = HoldWrite(eng, start);
  Gate driving, drive, end;
  std::atomic<bool> driven{false};
  PushNaive(eng, {.name = "driven", .reads = {start}}, [&] {
    driving.Open();
    drive.Wait();
    driven = true;
  });
  eng.Push({.name = "ends", .writes = {before}}, [&] { end.Wait(); });
  const Waiter leaves([&] { eng.WaitAll(); });
  PushNaive(eng, {.name = "naive", .reads = {before}, .writes = {made}}, [] {});
  // WaitAll drives an op while the other wait goes to sleep. So it is the last that went to sleep, and is woken first.
  held.Release();
  driving.Wait();
  const Waiter needs_it([&] { eng.Wait(made); });
  drive.Open();
  while (!driven) std::this_thread::yield();
  leaves.AwaitSleep();
  end.Open();
}

TEST(DriverTest, AWaitThatGivesUpPassesItsWakeOn) {
  Engine eng(Quiet(1));
  Var made = eng.NewVar("made"), never = eng.NewVar("never"), before = eng.NewVar("before");
  HeldOp forever = HoldWrite(eng, never);
  HeldOp held = PushNaiveBehind(eng, before, made);
  const Waiter needs_it([&] { eng.Wait(made); });
  for (int i = 0; i < 20; ++i) {
    eng.WaitFor(never, std::chrono::microseconds(50 * i));
    if (i == 10) held.Release();
  }
}

// The only stand-in plays the worker. The thread that waits inside the op is woken to get a driver, and there is none.
TEST(DriverTest, AWaitInsideAnOpThatGetsNoDriverPassesItsWakeOn) {
  EngineOptions options = Quiet(1);
  options.max_spare_threads = 1;
  Engine eng(options);
  Var made = eng.NewVar("made"), mine = eng.NewVar("mine"), before = eng.NewVar("before");
  HeldOp forever = HoldWrite(eng, mine);
  HeldOp held = PushNaiveBehind(eng, before, made);
  std::atomic<int> waiting{0};
  const Waiter needs_it([&] { eng.Wait(made); });
  eng.Push({.name = "waits"}, [&] {
    waiting = gettid();
    eng.Wait(mine);
  });
  AwaitAsleep(waiting);  // the last that went to sleep is woken first
  held.Release();
}

// Nobody outside waits, and nobody drove when the wait began.
TEST(DriverTest, AWaitInsideAnOpGetsADriverWhenThereIsSomethingToDrive) {
  Engine eng(Quiet(1));
  Var made = eng.NewVar("made"), before = eng.NewVar("before");
  HeldOp held = PushNaiveBehind(eng, before, made);
  std::atomic<int> waiting{0};
  Gate over;
  eng.Push({.name = "waits"}, [&] {
    waiting = gettid();
    eng.Wait(made);
    over.Open();
  });
  AwaitAsleep(waiting);
  held.Release();
  over.Wait();
}

// The thread is inside an op of another engine, so it must not run the op itself.
TEST(DriverTest, AWaitAllInsideAnOpOfAnotherEngineGetsADriver) {
  Engine eng(Quiet(1)), outer(Quiet(1));
  Var made = eng.NewVar("made"), before = eng.NewVar("before");
  HeldOp held = PushNaiveBehind(eng, before, made);
  std::atomic<int> waiting{0};
  Gate over;
  outer.Push({.name = "waits"}, [&] {
    waiting = gettid();
    eng.WaitAll();
    over.Open();
  });
  AwaitAsleep(waiting);
  held.Release();
  over.Wait();
}

// --- a push that holds an op runs nobody's body: it may wait for that op, and so for this thread

TEST_P(DrivingTest, APushThatHoldsItsOpRunsNoBodyThatMayWaitForIt) {
  for (const Policy policy : {Policy::kNaive, Policy::kInline}) {
    Engine eng(Quiet(workers()));
    eng.SetPolicy(policy);
    Var before = eng.NewVar("before"), held_var = eng.NewVar("held"), done = eng.NewVar("done");
    HeldOp first = HoldWrite(eng, before);
    eng.Push({.name = "waits", .reads = {before}, .writes = {done}}, [&] { eng.Wait(held_var); });
    first.Release();  // now the op may run, and the next push of this thread would run it
    HeldOp held = HoldWrite(eng, held_var);
    held.Release();
    eng.Wait(done);
    EXPECT_EQ(held_var.version(), 1u);
  }
}

// --- scopes of the thread that runs a body are none of the body's

// Runs `body`, pushed before by nobody's scopes, while this thread waits for it inside `scopes`.
template <class Enter>
void RunInside(Engine& eng, std::function<void()> body, Enter&& enter) {
  Var gate = eng.NewVar("gate"), done = eng.NewVar("done");
  HeldOp held = HoldWrite(eng, gate);
  eng.Push({.name = "body", .reads = {gate}, .writes = {done}}, std::move(body));
  held.Release();
  enter([&] { eng.Wait(done); });
}

TEST_P(DrivingTest, ABodyPushesUnderNoCancelScopeOfWhoWaits) {
  Engine eng(Quiet(workers()));
  Var made = eng.NewVar("made");
  CancelScope scope;
  scope.Cancel();
  RunInside(
      eng, [&] { eng.Push({.name = "inner", .writes = {made}}, [] {}); },
      [&](const auto& wait) {
        const auto guard = scope.Enter();
        wait();
      });
  eng.Wait(made);
}

TEST_P(DrivingTest, ABodyPushesUnderNoPolicyOfWhoWaits) {
  Engine eng(Quiet(workers()));
  Var made = eng.NewVar("made");
  RunInside(
      eng, [&] { eng.Push({.name = "inner", .writes = {made}}, [] { throw std::runtime_error("inner"); }); },
      [&](const auto& wait) {
        const PolicyScope scope = eng.EnterPolicy({Policy::kNaive, {.raise_at_push = true}});
        wait();  // does not throw what its body has pushed
      });
  EXPECT_EQ(ErrorOf([&] { eng.Wait(made); }).op(), "inner");
}

class Counting final : public Submitter {
 public:
  int pushed = 0;

 private:
  void Submit(const OpDesc&, detail::ClosureRef, Site) override { ++pushed; }
  bool TrySubmit(const OpDesc&, detail::ClosureRef, Site) override { return ++pushed; }
};

TEST_P(DrivingTest, ABodyPushesThroughNoRedirectOfWhoWaits) {
  Engine eng(Quiet(workers()));
  Var made = eng.NewVar("made");
  Counting bulk_or_capture;
  RunInside(
      eng, [&] { eng.Push({.name = "inner", .writes = {made}}, [] {}); },
      [&](const auto& wait) {
        const Redirect redirect(eng, bulk_or_capture);
        wait();
      });
  eng.Wait(made);
  EXPECT_EQ(bulk_or_capture.pushed, 0);
  EXPECT_EQ(made.version(), 1u);
}

TEST_P(DrivingTest, ABodyRunAtItsPushIsUnderNoneOfItsPushersScopes) {
  Engine eng(Quiet(workers()));
  Var made = eng.NewVar("made"), outer = eng.NewVar("outer");
  CancelScope scope;
  {
    const PolicyScope naive = eng.EnterPolicy({Policy::kNaive});
    const auto guard = scope.Enter();
    eng.Push({.name = "outer", .writes = {outer}}, [&] {
      scope.Cancel();
      eng.Push({.name = "inner", .writes = {made}}, [] {});
    });
  }
  eng.Wait(made);
  eng.Wait(outer);
}

// A front end's scopes may be ended by whoever collects garbage, inside any body.
TEST(BodyScopesTest, AScopeMayEndInsideABodyThatHadItSetAside) {
  Engine eng(Quiet(0));
  Var done = eng.NewVar("done"), later = eng.NewVar("later");
  std::unique_ptr<PolicyScope> policy;
  std::unique_ptr<Bulk> bulk;
  eng.Push({.name = "ends both", .writes = {done}}, [&] {
    policy.reset();
    bulk.reset();
  });
  policy.reset(new PolicyScope(eng.EnterPolicy({Policy::kNaive, {.raise_at_push = true}})));
  bulk = std::make_unique<Bulk>(eng, 8);
  eng.Wait(done);
  eng.Push({.name = "fails", .writes = {later}}, [] { throw std::runtime_error("later"); });  // neither raised nor held
  EXPECT_THROW(eng.Wait(later), OpError);
}

}  // namespace
}  // namespace engine::test
