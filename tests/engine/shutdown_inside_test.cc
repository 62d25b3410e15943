// Contract 8 where a shutdown meets something unusual: it is called inside an op of another engine, it gives up, or the
// engine is destroyed inside a push.
#include "engine/plan.h"
#include "support/engine_test.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(ShutdownInsideTest);

// The thread is inside an op of `outer`, which allows no stand-in for it.
TEST_P(ShutdownInsideTest, OfAnotherEngineEndsWithoutAStandIn) {
  EngineOptions no_stand_ins = Quiet(1);
  no_stand_ins.max_spare_threads = 0;
  Engine outer(no_stand_ins);
  Log log;
  EngineOptions options = Reporting(workers(), log);
  options.max_spare_threads = 0;
  options.drain_timeout = workers() == 0 ? 0ms : 10s;
  std::atomic<int> ran{0};
  outer.Push({.name = "shuts down"}, [&] {
    Engine inner(options);
    if (workers() == 0) {  // only a stand-in could run the op, so the shutdown gives it up, but it does end
      inner.Push({.name = "nobody runs it"}, [&] { ++ran; });
      EXPECT_NO_THROW(inner.Shutdown());
      return;
    }
    const Var a = inner.NewVar("a");
    Gate began;
    inner.Push({.name = "long", .updates = {a}}, [&] {
      began.Open();
      Gate().WaitFor(20ms);
      ++ran;
    });
    for (int i = 0; i < 10; ++i) inner.Push({.updates = {a}}, [&] { ++ran; });
    began.Wait();
    inner.Shutdown();
    EXPECT_EQ(ran, 11);
    EXPECT_EQ(inner.stats().completed, inner.stats().pushed);
  });
  outer.WaitAll();
  EXPECT_EQ(log.Contains("gave up"), workers() == 0);
}

// A shutdown that gives up leaves a body that runs. What waits behind it never starts: what it uses may be gone.
TEST(ShutdownInsideTest, NoOpStartsBehindAShutdownThatGaveUp) {
  Log log;
  static Gate leave, over;
  std::atomic<bool> ran{false};
  {
    EngineOptions o = Reporting(2, log);
    o.drain_timeout = 0ms;
    Engine eng(o);
    const Var a = eng.NewVar("a");
    Gate began;
    eng.Push({.name = "stuck", .updates = {a}}, [&] {
      began.Open();
      leave.Wait();
    });
    eng.Push({.name = "behind", .updates = {a}}, [&ran] { ran = true; });
    eng.Push({.name = "always", .updates = {a}, .run_always = true}, [&ran] { ran = true; });
    eng.PushAsync({.name = "asynchronous", .updates = {a}}, [&ran](RunContext&, Completion done) {
      ran = true;
      done();
    });
    // Its closure goes when the op is skipped, which is behind all that is skipped before.
    const std::shared_ptr<int> last(new int(0), [](int* p) {
      delete p;
      over.Open();
    });
    eng.Push({.name = "last", .reads = {a}}, [&ran, last] { ran = true; });
    began.Wait();
  }
  EXPECT_TRUE(log.Contains("gave up"));
  leave.Open();
  over.Wait();
  EXPECT_FALSE(ran);
}

// Nor does a node of a run that has begun, or that begins then.
TEST(ShutdownInsideTest, NoNodeStartsBehindAShutdownThatGaveUp) {
  for (const bool begun : {true, false}) {
    Log log;
    Gate leave, over;
    std::atomic<bool> ran{false};
    Plan plan;
    {
      EngineOptions o = Reporting(2, log);
      o.drain_timeout = 0ms;
      Engine eng(o);
      const Var a = eng.NewVar("a");
      Gate began;
      const auto stuck = [&] {
        began.Open();
        leave.Wait();
      };
      if (!begun) eng.Push({.name = "stuck", .updates = {a}}, stuck);
      Graph graph;
      const ValueId kept = graph.Input<std::shared_ptr<int>>("kept");
      if (begun) graph.Add({.name = "stuck", .updates = {a}}, stuck);
      graph.Add({.name = "behind", .updates = {a}}, [&ran] { ran = true; });
      graph.Add({.name = "always", .updates = {a}, .run_always = true}, [&ran] { ran = true; });
      graph.AddAsync({.name = "asynchronous", .updates = {a}}, [&ran](NodeContext&, Completion done) {
        ran = true;
        done();
      });
      graph.Add({.name = "last", .inputs = {kept}, .updates = {a}}, [&ran] { ran = true; });
      plan = graph.Compile(eng);
      // It goes with the last node.
      Value inputs[] = {std::shared_ptr<int>(new int(0), [&over](int* p) {
        delete p;
        over.Open();
      })};
      plan.Start(inputs);
      began.Wait();
    }
    EXPECT_TRUE(log.Contains("gave up"));
    leave.Open();
    over.Wait();
    EXPECT_FALSE(ran);
  }
}

// The op runs inside the push, which goes on to use the engine when the op has ended.
TEST(ShutdownInsideTest, AnOpMayDestroyItsEngineInsideItsPush) {
  for (int round = 0; round < 50; ++round) {
    Log log;
    Gate gone;
    EngineOptions o = Quiet(round % 2);
    o.on_unobserved = [&](const OpError& error) {
      log.Add(error.what());
      gone.Open();
    };
    auto* eng = new Engine(o);
    Var a = eng->NewVar("a");
    eng->SetPolicy(Policy::kNaive);
    std::thread pusher(
        [&] { eng->Push({.name = "destroys", .updates = {a}}, [&] { delete std::exchange(eng, nullptr); }); });
    pusher.join();
    gone.Wait();
    EXPECT_TRUE(log.Contains("destroyed on one of its own threads"));
  }
}

// It goes on the thread that finds that the device is done, which the shutdown would wait for.
TEST(ShutdownInsideTest, TheClosureOfAnOpOnADeviceMayBeTheLastToHaveItsEngine) {
  for (int round = 0; round < 20; ++round) {
    Log log;
    Gate dropped, gone;
    EngineOptions o = OnDevice(Quiet(1 + round % 2));
    o.on_unobserved = [&](const OpError& error) {
      log.Add(error.what());
      gone.Open();
    };
    auto eng = std::make_shared<Engine>(o);
    const Var a = eng->NewVar("a");
    eng->Push({.name = "last", .updates = {a}, .place = Gpu(0)},
              [kept = eng, &dropped](RunContext&) { dropped.Wait(); });
    eng->Push({.name = "asks", .reads = {a}}, [] {});  // so that somebody wants to know
    eng.reset();
    dropped.Open();
    gone.Wait();
    EXPECT_TRUE(log.Contains("destroyed on one of its own threads"));
  }
}

}  // namespace
}  // namespace engine::test
