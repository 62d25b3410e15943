// The pure part of compiling: order, reduction, chains, last uses.
#include "graph/plan_layout.h"

#include <numeric>

#include "support/engine_test.h"
#include "support/seed.h"

namespace engine::detail {
namespace {

using test::Random;
using Lists = std::vector<std::vector<uint32_t>>;

Lists RandomDag(Random& random, uint32_t n, uint32_t most) {
  Lists predecessors(n);
  for (uint32_t i = 1; i < n; ++i)
    for (uint64_t k = random.Below(most + 1); k > 0; --k) {
      const auto p = static_cast<uint32_t>(random.Below(i));
      if (std::find(predecessors[i].begin(), predecessors[i].end(), p) == predecessors[i].end())
        predecessors[i].push_back(p);
    }
  return predecessors;
}

std::vector<std::vector<bool>> Reach(const Lists& predecessors) {
  std::vector<std::vector<bool>> reach(predecessors.size(), std::vector<bool>(predecessors.size()));
  for (size_t i = 0; i < predecessors.size(); ++i)
    for (const uint32_t p : predecessors[i]) {
      reach[i][p] = true;
      for (size_t k = 0; k < i; ++k) reach[i][k] = reach[i][k] || reach[p][k];
    }
  return reach;
}

TEST(LayoutTest, ReductionKeepsReachabilityAndIsMinimalWithoutABound) {
  SCOPED_TRACE(test::SeedLine());
  Random random(test::Seed());
  for (int i = 0; i < 50; ++i) {
    const Lists before = RandomDag(random, 40, 6);
    const Lists least = Reduce(before, UINT32_MAX), bounded = Reduce(before, 3);
    EXPECT_EQ(Reach(least), Reach(before));
    EXPECT_EQ(Reach(bounded), Reach(before));
    const auto reach = Reach(before);
    for (const auto& list : least)
      for (const uint32_t p : list)
        for (const uint32_t q : list) EXPECT_FALSE(reach[q][p]) << "an edge that follows from another was left";
  }
}

struct Layouts : testing::Test {
  Engine eng{test::Quiet(1)};
  Graph graph;
  NodeId Node() {
    return graph.Add({.name = "n"}, [] {});
  }
};

TEST_F(Layouts, ChainsBecomeOneTask) {
  const NodeId a = Node(), b = Node(), c = Node(), d = Node();
  graph.Order(a, b);
  graph.Order(a, c);
  graph.Order(c, d);
  const PlanLayout layout = LayOut(graph, {});
  ASSERT_EQ(layout.tasks.size(), 3u);  // a | b | c d
  EXPECT_EQ(layout.order, (std::vector<uint32_t>{a.index, b.index, c.index, d.index}));
  EXPECT_TRUE(layout.counters.empty());  // every task has one predecessor
}

// MXNet's static CachedOp kept every op whose result leaves the graph out of its segments (its pull request 13890).
TEST_F(Layouts, MxnetEndsSegmentsAtOutputs) {
  ValueId value = graph.Input("x");
  for (int i = 0; i < 5; ++i) {
    value = graph.Add({.name = "n", .inputs = {value}, .outputs = 1}, [] {})[0];
    graph.Output(value);
  }
  EXPECT_EQ(LayOut(graph, {}).tasks.size(), 1u);
}

TEST_F(Layouts, PlacementAsynchronousEndsAndPrioritiesBreakChains) {
  const NodeId a = Node();
  const NodeId b = graph.Add({.name = "io", .place = Io()}, [] {});
  const NodeId c = graph.AddAsync({.name = "async", .place = Io()}, [](NodeContext&, Completion) {});
  const NodeId d = graph.Add({.name = "io", .place = Io()}, [] {});
  const NodeId e = graph.Add({.name = "io", .place = Io(), .priority = 1}, [] {});
  graph.Order(a, b);
  graph.Order(b, c);
  graph.Order(c, d);
  graph.Order(d, e);
  EXPECT_EQ(LayOut(graph, {}).tasks.size(), 4u);  // a | b c | d | e
}

TEST_F(Layouts, BatchesOfAScheduleBecomeTasks) {
  const NodeId a = Node(), b = Node(), c = Node(), d = Node();
  graph.Order(a, b);
  graph.Order(a, c);
  graph.Order(b, d);
  graph.Order(c, d);
  const PlanLayout layout = LayOut(graph, {.schedule = {.batch = {0, 1, 1, 2}}});
  ASSERT_EQ(layout.tasks.size(), 3u);
  EXPECT_EQ(layout.tasks[1].end - layout.tasks[1].first, 2u);
  EXPECT_TRUE(layout.counters.empty());
}

TEST_F(Layouts, RanksDecideWhoComesFirst) {
  const NodeId a = Node(), b = Node(), c = Node();
  graph.Order(a, b);
  graph.Order(a, c);
  const PlanLayout layout = LayOut(graph, {.schedule = {.rank = {10, 1, 5}}});
  EXPECT_EQ(layout.order, (std::vector<uint32_t>{0, 2, 1}));
  EXPECT_EQ(layout.tasks[0].successors, (std::vector<uint32_t>{2, 1}));  // the last one runs next: c, which is task 1
}

TEST_F(Layouts, LastUseIsCountedOnlyIfSeveralMayBeLast) {
  const Var v = eng.NewVar("v");
  Capture capture(graph);
  capture.Push({.name = "w", .writes = {v}}, [] {});
  capture.Push({.name = "r", .reads = {v}}, [] {});
  capture.Push({.name = "r", .reads = {v}}, [] {});
  PlanLayout layout = LayOut(graph, {});
  EXPECT_EQ(layout.counters, std::vector<uint32_t>{2});
  EXPECT_TRUE(layout.ends[0].empty());
  EXPECT_EQ(layout.ends[1].size() + layout.ends[2].size(), 2u);
  EXPECT_EQ(layout.modes, std::vector<AccessMode>{AccessMode::kWrite});
  capture.Push({.name = "u", .updates = {v}}, [] {});
  layout = LayOut(graph, {});
  ASSERT_EQ(layout.ends[3].size(), 1u);
  EXPECT_EQ(layout.ends[3][0].counter, kNoIndex);
}

TEST_F(Layouts, RandomGraphsKeepEveryDependency) {
  SCOPED_TRACE(test::SeedLine());
  Random random(test::Seed());
  for (int i = 0; i < 30; ++i) {
    graph = Graph();
    const Lists predecessors = RandomDag(random, 60, 3);
    std::vector<NodeId> ids;
    for (size_t n = 0; n < predecessors.size(); ++n) ids.push_back(Node());
    for (size_t n = 0; n < predecessors.size(); ++n)
      for (const uint32_t p : predecessors[n]) graph.Order(ids[p], ids[n]);
    const PlanLayout layout = LayOut(graph, {});
    std::vector<uint32_t> task(60), place(60);
    Lists before(layout.tasks.size());
    for (uint32_t t = 0; t < layout.tasks.size(); ++t) {
      for (uint32_t p = layout.tasks[t].first; p < layout.tasks[t].end; ++p) {
        task[layout.order[p]] = t;
        place[layout.order[p]] = p;
      }
      for (const uint32_t s : layout.tasks[t].successors) before[s].push_back(t);
    }
    const auto reach = Reach(before);
    for (uint32_t n = 0; n < 60; ++n)
      for (const uint32_t p : predecessors[n]) {
        EXPECT_LT(place[p], place[n]);
        EXPECT_TRUE(task[p] == task[n] || reach[task[n]][task[p]]);
      }
  }
}

}  // namespace
}  // namespace engine::detail
