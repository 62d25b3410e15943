// The team of a run: who runs a plan's nodes, when idle workers are woken, and that the thread which waits takes part.
#include <sched.h>

#include <set>

#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

// Long enough for a team, without reading a clock.
void Toil(int rounds = 20000) {
  for (int i = 0; i < rounds; ++i) asm volatile("");
}

// `width` nodes behind one, and one behind them all, `deep` times.
template <class Body>
Plan Fans(Engine& eng, int width, int deep, Body body) {
  Graph graph;
  NodeId join = graph.Add({.name = "begin"}, [] {});
  for (int d = 0; d < deep; ++d) {
    std::vector<NodeId> parts;
    for (int i = 0; i < width; ++i) {
      parts.push_back(graph.Add({.name = "part"}, body));
      graph.Order(join, parts.back());
    }
    join = graph.Add({.name = "join"}, [] {});
    for (const NodeId part : parts) graph.Order(part, join);
  }
  return graph.Compile(eng);
}

// Each of the two nodes waits for a while until the other has begun, too, so they meet if there is a thread for each.
TEST(TeamTest, TwoReadyNodesRunAtOnce) {
  Engine eng(Quiet(2));
  std::atomic<int> begun{0}, met{0};
  Graph graph;
  for (int i = 0; i < 2; ++i)
    graph.Add({.name = "meets"}, [&] {
      Toil();  // else one thread alone would run them
      const int wanted = begun.fetch_add(1) / 2 * 2 + 2;
      for (int k = 0; k < 2000 && begun.load() < wanted; ++k) std::this_thread::yield();
      met += begun.load() >= wanted;
    });
  const Plan plan = graph.Compile(eng);
  for (int run = 0; run < 200; ++run) plan.Start().Wait();
  EXPECT_EQ(begun, 400);
  EXPECT_GT(met, 200) << "as a rule both do";
}

// When the run begins, the other worker is busy. It becomes idle while the first node runs, and that waits for the second one.
TEST(TeamTest, AWorkerThatBecomesIdleTakesWhatIsReady) {
  Engine eng(Quiet(2));
  std::atomic<int> begun{0};
  std::atomic<bool> busy{false}, free{false}, ended{false}, met{false};
  Graph graph;
  for (int i = 0; i < 2; ++i)
    graph.Add({.name = "meets"}, [&] {
      if (begun.fetch_add(1) != 0) return;
      free = true;
      free.notify_all();
      const auto patience = std::chrono::steady_clock::now() + 10s;
      while (begun.load() < 2 && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
      met = begun.load() == 2;
      ended = true;
      ended.notify_all();
    });
  const Plan plan = graph.Compile(eng);
  eng.Push({}, [&] {
    busy = true;
    busy.notify_all();
    free.wait(false);
  });
  busy.wait(false);
  engine::Run run = plan.Start();
  ended.wait(false);  // not for the run, because this thread would take part in it
  EXPECT_TRUE(met);
  run.Wait();
}

TEST(TeamTest, NeverMoreThreadsThanWorkers) {
  for (const int workers : {1, 2, 3}) {
    Engine eng(Quiet(workers));
    std::atomic<int> now{0}, most{0};
    const Plan plan = Fans(eng, 8, 4, [&] {
      const int here = ++now;
      for (int seen = most; here > seen && !most.compare_exchange_weak(seen, here);) {
      }
      Toil();
      --now;
    });
    for (int run = 0; run < 100; ++run) plan.Start().Wait();
    EXPECT_LE(most, workers);
    EXPECT_GE(most, std::min(workers, 2)) << "the team of " << workers << " workers never was one";
  }
}

// Which threads get there first is chance; within so many runs the waiting one does.
TEST(TeamTest, WhoeverWaitsTakesPart) {
  Engine eng(Quiet(2));
  std::set<std::thread::id> threads;
  std::mutex mu;
  const Plan plan = Fans(eng, 6, 4, [&] {
    Toil();
    const std::lock_guard lock(mu);
    threads.insert(std::this_thread::get_id());
  });
  for (int run = 0; run < 10000 && !threads.contains(std::this_thread::get_id()); ++run) plan.Start().Wait();
  EXPECT_TRUE(threads.contains(std::this_thread::get_id()));
}

// A wait that may end earlier must not be inside a node when its time is over.
// The waiting thread has nothing to do for far longer than it looks for tasks, and sleeps. Then it is one of the team again.
TEST(TeamTest, WhoeverSleepsInARunIsGivenATask) {
  Engine eng(Quiet(2));
  const auto me = std::this_thread::get_id();
  std::atomic<bool> alone_here{false}, part_here{false};
  Graph graph;
  const NodeId alone = graph.Add({.name = "alone"}, [&] {
    alone_here = std::this_thread::get_id() == me;
    Toil(2'000'000);
  });
  for (int i = 0; i < 8; ++i)
    graph.Order(alone, graph.Add({.name = "part"}, [&] {
      if (std::this_thread::get_id() == me) part_here = true;
      Toil();
    }));
  const Plan plan = graph.Compile(eng);
  bool given = false;
  for (int run = 0; run < 10000 && !given; ++run) {
    part_here = false;
    plan.Start().Wait();
    given = part_here && !alone_here;
  }
  EXPECT_TRUE(given);
}

// Whoever wakes a thread of the team takes its own processor away from that thread, which takes it back.
TEST(TeamTest, EachThreadMayRunWhereItMightBefore) {
  Engine eng(Quiet(2));
  const auto allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return CPU_COUNT(&set);
  };
  const int before = allowed();
  std::atomic<int> fewer{0};
  const Plan plan = Fans(eng, 6, 4, [&] {
    fewer += allowed() < before;
    Toil();
  });
  Var var = eng.NewVar();
  for (int run = 0; run < 200; ++run) {
    plan.Start().Wait();
    std::this_thread::sleep_for(std::chrono::microseconds(run % 4 * 100));  // so that workers sleep, and are woken
    eng.Push({.writes = {var}}, [&] { fewer += allowed() < before; });
    eng.Wait(var);
  }
  EXPECT_EQ(fewer, 0);
  EXPECT_EQ(allowed(), before);
}

