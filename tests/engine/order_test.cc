// Contract 1: conflicting ops run in the order in which they were pushed; others need not wait for each other.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(OrderTest);

TEST_P(OrderTest, WritersRunInPushOrder) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::vector<int> seen;  // guarded by the order of the ops alone
  for (int i = 0; i < 1000; ++i) eng.Push({.writes = {a}}, [&, i] { seen.push_back(i); });
  eng.Wait(a);
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST_P(OrderTest, WriterWaitsForEarlierReaders) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Log log;
  HeldOp reader1 = eng.PushHeld({.reads = {a}}, [&] { log.Add("read"); });
  HeldOp reader2 = eng.PushHeld({.reads = {a}}, [&] { log.Add("read"); });
  eng.Push({.writes = {a}}, [&] { log.Add("write"); });
  EXPECT_FALSE(Done(eng, a));
  reader1.Release();
  EXPECT_FALSE(Done(eng, a));
  reader2.Release();
  eng.Wait(a);
  EXPECT_EQ(log.lines(), (std::vector<std::string>{"read", "read", "write"}));
}

TEST_P(OrderTest, ReaderWaitsForEarlierWriter) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), out = eng.NewVar("out");
  int x = 0, y = 0;
  HeldOp writer = eng.PushHeld({.writes = {a}}, [&] { x = 7; });
  eng.Push({.reads = {a}, .writes = {out}}, [&] { y = x; });
  EXPECT_FALSE(Done(eng, out));
  writer.Release();
  eng.Wait(out);
  EXPECT_EQ(y, 7);
}

TEST_P(OrderTest, ReadersBetweenTwoWritersRunTogether) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), out = eng.NewVar("out");
  eng.Push({.writes = {a}}, [] {});
  HeldOp first = HoldRead(eng, a);
  eng.Push({.reads = {a}, .writes = {out}}, [] {});
  eng.Wait(out);  // although the first reader has not run
  first.Release();
  eng.WaitAll();
}

TEST_P(OrderTest, ReaderBehindAWaitingWriterDoesNotOvertakeIt) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), out = eng.NewVar("out");
  int x = 1, y = 0;
  HeldOp reader = HoldRead(eng, a);
  eng.Push({.writes = {a}}, [&] { x = 2; });
  eng.Push({.reads = {a}, .writes = {out}}, [&] { y = x; });
  EXPECT_FALSE(Done(eng, out));
  reader.Release();
  eng.Wait(out);
  EXPECT_EQ(y, 2);
}

TEST_P(OrderTest, OpThatSharesNothingPassesABlockedOne) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp blocked = HoldWrite(eng, a);
  eng.Push({.writes = {b}}, [] {});
  eng.Wait(b);
  EXPECT_EQ(a.version(), 0u);
}

TEST_P(OrderTest, OpWaitsForAllOfItsVars) {
  Engine eng(Quiet(workers()));
  std::vector<Var> vars;
  std::vector<HeldOp> held;
  for (int i = 0; i < 40; ++i) {  // more than the accesses that fit on the stack of a push
    vars.push_back(eng.NewVar());
    held.push_back(HoldWrite(eng, vars.back()));
  }
  Var out = eng.NewVar("out");
  eng.Push({.reads = vars, .writes = {out}}, [] {});
  for (HeldOp& h : held) {
    EXPECT_FALSE(Done(eng, out));
    h.Release();
  }
  eng.Wait(out);
}

TEST_P(OrderTest, OpsSeeTheVersionsThatTheirPlaceInTheOrderGives) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::vector<uint64_t> seen;
  eng.Push({.reads = {b}, .writes = {a}}, [&](RunContext& ctx) { seen.push_back(ctx.version(a)); });
  eng.Push({.reads = {a}, .writes = {b}}, [&](RunContext& ctx) { seen.push_back(ctx.version(a)); });
  eng.Push({.updates = {a}}, [&](RunContext& ctx) { seen.push_back(ctx.version(a)); });
  eng.Push({.reads = {a}, .writes = {b}}, [&](RunContext& ctx) {
    seen.push_back(ctx.version(a));
    seen.push_back(ctx.version(b));
    EXPECT_THROW(ctx.version(eng.NewVar("other")), UsageError);
  });
  eng.WaitAll();
  EXPECT_EQ(seen, (std::vector<uint64_t>{1, 1, 2, 2, 2}));
  EXPECT_EQ(a.version(), 2u);
}

// If one push returned before the other was called, on whatever threads, they run in that order.
TEST_P(OrderTest, PushesOfSeveralThreadsKeepTheirRealTimeOrder) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  std::vector<int> seen;
  constexpr int kThreads = 4, kRounds = 100;
  Counter turn;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int r = 0; r < kRounds; ++r) {
        const int mine = r * kThreads + t;
        turn.WaitFor(mine);
        eng.Push({.updates = {a}}, [&, mine] { seen.push_back(mine); });
        turn.Add();
      }
    });
  for (auto& t : threads) t.join();
  eng.Wait(a);
  ASSERT_EQ(seen.size(), static_cast<size_t>(kThreads * kRounds));
  for (int i = 0; i < kThreads * kRounds; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i);
}

// Pushes that overlap in time are ordered one way on all the Vars that they share.
TEST_P(OrderTest, OverlappingPushesAreOrderedOneWayOnAllSharedVars) {
  Engine eng(Quiet(workers()));
  constexpr size_t kVars = 3;
  constexpr int kThreads = 4, kOps = kSanitized ? 500 : 3000;
  std::vector<Var> vars;
  for (size_t i = 0; i < kVars; ++i) vars.push_back(eng.NewVar());
  std::vector<std::vector<int>> order(kVars);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kOps; ++i)
        eng.Push({.writes = vars}, [&, id = t * kOps + i] {
          for (auto& o : order) o.push_back(id);
        });
    });
  for (auto& t : threads) t.join();
  eng.WaitAll();
  ASSERT_EQ(order[0].size(), static_cast<size_t>(kThreads * kOps));
  EXPECT_EQ(order[0], order[1]);
  EXPECT_EQ(order[0], order[2]);
}

TEST_P(OrderTest, OpsPushedByAnOpRunAfterWhatItPushedBefore) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::vector<int> seen;
  eng.Push({.writes = {b}}, [&] {
    for (int i = 0; i < 10; ++i) eng.Push({.updates = {a}}, [&, i] { seen.push_back(i); });
  });
  eng.Wait(b);
  eng.Wait(a);
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace engine::test
