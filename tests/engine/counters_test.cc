// What the counters prove: no malloc and no slab in steady state, few wakes; and that they add up.
// A binary of its own, because it replaces the allocation functions of libc.
#include <sys/resource.h>

#include <cstdlib>

#include "engine/bulk.h"
#include "engine/data.h"
#include "engine/testing/bulk_clock.h"
#include "support/on_device.h"
#include "support/threads.h"

namespace {
std::atomic<uint64_t> g_allocations{0};
thread_local constinit uint64_t t_allowed = UINT64_MAX;  // to this thread; what it asks for beyond is refused
}  // namespace

#if !defined(ENGINE_UNDER_TSAN) && !defined(ENGINE_UNDER_ASAN)
// Whether an allocation is granted.
static bool Counted() {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  if (t_allowed == UINT64_MAX) return true;
  if (t_allowed == 0) return false;
  --t_allowed;
  return true;
}
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t n) { return Counted() ? __libc_malloc(n) : nullptr; }
void* calloc(size_t n, size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(p, n);
}
void* aligned_alloc(size_t align, size_t n) { return Counted() ? __libc_memalign(align, n) : nullptr; }
}
#endif

namespace engine::test {
namespace {

WITH_ALL_WORKERS(CountersTest);

EngineOptions Bounded(int workers) {
  EngineOptions o = Quiet(workers);
  o.max_pending = 512;
  return o;
}

template <class F>
uint64_t AllocationsOf(F&& f) {
  const uint64_t before = g_allocations;
  f();
  return g_allocations - before;
}

TEST_P(CountersTest, NoMallocAndNoSlabInSteadyState) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  EXPECT_GT(AllocationsOf([&] { Engine counted(Bounded(workers())); }), 10u);  // they are counted at all
  Engine eng(Bounded(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  Operator op = eng.NewOperator({.name = "op", .reads = {a}, .updates = {c}}, [] {});
  int x = 0;
  const auto program = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      eng.Push({.name = "write", .writes = {a}}, [&x] { ++x; });
      eng.Push({.name = "read", .reads = {a, b}, .writes = {c}}, [&x] { (void)x; });
      eng.PushAsync({.updates = {b}, .priority = 1}, [](RunContext&, Completion done) { done(); });
      eng.Push(op);
      {
        HeldOp held = eng.PushHeld({.reads = {c}}, [] {});
      }
      if (i % 16 == 0) eng.Wait(c);
      if (i % 64 == 0) {
        eng.WaitToWrite(a);
        eng.WaitFor(b, 1ns);
        Var temp = eng.NewVar();
        eng.Push({.writes = {temp}}, [] {});
      }
    }
    eng.WaitAll();
  };
  program(5000);  // queues grow to what the bound needs
  // On a busy machine a thread that was held up may make a queue or a cache meet a new maximum; that ends by itself.
  // A malloc an op would be ten thousands, each time.
  uint64_t mallocs = 0, slabs = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const uint64_t before = eng.stats().slab_allocations;
    mallocs = AllocationsOf([&] { program(5000); });
    slabs = eng.stats().slab_allocations - before;
    if (mallocs <= 8 && slabs == 0) break;
  }
  EXPECT_LE(mallocs, 8u);
  EXPECT_EQ(slabs, 0u);
}

// Types cost no allocation: with Data as many as with Vars, and none in steady state.
TEST_P(CountersTest, TypedPushesAllocateNothingInSteadyState) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  Engine eng(Bounded(workers()));
  Data<int> a(eng, "a", 1), b(eng, "b", 2), c(eng, "c", 3);
  Var ticket = eng.NewVar("ticket");
  const auto program = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      eng.Push(writes(a), [](int& x) { x = 1; });
      eng.Push({.name = "sum"}, reads(a), reads(b), reads(ticket), updates(c),
               [](RunContext&, const int& x, const int& y, int& z) { z += x + y; });
      while (!eng.TryPush({.name = "tried"}, updates(ticket), updates(b), [](int& y) { ++y; })) eng.Wait(c);
      if (i % 16 == 0) eng.Wait(c);
    }
    eng.WaitAll();
  };
  program(5000);
  uint64_t mallocs = 0, slabs = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {  // see above
    const uint64_t before = eng.stats().slab_allocations;
    mallocs = AllocationsOf([&] { program(5000); });
    slabs = eng.stats().slab_allocations - before;
    if (mallocs <= 8 && slabs == 0) break;
  }
  EXPECT_LE(mallocs, 8u);
  EXPECT_EQ(slabs, 0u);
}

TEST(CountersSizeTest, APushWithARangeSideBySideAllocatesNothing) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  Engine eng(Quiet(1));
  std::vector<Var> vars{eng.NewVar(), eng.NewVar()};
  const std::vector<VarRef> refs(vars.begin(), vars.end());
  EXPECT_EQ(AllocationsOf([&] { (void)VarSet(vars).size(), (void)VarSet(refs).size(), (void)VarSet(vars[0]).size(); }),
            0u);
}