TEST(TeamTest, AWaitWithATimeoutRunsNothing) {
  Engine eng(Quiet(2));
  std::atomic<int> here{0};
  const Plan plan = Fans(eng, 6, 4, [&here, me = std::this_thread::get_id()] {
    Toil();
    here += std::this_thread::get_id() == me;
  });
  for (int run = 0; run < 200; ++run) ASSERT_TRUE(plan.Start().WaitFor(1h));
  EXPECT_EQ(here, 0);
}

TEST(TeamTest, NodesOnTheWaitingThreadAreUnderNoneOfItsScopes) {
  Engine eng(Quiet(2));
  std::atomic<int> wrong{0};
  const Plan plan = Fans(eng, 6, 4, [&] {
    Toil();
    wrong += eng.policy() != Policy::kThreaded;
  });
  for (int run = 0; run < 500; ++run) {
    engine::Run started = plan.Start();
    const PolicyScope scope = eng.EnterPolicy({Policy::kNaive});
    started.Wait();
  }
  EXPECT_EQ(wrong, 0);
}

TEST(TeamTest, ANodeOnTheWaitingThreadMayFail) {
  Engine eng(Quiet(2));
  std::atomic<bool> fails{true};
  const Plan plan = Fans(eng, 6, 4, [&] {
    Toil();
    if (fails) throw std::domain_error("bad");
  });
  for (int run = 0; run < 100; ++run) EXPECT_THROW(plan.Start().Wait(), OpError);
  fails = false;
  for (int run = 0; run < 100; ++run) plan.Start().Wait();
}

TEST(TeamTest, ANodeOnTheWaitingThreadMayWaitAndPush) {
  Engine eng(Quiet(2));
  std::atomic<int> pushed{0};
  const Plan plan = Fans(eng, 4, 3, [&] {
    Var own = eng.NewVar("own");
    eng.Push({.name = "inner", .writes = {own}}, [&] { ++pushed; });
    Toil();
    eng.Wait(own);
  });
  for (int run = 0; run < 100; ++run) plan.Start().Wait();
  EXPECT_EQ(pushed, 1200);
}

TEST(TeamTest, ManyThreadsMayEachWaitForARun) {
  Engine eng(Quiet(2));
  std::atomic<int> ran{0};
  const Plan plan = Fans(eng, 5, 4, [&] {
    Toil(2000);
    ++ran;
  });
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c)
    clients.emplace_back([&] {
      for (int run = 0; run < 200; ++run) {
        engine::Run older = plan.Start();
        plan.Start().Wait();
        older.Wait();
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(ran, 4 * 200 * 2 * 20);
  eng.WaitAll();
}

// Threads that spin for longer than the runs take need no wake. A worker that loses its processor on its way to the spin is not
// seen there, and the other one is woken instead.
TEST(TeamTest, RunsOneAfterTheOtherWakeHardlyAnybody) {
  if (kSanitized) GTEST_SKIP() << "too slow for the spins";
  EngineOptions options = Quiet(2);
  options.spin = 1s;
  Engine eng(options);
  const Plan plan = Fans(eng, 4, 6, [] { Toil(); });
  for (int run = 0; run < 20; ++run) plan.Start().Wait();
  const uint64_t before = eng.stats().wakeups;
  for (int run = 0; run < 100; ++run) plan.Start().Wait();
  EXPECT_LE(eng.stats().wakeups - before, 20u) << "for 100 runs of 30 nodes";
}

// The start may wake one worker, and nothing else does: the run has no second task to give away.
TEST(TeamTest, AChainWakesOneWorkerAtMost) {
  Engine eng(Quiet(2));
  Graph graph;
  NodeId last = graph.Add({.name = "link"}, [] { Toil(); });
  for (int i = 0; i < 10; ++i) {
    const NodeId next = graph.Add({.name = "link"}, [] { Toil(); });
    graph.Order(last, next);
    last = next;
  }
  const Plan plan = graph.Compile(eng);
  const uint64_t before = eng.stats().wakeups;
  for (int run = 0; run < 100; ++run) plan.Start().Wait();
  EXPECT_LE(eng.stats().wakeups - before, 100u);
}

}  // namespace
}  // namespace engine::test
