// Ops for the host pass a bulk by: none is held, whatever it holds meanwhile, and the order is that of the pushes.
#include <numeric>

#include "engine/bulk.h"
#include "engine/testing/bulk_clock.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(BulkHostTest);

TEST_P(BulkHostTest, OpsForTheHostStartAtOnceWhileItHoldsOthers) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::atomic<int> host{0}, device{0};
  Bulk bulk(eng);
  eng.Push({.updates = {a}, .place = Gpu(0)}, [&] { ++device; });
  for (const Placement& place : {Cpu(), Io(), CopyIn(1)}) {
    eng.Push({.updates = {b}, .place = place}, [&] { ++host; });
    bulk.Push({.updates = {b}, .place = place, .priority = 1}, [&] { ++host; });
    EXPECT_TRUE(eng.TryPush({.updates = {b}, .place = place}, [&] { ++host; }));
    eng.PushAsync({.updates = {b}, .place = place}, [&](RunContext&, Completion done) {
      ++host;
      done();
    });
  }
  eng.Wait(b);
  EXPECT_EQ(host, 12);
  EXPECT_EQ(device, 0) << "still held";
  eng.Push({.updates = {a}, .place = Gpu(0)}, [&] { ++device; });
  bulk.Release();
  eng.WaitAll();
  EXPECT_EQ(device, 2);
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 13u) << "one for the device, and each op for the host by itself";
}

TEST_P(BulkHostTest, OpsForTheHostOpenNothing) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a");
  Bulk bulk(eng);
  for (int i = 0; i < 100; ++i) eng.Push({.updates = {a}}, [] {});
  bulk.Push({.updates = {a}}, [] {});
  bulk.Push({.updates = {a}, .place = Io()}, [] {});
  EXPECT_FALSE(bulk_clock.Tick()) << "no bulk is open, and the clock would sleep";
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 102u);
}

// Nor do they keep it open: only what it holds counts as its owner's pushes.
TEST_P(BulkHostTest, OpsForTheHostDoNotPutOffItsEnd) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  const Bulk bulk(eng);
  eng.Push({.updates = {a}, .place = Gpu(0)}, [] {});
  EXPECT_TRUE(bulk_clock.Tick());
  eng.Push({.updates = {b}}, [] {});
  EXPECT_TRUE(bulk_clock.Tick());
  EXPECT_FALSE(bulk_clock.Tick());
  while (a.version() == 0) std::this_thread::yield();  // without anybody's wait
}

TEST_P(BulkHostTest, AnOpForTheHostThatNeedsAMemberReleasesIt) {
  ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  int x = 0, seen = 0;
  const Bulk bulk(eng);
  eng.Push({.writes = {a}, .place = Gpu(0)}, [&] { x = 1; });
  eng.Push({.updates = {a}, .place = Gpu(0)}, [&] { x += 6; });
  eng.Push({.reads = {a}, .writes = {b}}, [&] { seen = x; });
  while (a.version() < 2) std::this_thread::yield();  // without anybody's wait
  eng.Wait(b);
  EXPECT_EQ(seen, 7);
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 2u);
}

TEST_P(BulkHostTest, AChangeOfPolicyInsideItKeepsTheOrder) {
  const ManualBulkClock bulk_clock;
  Engine eng(OnDevice(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::vector<int> order;
  const auto op = [&](int i) { return [&order, i] { order.push_back(i); }; };
  const Bulk bulk(eng);
  eng.Push({.updates = {a}, .place = Gpu(0)}, op(0));
  for (const Policy policy : {Policy::kNaive, Policy::kInline, Policy::kThreaded}) {
    eng.SetPolicy(policy);
    bool ran = false;
    eng.Push({.updates = {b}}, [&] { ran = true; });
    eng.Wait(b);
    EXPECT_TRUE(ran);
    const int n = static_cast<int>(order.size()) + (order.empty() ? 1 : 0);
    eng.Push({.updates = {a}, .place = Gpu(0)}, op(n));      // held with the one before
    eng.Push({.updates = {a}}, op(n + 1));                   // for the host, behind both
    eng.Push({.updates = {a}, .place = Gpu(0)}, op(n + 2));  // held again
    eng.Wait(a);
  }
  std::vector<int> expected(order.size());
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_EQ(order.size(), 10u);
}

}  // namespace
}  // namespace engine::test