// Nothing is held there: inside a bulk or not, ops for the host take the same way.
TEST_P(CountersTest, OpsForTheHostCostNothingInABulk) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  ManualBulkClock bulk_clock;
  Engine eng(Bounded(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  constexpr uint64_t kOps = 4000;
  const auto program = [&] {
    for (uint64_t i = 0; i < kOps / 2; ++i) {
      eng.Push({.updates = {a}}, [] {});
      eng.TryPush({.reads = {a}, .updates = {b}, .priority = 1}, [] {});
      if (i % 16 == 0) eng.Wait(b);
    }
    eng.WaitAll();
  };
  program();
  Bulk bulk(eng, 15);
  program();  // queues grow to what the bound needs
  uint64_t mallocs = 0, slabs = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {  // as above
    const EngineStats before = eng.stats();
    mallocs = AllocationsOf(program);
    const EngineStats after = eng.stats();
    slabs = after.slab_allocations - before.slab_allocations;
    EXPECT_EQ(after.dispatches - before.dispatches, after.pushed - before.pushed) << "each starts by itself";
    if (mallocs <= 8 && slabs == 0) break;
  }
  EXPECT_LE(mallocs, 8u);
  EXPECT_EQ(slabs, 0u);
  EXPECT_FALSE(bulk_clock.Tick()) << "no bulk was opened, and its clock sleeps";
}

// Members that wait for ops outside are let go without memory, however many there are.
TEST_P(CountersTest, AReleaseNeedsNoMemory) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  constexpr size_t kPairs = 1200;
  Engine eng(OnDevice(workers()));
  std::vector<Var> in, out;
  std::vector<HeldOp> outside;
  std::vector<int> ran(kPairs);
  HeldOps held(eng);
  for (size_t i = 0; i < kPairs; ++i) {
    in.push_back(eng.NewVar());
    out.push_back(eng.NewVar());
    if (i % 3 == 0) outside.push_back(HoldWrite(eng, in[i]));
  }
  for (size_t i = 0; i < kPairs; ++i) {
    held.Push({.reads = {in[i]}, .writes = {out[i]}, .place = Gpu(0)}, [&ran, i] { ++ran[i]; });
    held.Push({.updates = {out[i]}, .place = Gpu(0)}, [&ran, i] { ran[i] *= 10; });
  }
  t_allowed = 0;
  held.Release();
  t_allowed = UINT64_MAX;
  for (HeldOp& h : outside) h.Release();
  eng.WaitAll();
  for (const int n : ran) EXPECT_EQ(n, 10);
}

TEST_P(CountersTest, CountersAddUp) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  for (int i = 0; i < 10; ++i) eng.Push({.updates = {a}}, [] {});
  Fail(eng, b);
  for (int i = 0; i < 5; ++i) eng.Push({.updates = {b}}, [] {});
  eng.Wait(a);
  eng.ClearError(a);
  EXPECT_THROW(eng.WaitAll(), OpError);
  const EngineStats s = eng.stats();
  EXPECT_EQ(s.pushed, 16u);
  EXPECT_EQ(s.completed, 16u);
  EXPECT_EQ(s.skipped, 5u);
  EXPECT_EQ(s.unseen_errors, 0u);
  EXPECT_EQ(s.spare_threads, 0u);
  EXPECT_GT(s.slab_bytes, 0u);
  EXPECT_GT(s.slab_allocations, 0u);
}

TEST(CountersWakeTest, ChainOfOpsWakesOneWorkerForManyOps) {
  Engine eng(Quiet(4));
  Var a = eng.NewVar("a");
  HeldOp held = HoldWrite(eng, a);
  for (int i = 0; i < 2000; ++i) eng.Push({.updates = {a}}, [] {});
  const uint64_t before = eng.stats().wakeups;
  held.Release();
  eng.Wait(a);
  const EngineStats s = eng.stats();
  EXPECT_LE(s.wakeups - before, 40u);
  EXPECT_GE(s.inlined, 1500u);
}

TEST(CountersWakeTest, WaitAllIsWokenForARunOfOpsAndNotForEach) {
  Engine eng(Quiet(1));
  Gate announced;
  eng.Push({.name = "gate"}, [&] { announced.Wait(); });
  for (int i = 0; i < 1000; ++i) {
    eng.Push({.name = "independent"}, [] {
      const auto end =
          std::chrono::steady_clock::now() + std::chrono::microseconds(10);  // time enough to wake somebody
      while (std::chrono::steady_clock::now() < end) {
      }
    });
  }
  rusage before, after;
  getrusage(RUSAGE_THREAD, &before);
  announced.Open();
  eng.WaitAll();
  getrusage(RUSAGE_THREAD, &after);
  EXPECT_LE(after.ru_nvcsw - before.ru_nvcsw, 50);
}

