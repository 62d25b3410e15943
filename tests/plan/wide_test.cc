// Nodes that may use several threads of their run's team (NodeDesc::threads).
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

Plan OneWide(Engine& eng, int threads, const std::function<void(NodeContext&)>& body) {
  Graph graph;
  // Long enough for a team, and more tasks than one.
  const NodeId before = graph.Add({.name = "before"}, [] {
    for (int i = 0; i < 20000; ++i) asm volatile("");
  });
  const NodeId wide = graph.Add({.name = "wide", .threads = threads}, body);
  graph.Order(before, wide);
  graph.Order(wide, graph.Add({.name = "after"}, [] {}));
  graph.Add({.name = "aside"}, [] {});
  return graph.Compile(eng);
}

// The first piece waits for a while until another has begun, too, so two threads meet if they share the loop.
TEST(WideTest, ThreadsOfTheTeamShareTheLoop) {
  Engine eng(Quiet(2));
  std::atomic<int> pieces{0}, begun{0}, shared{0};
  const Plan plan = OneWide(eng, 2, [&](NodeContext& ctx) {
    begun = 0;
    ctx.ParallelFor(8, 1, [&](size_t, size_t) {
      ++pieces;
      if (++begun != 1) return;
      for (int k = 0; k < 2000 && begun < 2; ++k) std::this_thread::yield();
      shared += begun >= 2;
    });
  });
  for (int run = 0; run < 200; ++run) plan.Start().Wait();
  EXPECT_EQ(pieces, 1600);
  EXPECT_GT(shared, 100) << "as a rule two do";
}

// The plan's only task: without a wide node one thread would run all of it.
TEST(WideTest, TheLoopOfAChainIsSharedToo) {
  Engine eng(Quiet(2));
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::thread::id> threads;
  Graph graph;
  const NodeId before = graph.Add({.name = "before"}, [] {});
  graph.Order(before, graph.Add({.name = "wide", .threads = 2}, [&](NodeContext& ctx) {
    ctx.ParallelFor(8, 1, [&](size_t begin, size_t) {
      std::unique_lock lock(mutex);
      threads.insert(std::this_thread::get_id());
      changed.notify_all();
      if (begin == 0) changed.wait_for(lock, std::chrono::seconds(10), [&] { return threads.size() == 2; });
    });
  }));
  graph.Compile(eng).Start().Wait();
  EXPECT_EQ(threads.size(), 2u);
}

// Each of the three waits until all are in the loop; nobody but the node's thread and its first helper know of it otherwise.
TEST(WideTest, AsManyThreadsComeAsTheNodeMayUse) {
  Engine eng(Quiet(3));
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::thread::id> threads;
  Graph graph;
  const NodeId before = graph.Add({.name = "before"}, [] {});
  graph.Order(before, graph.Add({.name = "wide", .threads = 3}, [&](NodeContext& ctx) {
    ctx.ParallelFor(12, 1, [&](size_t, size_t) {
      std::unique_lock lock(mutex);
      threads.insert(std::this_thread::get_id());
      changed.notify_all();
      changed.wait_for(lock, std::chrono::seconds(10), [&] { return threads.size() == 3; });
    });
  }));
  graph.Compile(eng).Start().Wait();
  EXPECT_EQ(threads.size(), 3u);
}

// The helper that a loop invites may not lie behind ops that the node has pushed: the run would end with them only.
TEST(WideTest, TheRunEndsBeforeOpsThatItsNodeHasPushed) {
  for (int round = 0; round < 50; ++round) {
    Engine eng(Quiet(2));
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    std::atomic<int> late{0};
    Graph graph;
    const NodeId before = graph.Add({.name = "before"}, [] {});
    graph.Order(before, graph.Add({.name = "wide", .threads = 2}, [&](NodeContext& ctx) {
      for (int i = 0; i < 6; ++i)
        eng.Push({.name = "waits"}, [&] {
          std::unique_lock lock(mutex);
          late += !changed.wait_for(lock, std::chrono::seconds(10), [&] { return over; });
        });
      ctx.ParallelFor(8, 1, [](size_t, size_t) {});
    }));
    graph.Compile(eng).Start().Wait();
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    changed.notify_all();
    eng.WaitAll();
    ASSERT_EQ(late, 0) << "in round " << round;
  }
}

// Two threads are in the loop, of which the second has made `next` ready before it came. The third is free for it.
TEST(WideTest, WhatIsReadyIsForOthersWhileAThreadHelps) {
  Engine eng(Quiet(3));
  std::mutex mutex;
  std::condition_variable changed;
  int pieces = 0, next = 0, late = 0;
  const auto await = [&](const auto& seen) {
    std::unique_lock lock(mutex);
    late += !changed.wait_for(lock, std::chrono::seconds(10), seen);
  };
  const auto count = [&](int& of) {
    const std::lock_guard lock(mutex);
    ++of;
    changed.notify_all();
  };
  Graph graph;
  graph.Add({.name = "wide", .threads = 2}, [&](NodeContext& ctx) {
    ctx.ParallelFor(2, 1, [&](size_t, size_t) {
      count(pieces);
      await([&] { return next == 2; });
    });
  });
  const NodeId helps = graph.Add({.name = "helps"}, [&] { await([&] { return pieces >= 1; }); });
  for (int i = 0; i < 2; ++i) graph.Order(helps, graph.Add({.name = "next"}, [&] { count(next); }));
  graph.Add({.name = "other"}, [&] { await([&] { return pieces >= 2; }); });
  graph.Compile(eng).Start().Wait();
  EXPECT_EQ(late, 0);
}

