// Contract 8: the process ends, whatever its engines are doing. Each test is a process of its own.
#include <unistd.h>
#include <csignal>
#include <cstdlib>

#include "engine/bulk.h"
#include "support/on_device.h"

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

// Thread-locals go before statics: what the engine keeps for a thread must be usable after that.
struct PushesAtExit {
  Engine &one, &two;
  Var a, b;
  ~PushesAtExit() {
    std::atomic<int> ran{0};  // by ops of two engines
    for (int i = 0; i < 50; ++i) {
      Var v = one.NewVar(), w = two.NewVar();
      one.Push({.writes = {v, a}}, [&] { ++ran; });
      two.Push({.writes = {w, b}}, [&] { ++ran; });
      one.Wait(a);
      two.Wait(b);
    }
    if (ran != 100) std::abort();
  }
};

void ExitWithStaticsThatPush() {
  Deadline();
  static Engine one(Short()), two(Short());
  static PushesAtExit late{one, two, one.NewVar("a"), two.NewVar("b")};
  one.Push({.writes = {late.a}}, [] {});
  two.Push({.writes = {late.b}}, [] {});
  one.WaitAll();
  two.WaitAll();
  std::exit(7);
}
TEST(ProcessExitDeathTest, StaticsThatPushAndWaitWhenTheThreadLocalsHaveGone) {
  EXPECT_ENDS(ExitWithStaticsThatPush());
}

TEST(ProcessExitDeathTest, StaticEngineWhereALocalOneWasUsedLast) {
  EXPECT_ENDS({
    Deadline();
    static Engine eng(Short());
    static Var a = eng.NewVar("a");
    eng.Push({.writes = {a}}, [] {});
    eng.Wait(a);
    {
      Engine local(Short());
      Var b = local.NewVar("b");
      local.Push({.writes = {b}}, [] {});
      local.Wait(b);
    }
    std::exit(7);
  });
}

TEST(ProcessExitDeathTest, StaticThatSetsABulkSizeWhenTheThreadLocalsHaveGone) {
  EXPECT_ENDS({
    Deadline();
    struct Sets {
      ~Sets() {
        Engine eng(OnDevice(Short()));
        SetBulkSize(eng, 5);
        Var a = eng.NewVar("a");
        for (int i = 0; i < 12; ++i) eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
        eng.Wait(a);
        SetBulkSize(eng, 0);
      }
    };
    static Sets late;
    Engine eng(Short());
    SetBulkSize(eng, 5);
    std::exit(7);
  });
}

// A thread-local that is older than what the engine keeps for the thread, and so is destroyed later.
struct LatePusher {
  Engine *one = nullptr, *two = nullptr;
  std::atomic<int>* ran = nullptr;
  ~LatePusher() {
    for (Engine* eng : {one, two}) {
      if (!eng) continue;
      Var v = eng->NewVar("late");
      eng->Push({.writes = {v}}, [ran = ran] { ++*ran; });
      eng->Wait(v);
    }
  }
};

TEST(ThreadEndTest, LatePushesTakeNoSlotForGood) {
  Engine one(Quiet(1)), two(Quiet(1));
  std::atomic<int> ran{0};
  const auto threads = [&](int n) {
    for (int i = 0; i < n; ++i)
      std::thread([&] {
        thread_local LatePusher late;
        late.one = &one;
        late.two = &two;
        late.ran = &ran;
        one.Push({}, [] {});
        two.Push({}, [] {});
      }).join();
    return one.stats().slab_bytes + two.stats().slab_bytes;
  };
  const uint64_t before = threads(20);
  // Each slot that is not given back keeps a few KiB of blocks; a worker that lags behind keeps a slab's worth at most.
  EXPECT_LT(threads(400), before + (uint64_t{1} << 18));
  EXPECT_EQ(ran, 2 * 420);
}

}  // namespace
}  // namespace engine::test