// Each op that WaitAll waits for pushes another one, which WaitAll does not wait for, and which runs between this one and the next.
TEST(CountersWakeTest, WaitAllIsNotWokenForOpsPushedMeanwhile) {
  Engine eng(Quiet(1));
  Gate announced;
  const auto busy = [] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(10);  // time enough to wake somebody
    while (std::chrono::steady_clock::now() < end) {
    }
  };
  eng.Push({.name = "gate"}, [&] { announced.Wait(); });
  for (int i = 0; i < 1000; ++i) {
    eng.Push({.name = "awaited"}, [&] {
      eng.Push({.name = "later"}, busy);
      busy();
    });
  }
  rusage before, after;
  getrusage(RUSAGE_THREAD, &before);
  announced.Open();
  eng.WaitAll();
  getrusage(RUSAGE_THREAD, &after);
  EXPECT_LE(after.ru_nvcsw - before.ru_nvcsw, 50);
  eng.WaitAll();
}

// How often this thread slept in a WaitAll; `waiting` gets its number.
long SwitchesOfWaitAll(Engine& eng, std::atomic<int>& waiting) {
  waiting = gettid();
  rusage before, after;
  getrusage(RUSAGE_THREAD, &before);
  eng.WaitAll();
  getrusage(RUSAGE_THREAD, &after);
  return after.ru_nvcsw - before.ru_nvcsw;
}

// Its workers sleep and wake for other ops meanwhile.
TEST(CountersWakeTest, WaitAllSleepsOnWhileWorkersFallAsleep) {
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp awaited = HoldWrite(eng, a);
  std::atomic<int> waiting{0};
  long switches = 0;
  std::thread waiter([&] { switches = SwitchesOfWaitAll(eng, waiting); });
  AwaitAsleep(waiting);
  const uint64_t slept = eng.stats().sleeps;
  while (eng.stats().sleeps - slept < 100) {  // on a busy machine an op may be there before its worker sleeps
    eng.Push({.updates = {b}}, [] {});
    eng.Wait(b);
  }
  awaited.Release();
  waiter.join();
  EXPECT_LE(switches, 20);
}

// All are of the epoch that it waits for, and retire one after the other.
TEST(CountersWakeTest, WaitAllSleepsOnWhileOpsRetireOnADevice) {
  Engine eng(OnDevice(2));
  constexpr size_t kOps = 100;
  std::vector<Var> vars;
  std::vector<HeldOp> before;
  for (size_t i = 0; i < kOps; ++i) {
    vars.push_back(eng.NewVar());
    before.push_back(HoldWrite(eng, vars[i]));
    eng.Push({.updates = {vars[i]}, .place = Gpu(0)}, [] {});
  }
  std::atomic<int> waiting{0};
  long switches = 0;
  std::thread waiter([&] { switches = SwitchesOfWaitAll(eng, waiting); });
  AwaitAsleep(waiting);
  for (size_t i = 0; i < kOps; ++i) {
    before[i].Release();
    eng.Wait(vars[i]);
  }
  waiter.join();
  EXPECT_LE(switches, 20);
}

TEST(CountersWakeTest, WorkersWithoutWorkSleep) {
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a");
  for (int i = 0; i < 50; ++i) {
    eng.Push({.updates = {a}}, [] {});
    eng.Wait(a);
  }
  const EngineStats s = eng.stats();
  EXPECT_LE(s.wakeups, 150u);
  EXPECT_LE(s.sleeps, 200u);
}

// The other worker is awake, so no op would be late for a sleep; but its own next op would be.
TEST(CountersWakeTest, AnIdleWorkerSpinsBesideOneThatIsBusy) {
  EngineOptions o = Quiet(2);
  o.spin = 1s;
  Engine eng(o);
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Gate running, end;
  eng.Push({.updates = {a}}, [&] {
    running.Open();
    end.Wait();
  });
  running.Wait();
  const uint64_t slept = eng.stats().sleeps;
  constexpr int kRounds = 60;  // fewer than a worker takes the mean of: these ops must not count as tiny
  for (int i = 0; i < kRounds; ++i) {
    eng.Push({.updates = {b}}, [] {});
    eng.Wait(b);
    for (int turn = 0; turn < 100; ++turn) std::this_thread::yield();  // the worker has time to fall asleep
  }
  EXPECT_LE(eng.stats().sleeps - slept, kRounds / 4u) << "a worker slept between two ops, a second before it should";
  end.Open();
  eng.Wait(a);
}

TEST(CountersSizeTest, PendingOpWithFourVarsTakesAtMost256Bytes) {
  EngineOptions o = Quiet(1);
  o.max_pending = 1 << 20;
  Engine eng(o);
  Var a = eng.NewVar(), b = eng.NewVar(), c = eng.NewVar(), d = eng.NewVar();
  HeldOp held = HoldWrite(eng, a);
  const uint64_t before = eng.stats().slab_bytes;
  constexpr int kOps = 20'000;
  int64_t sum = 0;
  for (int64_t i = 0; i < kOps; ++i)
    eng.Push({.updates = {a, b, c, d}}, [&sum, x = i, y = i, z = i] { sum += x + y + z; });
  const double bytes = static_cast<double>(eng.stats().slab_bytes - before) / kOps;
  EXPECT_LE(bytes, 256 * 1.03);  // and what is left of the last slab
  held.Release();
  eng.Wait(a);
}

}  // namespace
}  // namespace engine::test
