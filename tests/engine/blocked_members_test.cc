// What a chain of held ops does when one of its members waits for an op outside at its turn: it waits with it where no other
// could be ready before, else it goes on with those that are ready, and the others start by themselves.
#include "support/on_device.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(BlockedMembersTest);

TEST_P(BlockedMembersTest, HoldUpNoneThatIsReady) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOp outside = HoldWrite(eng, b);
  HeldOps held(eng);
  bool last = false;
  held.Push({.writes = {a}, .place = Gpu(0)}, [] {});
  held.Push({.reads = {b}, .writes = {c}, .place = Gpu(0)}, [] {});
  held.Push({.updates = {c}, .place = Gpu(0)}, [&] { last = true; });
  held.Release();
  eng.Wait(a);
  EXPECT_FALSE(Done(eng, c));
  outside.Release();
  eng.Wait(c);
  EXPECT_TRUE(last);
}

// What it waits for may itself wait for a member behind it.
TEST_P(BlockedMembersTest, HoldBackOnlyWhatDependsOnThem) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOp outside = HoldWrite(eng, a);
  HeldOps held(eng);
  std::vector<int> after_a;
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] { after_a.push_back(1); });
  held.Push({.updates = {b}, .place = Gpu(0)}, [] {});
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] { after_a.push_back(2); });
  held.Push({.reads = {b}, .writes = {c}, .place = Gpu(0)}, [] {});
  held.Push({.reads = {a, c}, .place = Gpu(0)}, [&] { after_a.push_back(3); });
  held.Release();
  eng.Wait(c);
  EXPECT_TRUE(after_a.empty());
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(after_a, (std::vector<int>{1, 2, 3}));
}

TEST_P(BlockedMembersTest, OfMoreVarsHoldUpNoneOfFewer) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), done = eng.NewVar("done");
  HeldOp outside = HoldWrite(eng, b);
  HeldOps held(eng);
  bool ran = false;
  held.Push({.reads = {a, b}, .place = Gpu(0)}, [&] { ran = true; });
  held.Push({.reads = {a}, .writes = {done}, .place = Gpu(0)}, [] {});
  held.Release();
  eng.Wait(done);
  EXPECT_FALSE(ran);
  outside.Release();
  eng.WaitAll();
  EXPECT_TRUE(ran);
}

TEST_P(BlockedMembersTest, MayWaitForWhatTheBodyOfALaterOneEnds) {
  Engine eng(OnDevice(workers()));
  Var received = eng.NewVar("received"), sent = eng.NewVar("sent");
  Completion arrived;
  Gate started;
  eng.PushAsync({.name = "receive", .writes = {received}}, [&](RunContext&, Completion done) {
    arrived = std::move(done);
    started.Open();
  });
  HeldOps held(eng);
  bool used = false;
  held.Push({.name = "use", .reads = {received}, .place = Gpu(0)}, [&] { used = true; });
  held.Push({.name = "send", .writes = {sent}, .place = Gpu(0)}, [&] {
    started.Wait();
    arrived();
  });
  held.Release();
  eng.WaitAll();
  EXPECT_TRUE(used);
}

TEST_P(BlockedMembersTest, OfManyVarsAreLookedAtWhole) {
  Engine eng(OnDevice(workers()));
  std::vector<Var> vars;
  for (int i = 0; i < 100; ++i) vars.push_back(eng.NewVar());
  Var free = eng.NewVar("free");
  HeldOp outside = HoldWrite(eng, vars[0]);
  HeldOps held(eng);
  std::vector<int> order;
  held.Push({.updates = vars, .place = Gpu(0)}, [&] { order.push_back(0); });
  for (int i = 1; i < 100; ++i)
    held.Push({.updates = {vars[static_cast<size_t>(i)]}, .place = Gpu(0)}, [&, i] { order.push_back(i); });
  held.Push({.writes = {free}, .place = Gpu(0)}, [] {});
  held.Release();
  eng.Wait(free);
  EXPECT_TRUE(order.empty());
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(order.size(), 100u);
  EXPECT_EQ(order[0], 0);
}

// The last depends on the first, which starts by itself, and on the second, which is still running then.
TEST_P(BlockedMembersTest, StartAfterThoseThatWereReady) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp outside = HoldWrite(eng, a);
  Gate running, finish;
  bool over = false;
  HeldOps held(eng);
  held.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  held.Push({.updates = {b}, .place = Gpu(0)}, [&] {
    running.Open();
    finish.Wait();
    over = true;
  });
  held.Push({.updates = {a, b}, .place = Gpu(0)}, [&] { EXPECT_TRUE(over); });
  held.Release();
  running.Wait();
  outside.Release();
  finish.Open();
  eng.WaitAll();
  EXPECT_EQ(b.version(), 2u);
}

// The second look: the first member is through, and the next one waits for something else.
TEST_P(BlockedMembersTest, AreFoundAgainBehindOneThatAllWaitedFor) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), done = eng.NewVar("done");
  HeldOp first = HoldWrite(eng, a), second = HoldWrite(eng, b);
  HeldOps held(eng);
  bool ran = false;
  held.Push({.reads = {a}, .place = Gpu(0)}, [] {});
  held.Push({.reads = {a, b}, .place = Gpu(0)}, [&] { ran = true; });
  held.Push({.reads = {a}, .writes = {done}, .place = Gpu(0)}, [] {});
  held.Release();
  first.Release();
  eng.Wait(done);
  EXPECT_FALSE(ran);
  second.Release();
  eng.WaitAll();
  EXPECT_TRUE(ran);
}

