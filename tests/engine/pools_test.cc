// Pools: I/O never takes a compute worker, copy lanes are ordered, named pools, hooks, names and affinity of threads.
#include <pthread.h>
#include <sched.h>

#include <set>

#include "support/engine_test.h"

namespace engine::test {
namespace {

std::string ThreadName() {
  char name[32] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

WITH_ALL_WORKERS(PoolsTest);

TEST_P(PoolsTest, BlockingInputNeverTakesAComputeWorker) {
  EngineOptions o = Quiet(workers());
  o.io_threads = 2;
  Engine eng(o);
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  Gate gate;
  Counter started;
  for (const Var& v : {a, b})
    eng.Push({.writes = {v}, .place = Io()}, [&] {
      started.Add();
      gate.Wait();
    });
  started.WaitFor(2);
  for (int i = 0; i < 100; ++i) eng.Push({.updates = {c}}, [] {});
  eng.Wait(c);  // all I/O threads are blocked
  gate.Open();
  eng.WaitAll();
}

TEST_P(PoolsTest, OpsOnSeveralPoolsAreOrderedByTheirVars) {
  EngineOptions o = Quiet(workers());
  o.pools = {{.name = "left", .threads = 2}, {.name = "right"}};
  Engine eng(o);
  Var a = eng.NewVar("a");
  std::vector<int> seen;
  const std::vector<Placement> places = {Cpu(), eng.Pool("left"), Io(), eng.Pool("right"), CopyIn(), CopyOut(3)};
  for (int i = 0; i < 300; ++i)
    eng.Push({.updates = {a}, .place = places[static_cast<size_t>(i) % places.size()]}, [&, i] { seen.push_back(i); });
  eng.Wait(a);
  ASSERT_EQ(seen.size(), 300u);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST_P(PoolsTest, CopyLanesRunInPushOrderAndEachOnItsOwnThread) {
  Engine eng(Quiet(workers()));
  std::vector<int> in;
  std::set<std::string> threads_in, threads_out;
  for (int i = 0; i < 200; ++i) {
    eng.Push({.place = CopyIn(1)}, [&, i] {
      in.push_back(i);
      threads_in.insert(ThreadName());
    });
    eng.Push({.place = CopyOut(1)}, [&] { threads_out.insert(ThreadName()); });
  }
  eng.WaitAll();
  ASSERT_EQ(in.size(), 200u);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(in[static_cast<size_t>(i)], i);
  EXPECT_EQ(threads_in.size(), 1u);
  EXPECT_EQ(threads_out.size(), 1u);
  EXPECT_NE(threads_in, threads_out);
}

TEST_P(PoolsTest, NamedPoolRunsOnItsOwnThreads) {
  EngineOptions o = Quiet(workers());
  o.thread_name = "eng";
  o.pools = {{.name = "fetch", .threads = 2}};
  Engine eng(o);
  Var a = eng.NewVar("a");
  std::string name;
  int worker = -1;
  eng.Push({.writes = {a}, .place = eng.Pool("fetch")}, [&](RunContext& ctx) {
    name = ThreadName();
    worker = ctx.worker();
  });
  eng.Wait(a);
  EXPECT_TRUE(Has(name, "eng/fetch/"));
  EXPECT_TRUE(worker == 0 || worker == 1);
}

TEST_P(PoolsTest, HooksRunOnceOnEachWorkerAroundItsOps) {
  std::mutex mu;
  std::vector<int> started, ended;
  std::thread::id hook_thread, op_thread;
  {
    EngineOptions o = Quiet(workers());
    o.on_start = [&](int w) {
      std::lock_guard lock(mu);
      started.push_back(w);
    };
    o.on_end = [&](int w) {
      std::lock_guard lock(mu);
      ended.push_back(w);
    };
    o.pools = {{.name = "hooked", .threads = 1, .on_start = [&](int) { hook_thread = std::this_thread::get_id(); }}};
    Engine eng(o);
    eng.Push({.place = eng.Pool("hooked")}, [&] { op_thread = std::this_thread::get_id(); });
    for (int i = 0; i < 50; ++i) eng.Push({}, [] {});
    eng.WaitAll();
  }
  EXPECT_EQ(hook_thread, op_thread);
  std::sort(started.begin(), started.end());
  std::sort(ended.begin(), ended.end());
  std::vector<int> all;
  for (int i = 0; i < workers(); ++i) all.push_back(i);
  EXPECT_EQ(started, all);
  EXPECT_EQ(ended, all);
}

TEST(PoolsAffinityTest, WorkersRunOnTheCpusThatTheyAreGiven) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  std::vector<int> cpus;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &allowed)) cpus.push_back(i);
  const int cpu = cpus.back();
  EngineOptions o = Quiet(1);
  o.cpus = {cpu};
  Engine eng(o);
  Var a = eng.NewVar("a");
  cpu_set_t seen;
  eng.Push({.writes = {a}}, [&] { pthread_getaffinity_np(pthread_self(), sizeof(seen), &seen); });
  eng.Wait(a);
  EXPECT_EQ(CPU_COUNT(&seen), 1);
  EXPECT_TRUE(CPU_ISSET(cpu, &seen));
}

// A new thread has the processors of whoever makes it, and an idle thread those of its last role.
TEST(PoolsAffinityTest, ThoseOfOnePoolAreForNoOther) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "there is one processor";
  EngineOptions o = Quiet(1);
  o.io_threads = 1;
  for (int i = CPU_SETSIZE; o.cpus.empty();)
    if (CPU_ISSET(--i, &allowed)) o.cpus = {i};
  Engine eng(o);
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c"), d = eng.NewVar("d");
  const auto may_use = [&] {
    int count = 0;
    eng.Push({.writes = {c}, .place = Io()}, [&] {
      cpu_set_t seen;
      sched_getaffinity(0, sizeof(seen), &seen);
      count = CPU_COUNT(&seen);
    });
    eng.Wait(c);
    return count;
  };
  int made_in_an_op = 0;
  eng.Push({.writes = {a}}, [&] { made_in_an_op = may_use(); });
  eng.Wait(a);
  EXPECT_EQ(made_in_an_op, CPU_COUNT(&allowed));
  // Ops that wait give their roles away, and then play what is there.
  for (int round = 0; round < 4; ++round) {
    eng.Push({.writes = {b}, .place = Io()}, [] { std::this_thread::yield(); });
    eng.Push({.writes = {a}}, [&] { eng.Wait(b); });
    eng.Push({.writes = {d}, .place = Io()}, [&] { eng.Wait(a); });
    eng.WaitAll();
    EXPECT_EQ(may_use(), CPU_COUNT(&allowed)) << round;
  }
}

