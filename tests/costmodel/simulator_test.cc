// The queue of ready tasks by rank, and the scheduler on a virtual clock.
#include "simulator.h"

#include <set>

#include "batching.h"
#include "engine/spi/rank_queue.h"
#include "random_dag.h"

namespace engine::costmodel {
namespace {

using test::Random;
using test::RandomDag;

TEST(RankQueueTest, IsASortedSet) {
  SCOPED_TRACE(test::SeedLine());
  Random random(test::Seed());
  for (const uint32_t places : {1u, 64u, 65u, 5000u, 300000u}) {
    std::vector<uint64_t> words(RankQueue::WordsFor(places));
    RankQueue queue(words.data(), places);
    std::set<uint32_t> expected;
    for (int i = 0; i < 3000; ++i) {
      const auto place = static_cast<uint32_t>(random.Below(places));
      if (random.OneIn(2) && expected.insert(place).second) queue.Add(place);
      if (random.OneIn(3)) {
        const uint32_t first = expected.empty() ? RankQueue::kNothing : *expected.begin();
        ASSERT_EQ(queue.TakeFirst(), first);
        expected.erase(first);
      }
      if (random.OneIn(5)) {
        const uint32_t last = expected.empty() ? RankQueue::kNothing : *expected.rbegin();
        ASSERT_EQ(queue.TakeLast(), last);
        expected.erase(last);
      }
      ASSERT_EQ(queue.size(), expected.size());
    }
  }
}

Contracted Batches(const RandomDag& r, int workers, double dispatch) {
  return Contract(r.dag, r.cost, Batch(r.dag, r.cost, std::vector<uint32_t>(r.dag.size(), 0), {dispatch, workers}));
}

TEST(SimulatorTest, SchedulesAreValidAndWithinTheBounds) {
  SCOPED_TRACE(test::SeedLine());
  Random random(test::Seed());
  for (int i = 0; i < 60; ++i) {
    const RandomDag r(random, 200, 3, 10);
    const int workers = 1 + static_cast<int>(random.Below(16));
    const Critical critical = FindCritical(r.dag, r.cost);
    std::vector<double> begin;
    const Simulated alone = Simulate(r.dag, r.cost, critical.rank, workers, 0, 0, &begin);
    EXPECT_EQ(alone.ran, r.dag.size());
    for (const auto& e : r.edges) EXPECT_GE(begin[e.to], begin[e.from] + r.cost[e.from] - 1e-6);
    std::vector<std::pair<double, int>> changes;
    for (uint32_t n = 0; n < r.dag.size(); ++n) {
      changes.emplace_back(begin[n] + 1e-6, 1);
      changes.emplace_back(begin[n] + r.cost[n], -1);
    }
    std::sort(changes.begin(), changes.end());
    int running = 0;
    for (const auto& [at, change] : changes) EXPECT_LE(running += change, workers);
    EXPECT_GE(alone.makespan, critical.Bound(workers) * (1 - 1e-9));
    EXPECT_LE(alone.makespan, (critical.work / workers + critical.length) * (1 + 1e-9)) << "Graham's bound";
  }
}

TEST(SimulatorTest, BatchesPayWhereADispatchCosts) {
  SCOPED_TRACE(test::SeedLine());
  Random random(test::Seed());
  double with = 0, without = 0;
  for (int i = 0; i < 20; ++i) {
    const RandomDag r(random, 400, 2, 10);
    const Contracted tasks = Batches(r, 4, 200);
    const Critical merged = FindCritical(tasks.dag, tasks.cost), alone = FindCritical(r.dag, r.cost);
    EXPECT_LT(tasks.dag.size(), r.dag.size());
    with += Simulate(tasks.dag, tasks.cost, merged.rank, 4, 0, 200).makespan;
    without += Simulate(r.dag, r.cost, alone.rank, 4, 0, 200).makespan;
  }
  EXPECT_LT(with, without);
}

TEST(SimulatorTest, IsDeterministic) {
  Random random(7);
  const RandomDag r(random, 2000, 3, 10);
  const Contracted tasks = Batches(r, 8, 50);
  const Critical critical = FindCritical(tasks.dag, tasks.cost);
  const Simulated first = Simulate(tasks.dag, tasks.cost, critical.rank, 8, 20, 50);
  for (int i = 0; i < 3; ++i) {
    const Simulated again = Simulate(tasks.dag, tasks.cost, critical.rank, 8, 20, 50);
    EXPECT_EQ(again.makespan, first.makespan);
    EXPECT_EQ(again.queued, first.queued);
  }
}

TEST(SimulatorTest, TheQueueIsTakenByOneAtATime) {
  const Dag dag(100, std::vector<Graph::Edge>{});
  const std::vector<double> cost(100, 1), rank(100, 1);
  EXPECT_DOUBLE_EQ(Simulate(dag, cost, rank, 100, 10).makespan, 1001);
  EXPECT_DOUBLE_EQ(Simulate(dag, cost, rank, 100, 0).makespan, 1);
}

}  // namespace
}  // namespace engine::costmodel
