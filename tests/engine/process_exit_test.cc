// Contract 8: the process ends, whatever its engines are doing. Each test is a process of its own.
#include <unistd.h>
#include <csignal>
#include <cstdlib>

#include "support/engine_test.h"

namespace engine::test {
namespace {

// Ends with 7, or with SIGALRM if the exit hangs.
void Deadline() { alarm(30); }
#define EXPECT_ENDS(statement) EXPECT_EXIT(statement, testing::ExitedWithCode(7), "")

EngineOptions Short() {
  EngineOptions o = Quiet(2);
  o.drain_timeout = 10ms;
  return o;
}

TEST(ProcessExitDeathTest, StaticEngineWithQueuedOps) {
  EXPECT_ENDS({
    Deadline();
    static Engine eng(Short());
    static Var a = eng.NewVar("a");
    for (int i = 0; i < 1000; ++i) eng.Push({.updates = {a}}, [] {});
    std::exit(7);
  });
}

TEST(ProcessExitDeathTest, EngineThatIsNeverDestroyed) {
  EXPECT_ENDS({
    Deadline();
    auto* eng = new Engine(Short());
    Var a = eng->NewVar("a");
    for (int i = 0; i < 1000; ++i) eng->Push({.updates = {a}}, [] {});
    std::exit(7);
  });
}

TEST(ProcessExitDeathTest, OpThatNeverEnds) {
  EXPECT_ENDS({
    Deadline();
    static Engine eng(Short());
    static auto* never = new Gate;  // leaked: its waiter stays
    eng.Push({}, [] { never->Wait(); });
    std::exit(7);
  });
}

TEST(ProcessExitDeathTest, HeldOpThatIsNeverReleased) {
  EXPECT_ENDS({
    Deadline();
    auto* eng = new Engine(Short());
    static Var a = eng->NewVar("a");
    new HeldOp(HoldWrite(*eng, a));
    delete eng;
    std::exit(7);
  });
}

TEST(ProcessExitDeathTest, CompletionThatNeverComes) {
  EXPECT_ENDS({
    Deadline();
    static Completion kept;
    static Engine eng(Short());
    eng.PushAsync({}, [](RunContext&, Completion done) { kept = std::move(done); });
    std::exit(7);
  });
}

TEST(ProcessExitDeathTest, ExitInsideAnOp) {
  EXPECT_ENDS({
    Deadline();
    static Engine eng(Short());
    eng.Push({}, [] { std::exit(7); });
    eng.WaitAll();
  });
}

TEST(ProcessExitDeathTest, ExitInsideAnOpWithoutWorkers) {
  EXPECT_ENDS({
    Deadline();
    EngineOptions o = Short();
    o.workers = 0;
    static Engine eng(o);
    eng.Push({}, [] { std::exit(7); });
    eng.WaitAll();
  });
}

TEST(ProcessExitDeathTest, VarsAndThreadLocalsThatOutliveTheEngine) {
  EXPECT_ENDS({
    Deadline();
    static Var a;
    static thread_local Var mine;
    static Engine eng(Short());
    a = eng.NewVar("a");
    mine = eng.NewVar("mine");
    std::thread([] {
      mine = eng.NewVar("theirs");
      eng.Push({.writes = {mine}}, [] {});
    }).join();
    eng.Push({.reads = {a}, .writes = {mine}}, [] {});
    std::exit(7);
  });
}

TEST(ProcessExitDeathTest, WhileOtherThreadsPushAndWait) {
  EXPECT_ENDS({
    Deadline();
    auto* eng = new Engine(Short());
    auto* a = new Var(eng->NewVar("a"));
    auto* running = new Counter;
    for (int t = 0; t < 2; ++t)
      std::thread([=] {
        running->Add();
        for (;;) {
          eng->Push({.updates = {*a}}, [] {});
          eng->Wait(*a);
        }
      }).detach();
    running->WaitFor(2);
    std::quick_exit(7);
  });
}

}  // namespace
}  // namespace engine::test
