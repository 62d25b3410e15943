// The stall watchdog and DescribePending: blocked Vars, who owns them, who waits, with push sites.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(WatchdogTest);

std::string Here(uint32_t line) { return "watchdog_test.cc:" + std::to_string(line) + ")"; }

TEST_P(WatchdogTest, NamesBlockedVarsTheirOwnersAndTheirWaiters) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("weights"), b = eng.NewVar("free");
  Slot<Completion> slot;
  const uint32_t line = __LINE__ + 1;
  eng.PushAsync({.name = "fetch", .writes = {a}}, [&](RunContext&, Completion done) { slot.Put(std::move(done)); });
  eng.Push({.name = "use", .reads = {a}}, [] {});
  eng.Push({.writes = {b}}, [] {});
  eng.Wait(b);  // with no workers this runs what was pushed before, too
  Completion done = slot.Take();
  const std::string report = eng.DescribePending();
  EXPECT_TRUE(Has(report, "2 ops are pending"));
  EXPECT_TRUE(Has(report, "op 'fetch'"));
  EXPECT_TRUE(Has(report, "awaits its Completion"));
  EXPECT_TRUE(Has(report, Here(line)));
  EXPECT_TRUE(Has(report, "Var 'weights' version 0 of 1"));
  EXPECT_TRUE(Has(report, "owned by 'fetch'"));
  EXPECT_TRUE(Has(report, "awaited by 'use'"));
  EXPECT_TRUE(Has(report, Here(line + 1)));
  EXPECT_EQ(report.find("'free'"), report.npos);
  done();
  eng.WaitAll();
  EXPECT_TRUE(Has(eng.DescribePending(), "0 ops are pending"));
}

TEST_P(WatchdogTest, NamesRunningOpsAndWaits) {
  if (!workers()) GTEST_SKIP() << "no op runs beside the thread that asks";
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Gate started, gate;
  eng.Push({.name = "long", .writes = {a}}, [&] {
    started.Open();
    gate.Wait();
  });
  started.Wait();
  EXPECT_FALSE(Done(eng, a));  // leaves its abandoned wait there until the op ends
  const std::string report = eng.DescribePending();
  EXPECT_TRUE(Has(report, "op 'long'"));
  EXPECT_TRUE(Has(report, "is running"));
  gate.Open();
  eng.Wait(a);
}

TEST_P(WatchdogTest, NamesOpsOfManyVars) {
  Engine eng(Quiet(workers()));
  std::vector<Var> vars(40);
  for (Var& var : vars) var = eng.NewVar("one of many");
  HeldOp held = eng.PushHeld({.name = "wide", .writes = vars}, [] {});
  const std::string report = eng.DescribePending();
  EXPECT_TRUE(Has(report, "1 ops are pending"));
  EXPECT_TRUE(Has(report, "'wide'"));
  EXPECT_TRUE(Has(report, "and 8 more blocked Vars"));
}

TEST_P(WatchdogTest, LongListsAreCut) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  HeldOp held = HoldWrite(eng, a);
  for (int i = 0; i < 500; ++i) eng.Push({.name = "queued", .updates = {a}}, [] {});
  const std::string report = eng.DescribePending();
  EXPECT_TRUE(Has(report, "501 ops are pending"));
  EXPECT_TRUE(Has(report, "and 49"));
  EXPECT_LT(report.size(), 4000u);
  held.Release();
  eng.Wait(a);
}

TEST_P(WatchdogTest, MayBeAskedWhileOthersPush) {
  EngineOptions o = Quiet(workers());
  o.max_pending = 64;
  Engine eng(o);
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!stop) {
        eng.Push({.name = "busy", .reads = {a}, .updates = {b}}, [] {});
        eng.PushAsync({.updates = {a}}, [](RunContext&, Completion done) { done(); });
      }
    });
  for (int i = 0; i < (kSanitized ? 20 : 100); ++i) EXPECT_TRUE(Has(eng.DescribePending(), "ops are pending"));
  stop = true;
  for (auto& t : threads) t.join();
  eng.WaitAll();
}

TEST_P(WatchdogTest, ReportsAStallOnce) {
  Log log;
  Gate reported;
  EngineOptions o = Quiet(workers());
  o.stall_timeout = 20ms;
  o.on_stall = [&](std::string_view report) {
    log.Add(std::string(report));
    reported.Open();
  };
  Engine eng(o);
  Var a = eng.NewVar("stuck");
  HeldOp held = eng.PushHeld({.name = "plug", .writes = {a}}, [] {});
  eng.Push({.name = "after", .reads = {a}}, [] {});
  reported.Wait();
  EXPECT_TRUE(log.Contains("no progress for 20 ms"));
  EXPECT_TRUE(log.Contains("'plug'"));
  EXPECT_TRUE(log.Contains("'after'"));
  EXPECT_TRUE(log.Contains("'stuck'"));
  EXPECT_FALSE(eng.WaitFor(a, 100ms));
  EXPECT_EQ(log.size(), 1u);
  held.Release();
  eng.WaitAll();
}

TEST_P(WatchdogTest, IdleEngineIsNoStall) {
  Log log;
  std::atomic<bool> idle{false};
  {
    EngineOptions o = Quiet(workers());
    o.stall_timeout = 4ms;
    o.on_stall =
        [&](std::string_view report) {  // on a busy machine the op itself, or its wait, may take longer than that
          if (idle && report.find("; 0 ops are pending") != report.npos) log.Add(std::string(report));
        };
    Engine eng(o), other(Quiet(1));
    Var a = eng.NewVar("a"), theirs = other.NewVar("theirs");
    eng.Push({.name = "first", .writes = {a}}, [] {});
    eng.WaitAll();
    idle = true;
    HeldOp held = HoldWrite(other, theirs);
    EXPECT_FALSE(other.WaitFor(theirs, 40ms));  // time passes, and nothing is pending here
  }
  EXPECT_EQ(log.size(), 0u);
}

}  // namespace
}  // namespace engine::test