TEST(WideTest, NeverMoreThreadsThanTheNodeMayUse) {
  Engine eng(Quiet(3));
  for (const int threads : {1, 2}) {
    std::atomic<int> now{0}, most{0};
    const Plan plan = OneWide(eng, threads, [&](NodeContext& ctx) {
      ctx.ParallelFor(100, 1, [&](size_t begin, size_t end) {
        const int here = ++now;
        for (int seen = most; here > seen && !most.compare_exchange_weak(seen, here);) {
        }
        for (size_t i = 0; i < 2000 * (end - begin); ++i) asm volatile("");
        --now;
      });
    });
    for (int run = 0; run < 100; ++run) plan.Start().Wait();
    EXPECT_LE(most, threads);
  }
}

TEST(WideTest, EveryIndexOnceUnderEveryPolicy) {
  Engine eng(Quiet(2));
  std::vector<std::atomic<int>> seen(1000);
  const Plan plan = OneWide(eng, 2, [&](NodeContext& ctx) {
    ctx.ParallelFor(seen.size(), 7, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) ++seen[i];
    });
    ctx.ParallelFor(0, 1, [&](size_t, size_t) { FAIL() << "there is nothing to do"; });
  });
  int runs = 0;
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive, Policy::kCostModel})
    for (int i = 0; i < 50; ++i, ++runs) plan.Start({}, {.policy = policy}).Wait();
  for (const auto& count : seen) ASSERT_EQ(count, runs);
}

TEST(WideTest, TwoWideNodesAtOnce) {
  Engine eng(Quiet(3));
  std::atomic<int> sum{0};
  Graph graph;
  for (int n = 0; n < 2; ++n)
    graph.Add({.name = "wide", .threads = 3}, [&](NodeContext& ctx) {
      ctx.ParallelFor(64, 1, [&](size_t begin, size_t end) {
        for (size_t i = 0; i < 2000 * (end - begin); ++i) asm volatile("");
        sum += static_cast<int>(end - begin);
      });
    });
  const Plan plan = graph.Compile(eng);
  for (int run = 0; run < 200; ++run) plan.Start().Wait();
  EXPECT_EQ(sum, 200 * 128);
}

TEST(WideTest, AnExceptionOfAPieceFailsTheNode) {
  Engine eng(Quiet(2));
  const Plan plan = OneWide(eng, 2, [](NodeContext& ctx) {
    ctx.ParallelFor(50, 1, [](size_t begin, size_t) {
      if (begin >= 20) throw std::domain_error("piece");
    });
  });
  for (int run = 0; run < 100; ++run) {
    const OpError error = ErrorOf([&] { plan.Start().Wait(); });
    EXPECT_EQ(error.op(), "wide");
    EXPECT_TRUE(CausedBy<std::domain_error>(error));
  }
}

TEST(WideTest, ALoopInsideAPieceRunsOnItsThread) {
  Engine eng(Quiet(2));
  std::atomic<int> inner{0};
  const Plan plan = OneWide(eng, 2, [&](NodeContext& ctx) {
    ctx.ParallelFor(8, 1, [&](size_t, size_t) {
      const std::thread::id here = std::this_thread::get_id();
      ctx.ParallelFor(8, 1, [&](size_t begin, size_t end) {
        EXPECT_EQ(std::this_thread::get_id(), here);
        inner += static_cast<int>(end - begin);
      });
    });
  });
  plan.Start().Wait();
  EXPECT_EQ(inner, 64);
}

TEST(WideTest, AWaitInsideAPieceIsRefused) {
  Engine eng(Quiet(2));
  Var var = eng.NewVar("var");
  eng.Push({.name = "writes", .writes = {var}}, [] {});
  const Plan plan = OneWide(eng, 2, [&](NodeContext& ctx) {
    ctx.ParallelFor(8, 1, [&](size_t, size_t) {
      HeldOp held = HoldWrite(eng, var);
      eng.Wait(var);
    });
  });
  const OpError error = ErrorOf([&] { plan.Start().Wait(); });
  EXPECT_TRUE(CausedBy<UsageError>(error));
}

TEST(WideTest, ANumberOfThreadsOutOfRangeIsRefused) {
  Graph graph;
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Add({.name = "n", .threads = 256}, [] {}); }),
                  "asks for 256 threads; 0 to 255 are allowed"));
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Add({.name = "n", .threads = -1}, [] {}); }), "asks for -1 threads"));
}

TEST(WideTest, AScheduleMaySayHowMany) {
  Engine eng(Quiet(2));
  std::set<std::thread::id> threads;
  std::mutex mu;
  const Plan plan = OneWide(eng, 2, [&](NodeContext& ctx) {
    ctx.ParallelFor(8, 1, [&](size_t, size_t) {
      const std::lock_guard lock(mu);
      threads.insert(std::this_thread::get_id());
    });
  });
  const Plan narrow = plan.With({.threads = {1, 1, 1, 1}});
  for (int run = 0; run < 50; ++run) {
    threads.clear();
    narrow.Start().Wait();
    EXPECT_EQ(threads.size(), 1u);
  }
  EXPECT_TRUE(Has(RefusalOf([&] { plan.With({.threads = {1}}); }), "Schedule::threads has 1 entries for a graph of 4"));
}

}  // namespace
}  // namespace engine::test