// Each one straight behind the one before it, and one that waits outside in the middle: nothing behind that could be ready.
TEST_P(BlockedMembersTest, InARowThatWaitsAsOneKeepTheirOrder) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp first = HoldWrite(eng, a), second = HoldWrite(eng, b);
  HeldOps held(eng);
  std::vector<int> order;
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] { order.push_back(1); });
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] { order.push_back(2); });
  held.Push({.reads = {b}, .updates = {a}, .place = Gpu(0)}, [&] { order.push_back(3); });
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] { order.push_back(4); });
  held.Release();
  EXPECT_FALSE(Done(eng, a));
  first.Release();
  second.Release();
  eng.Wait(a);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

TEST_P(BlockedMembersTest, AreSkippedWithTheirPoisonAndTheOthersRun) {
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  HeldOp outside = eng.PushHeld({.name = "bad", .writes = {a}}, [] { throw std::runtime_error("planted"); });
  HeldOps held(eng);
  held.Push({.reads = {a}, .writes = {b}, .place = Gpu(0)}, [] { FAIL() << "must be skipped"; });
  held.Push({.updates = {c}, .place = Gpu(0)}, [] {});
  held.Push({.updates = {b}, .place = Gpu(0)}, [] { FAIL() << "must be skipped"; });
  held.Push({.updates = {c}, .place = Gpu(0)}, [] {});
  held.Release();
  eng.Wait(c);
  EXPECT_EQ(c.version(), 2u);
  outside.Release();
  EXPECT_EQ(ErrorOf([&] { eng.Wait(b); }).op(), "bad");
}

TEST(BlockedMembersDispatches, InARowStayTogether) {
  Engine eng(OnDevice(1));
  Var a = eng.NewVar("a");
  HeldOp outside = HoldWrite(eng, a);
  HeldOps held(eng);
  for (int i = 0; i < 100; ++i) held.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  held.Release();
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 2u) << "the write, and the row behind it";
  EXPECT_EQ(eng.device_stats().records, 1u);
}

// A step that is pushed while the one before it still runs: each layer reads what one before it writes, but for two that only
// share what they read.
TEST(BlockedMembersDispatches, BehindOthersThatWaitStayTogether) {
  Engine eng(OnDevice(1));
  Var in = eng.NewVar("in"), a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c"), d = eng.NewVar("d");
  HeldOp outside = HoldWrite(eng, in);
  HeldOps held(eng);
  std::vector<int> order;
  const auto run = [&order](int i) { return [&order, i] { order.push_back(i); }; };
  held.Push({.reads = {in}, .writes = {a}, .place = Gpu(0)}, run(0));
  held.Push({.reads = {a}, .writes = {b}, .place = Gpu(0)}, run(1));
  held.Push({.reads = {b}, .writes = {c}, .place = Gpu(0)}, run(2));
  held.Push({.reads = {b}, .writes = {d}, .place = Gpu(0)}, run(3));
  held.Push({.updates = {a}, .place = Gpu(0)}, run(4));
  held.Release();
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 2u) << "the write, and all that is behind it";
  EXPECT_EQ(eng.device_stats().records, 1u);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

// The one that they are behind is too far back to be looked at: then each starts by itself.
TEST(BlockedMembersDispatches, FarBehindTheOneThatWaitsRunAllTheSame) {
  Engine eng(OnDevice(1));
  Var in = eng.NewVar("in"), a = eng.NewVar("a");
  HeldOp outside = HoldWrite(eng, in);
  HeldOps held(eng);
  std::vector<int> order;
  constexpr int kReaders = 40;
  held.Push({.reads = {in}, .writes = {a}, .place = Gpu(0)}, [&] { order.push_back(0); });
  for (int i = 1; i <= kReaders; ++i) held.Push({.reads = {a}, .place = Gpu(0)}, [&, i] { order.push_back(i); });
  held.Push({.updates = {a}, .place = Gpu(0)}, [&] { order.push_back(-1); });
  held.Release();
  EXPECT_FALSE(Done(eng, a));
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(order.size(), size_t{kReaders} + 2);
  EXPECT_EQ(order.front(), 0);
  EXPECT_EQ(order.back(), -1);
}

TEST(BlockedMembersDispatches, LeaveThoseThatAreReadyTogether) {
  Engine eng(OnDevice(1));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp outside = HoldWrite(eng, a);
  HeldOps held(eng);
  for (int i = 0; i < 2; ++i) held.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  for (int i = 0; i < 10; ++i) held.Push({.reads = {b}, .place = Gpu(0)}, [] {});
  held.Release();
  while (eng.stats().completed < 10) std::this_thread::yield();  // without anybody's wait
  EXPECT_EQ(eng.stats().dispatches, 1u);
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 4u) << "and the write, and each of the two that waited for it";
}

TEST(BlockedMembersDispatches, ReadersOfWhatTheFirstWaitsForStayWithIt) {
  Engine eng(OnDevice(2));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp outside = HoldWrite(eng, a);
  HeldOps held(eng);
  std::vector<int> order;
  for (int i = 0; i < 10; ++i) held.Push({.reads = {a}, .place = Gpu(0)}, [&order, i] { order.push_back(i); });
  held.Push({.reads = {a, b}, .place = Gpu(0)}, [&] { order.push_back(10); });
  held.Release();
  outside.Release();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 2u) << "the write, and the readers";
  for (int i = 0; i <= 10; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace engine::test