TEST(PoolsNamesTest, ThreadsCarryTheirNames) {
  EngineOptions o = Quiet(1);
  o.thread_name = "trainer";
  Engine eng(o);
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::string cpu, io;
  eng.Push({.writes = {a}}, [&] { cpu = ThreadName(); });
  eng.Push({.writes = {b}, .place = Io()}, [&] { io = ThreadName(); });
  eng.WaitAll();
  EXPECT_EQ(cpu, "trainer/cpu/0");
  EXPECT_EQ(io.substr(0, 11), "trainer/io/");
}

TEST_P(PoolsTest, OpsThatPushTheirLikeKeepNobodyOut) {
  if (workers() == 0) GTEST_SKIP() << "nobody runs them but waits";
  std::atomic<int> ran{0};
  std::atomic<bool> stop{false};
  Engine* engine = nullptr;
  std::function<void()> again = [&] {
    ++ran;
    if (!stop) engine->Push({}, again);
  };
  Engine eng(Quiet(workers()));
  engine = &eng;
  for (int i = 0; i < workers(); ++i) eng.Push({}, again);
  while (ran < 100) std::this_thread::yield();
  Gate came;
  eng.Push({}, [&] { came.Open(); });
  came.Wait();
  stop = true;
}

// What a worker that is awake alone takes beside another op lies below all that the other one pushes.
TEST_P(PoolsTest, AnOpThatIsTakenBesideAnotherHasItsTurn) {
  if (workers() == 0) GTEST_SKIP() << "nobody runs them but waits";
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> stop{false}, ran{false};
    Engine* engine = nullptr;
    std::function<void()> again = [&] {
      if (!stop) engine->Push({}, again);
    };
    Engine eng(Quiet(workers()));
    engine = &eng;
    for (int i = 0; i < 4 * workers(); ++i) eng.Push({}, again);
    eng.Push({}, [&] { ran = true; });
    while (!ran) std::this_thread::yield();
    stop = true;  // the engine ends first, and with it all ops that have not seen this
  }
}

TEST(PoolsRefusalTest, UnknownPlacesAreRefused) {
  EngineOptions o = Quiet(1);
  o.pools = {{.name = "here"}};
  Engine eng(o);
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Pool("nowhere"); }), "'here'"));
  EXPECT_THROW(eng.Push({.place = {Placement::Kind::kPool, 50}}, [] {}), UsageError);
  EXPECT_THROW(eng.Push({.place = {Placement::Kind::kPool, 5000}}, [] {}), UsageError);
  EXPECT_THROW(eng.Push({.place = CopyIn(77)}, [] {}), UsageError);
  // The places of other kinds are not to be had by number.
  for (uint16_t hidden : {0, 1, 2})
    EXPECT_THROW(eng.Push({.place = {Placement::Kind::kPool, hidden}}, [] {}), UsageError) << hidden;
}

}  // namespace
}  // namespace engine::test
