// Ranks, bounds and batches.
#include "batching.h"

#include <algorithm>
#include <map>

#include "random_dag.h"

namespace engine::costmodel {
namespace {

using test::Random;
using test::RandomDag;
using Edges = std::vector<Graph::Edge>;
constexpr auto kOrder = Graph::Edge::Kind::kOrder;

std::vector<uint32_t> BatchOf(const Dag& dag, const std::vector<double>& cost, double dispatch, int workers) {
  const std::vector<uint32_t> kind(dag.size(), 0);
  return Batch(dag, cost, kind, {dispatch, workers});
}

TEST(CriticalTest, RanksAreExactAndTheBoundIsTheLargerOfTwo) {
  // a(1) -> b(5), c(2) -> d(1); e(3) alone
  const Edges edges{{0, 1, kOrder}, {0, 2, kOrder}, {1, 3, kOrder}, {2, 3, kOrder}};
  const Dag dag(5, edges);
  const std::vector<double> cost{1, 5, 2, 1, 3};
  const Critical critical = FindCritical(dag, cost);
  EXPECT_EQ(critical.rank, (std::vector<double>{7, 6, 3, 1, 3}));
  EXPECT_EQ(critical.slack, (std::vector<double>{0, 0, 3, 0, 4}));
  EXPECT_EQ(critical.path, (std::vector<uint32_t>{0, 1, 3}));
  EXPECT_EQ(critical.work, 12);
  EXPECT_EQ(critical.length, 7);
  EXPECT_EQ(critical.Bound(1), 12);
  EXPECT_EQ(critical.Bound(2), 7);
}

TEST(CriticalTest, EveryRankIsTheLongestWayToTheEnd) {
  SCOPED_TRACE(test::SeedLine());
  Random random(test::Seed());
  for (int i = 0; i < 20; ++i) {
    const RandomDag r(random, 60, 4, 10);
    const Critical critical = FindCritical(r.dag, r.cost);
    // Nodes are numbered in topological order: the longest way, backwards by hand.
    std::vector<double> longest = r.cost;
    for (uint32_t n = 60; n-- > 0;)
      for (const uint32_t s : r.dag.After(n)) longest[n] = std::max(longest[n], r.cost[n] + longest[s]);
    EXPECT_EQ(critical.rank, longest);
    EXPECT_EQ(critical.length, *std::max_element(longest.begin(), longest.end()));
    double along = 0;
    for (const uint32_t n : critical.path) {
      along += r.cost[n];
      EXPECT_NEAR(critical.slack[n], 0, 1e-6);
    }
    EXPECT_NEAR(along, critical.length, 1e-6);
  }
}

TEST(BatchingTest, ShortChainsAndSiblingsAreMergedUntilTheyAreWorthADispatch) {
  // One source, 64 readers of 10, one sink: a dispatch costs 20, so a batch is worth 160.
  Edges edges;
  for (uint32_t n = 1; n <= 64; ++n) {
    edges.push_back({0, n, kOrder});
    edges.push_back({n, 65, kOrder});
  }
  const Dag dag(66, edges);
  std::vector<double> cost(66, 10);
  cost[0] = cost[65] = 500;
  const std::vector<uint32_t> batch = BatchOf(dag, cost, 20, 2);
  std::map<uint32_t, int> size;
  for (uint32_t n = 1; n <= 64; ++n) ++size[batch[n]];
  EXPECT_LE(size.size(), 5u);
  EXPECT_GE(size.size(), 3u) << "siblings that are worth it keep their parallelism";
  EXPECT_EQ(BatchOf(dag, cost, 1, 2)[1] == BatchOf(dag, cost, 1, 2)[2], false) << "10 is worth a dispatch that costs 1";
}

TEST(BatchingTest, AChainOfShortNodesIsOneTaskAndOneOfLongNodesIsNot) {
  Edges edges;
  for (uint32_t n = 1; n < 20; ++n) edges.push_back({n - 1, n, kOrder});
  const Dag dag(20, edges);
  const auto batches = [&](double cost) {
    const std::vector<uint32_t> batch = BatchOf(dag, std::vector<double>(20, cost), 100, 2);
    return 1 + *std::max_element(batch.begin(), batch.end());
  };
  EXPECT_EQ(batches(1), 1u);
  EXPECT_EQ(batches(100), 1u);
  EXPECT_EQ(batches(10000), 20u);
}

TEST(BatchingTest, TheCriticalPathIsNotMadeToWaitForASibling) {
  // The head of a long chain has a sibling; on many workers there is no slack for it.
  const Edges edges{{0, 1, kOrder}, {0, 2, kOrder}, {1, 3, kOrder}};
  const Dag dag(4, edges);
  const std::vector<uint32_t> batch = BatchOf(dag, {100, 30, 30, 1000}, 20, 8);
  EXPECT_NE(batch[1], batch[2]);
}

TEST(BatchingTest, OnlyNodesOfOneKindAreMerged) {
  const Dag dag(4, Edges{});
  const std::vector<double> cost(4, 1);
  const std::vector<uint32_t> kind{0, 1, kAlone, 0};
  const std::vector<uint32_t> batch = Batch(dag, cost, kind, {100, 1});
  EXPECT_EQ(batch[0], batch[3]);
  EXPECT_NE(batch[0], batch[1]);
  EXPECT_NE(batch[0], batch[2]);
  EXPECT_NE(batch[1], batch[2]);
}

TEST(BatchingTest, RandomBatchesMakeNoCycleAndDoNotLengthenThePath) {
  SCOPED_TRACE(test::SeedLine());
  Random random(test::Seed());
  for (int i = 0; i < 200; ++i) {
    const RandomDag r(random, 150, 3, 10);
    // As many workers as nodes, half of the time: then no path at all may be longer.
    const int workers = random.OneIn(2) ? 150 : 1 + static_cast<int>(random.Below(8));
    const double dispatch = std::pow(10, static_cast<double>(random.Below(4)));
    const std::vector<uint32_t> batch = BatchOf(r.dag, r.cost, dispatch, workers);
    const Contracted contracted = Contract(r.dag, r.cost, batch);
    ASSERT_EQ(contracted.dag.order.size(), contracted.dag.size()) << "a cycle";
    // Paths count each task with its dispatch.
    std::vector<double> before = r.cost, after = contracted.cost;
    for (double& c : before) c += dispatch;
    for (double& c : after) c += dispatch;
    if (workers < 150) continue;
    const double share = FindCritical(r.dag, r.cost).work / workers;
    EXPECT_LE(FindCritical(contracted.dag, after).length,
              std::max(FindCritical(r.dag, before).length, share) * (1 + 1e-6));
  }
}

}  // namespace
}  // namespace engine::costmodel
