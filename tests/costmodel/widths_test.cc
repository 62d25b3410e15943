// Which nodes are to use several threads: the virtual schedule, and the choice.
#include "widths.h"

#include <gtest/gtest.h>

#include "random_dag.h"

namespace engine::costmodel {
namespace {

using Edges = std::vector<Graph::Edge>;
Graph::Edge After(uint32_t from, uint32_t to) { return {from, to, Graph::Edge::Kind::kOrder}; }

TEST(WidthsTest, ALongNodeAloneIsShared) {
  const Dag dag(3, Edges{After(0, 1), After(1, 2)});
  const std::vector<double> cost{10, 1000, 10};
  const std::vector<Width> wide{{}, {2, 550}, {}};
  EXPECT_DOUBLE_EQ(SimulateWide(dag, cost, wide, std::vector<uint8_t>{1, 1, 1}, 2), 1020);
  EXPECT_DOUBLE_EQ(SimulateWide(dag, cost, wide, std::vector<uint8_t>{1, 2, 1}, 2), 570);
  EXPECT_EQ(ChooseWidths(dag, cost, wide, 2), (std::vector<uint8_t>{1, 2, 1}));
  EXPECT_EQ(ChooseWidths(dag, cost, wide, 1), (std::vector<uint8_t>{1, 1, 1})) << "nobody is there to help";
}

// Two nodes side by side keep both workers busy, and sharing costs: 2 * 550 > 1000.
TEST(WidthsTest, NodesThatFillTheWorkersAreNot) {
  const Dag dag(2, Edges{});
  const std::vector<double> cost{1000, 1000};
  const std::vector<Width> wide{{2, 550}, {2, 550}};
  EXPECT_EQ(ChooseWidths(dag, cost, wide, 2), (std::vector<uint8_t>{1, 1}));
}

// One long node among many short ones: whoever is through with the short ones helps.
TEST(WidthsTest, AHelperComesWhenItHasEndedItsNode) {
  const Dag dag(5, Edges{});
  const std::vector<double> cost{1000, 100, 100, 100, 100};
  const std::vector<Width> wide{{2, 500}, {}, {}, {}, {}};
  EXPECT_DOUBLE_EQ(SimulateWide(dag, cost, wide, std::vector<uint8_t>(5, 1), 2), 1000);
  const std::vector<uint8_t> chosen = ChooseWidths(dag, cost, wide, 2);
  EXPECT_EQ(chosen[0], 2);
  EXPECT_DOUBLE_EQ(SimulateWide(dag, cost, wide, chosen, 2), 700) << "both work all the time";
}

TEST(WidthsTest, ACostThatIsNotKnownIsNotTried) {
  const Dag dag(1, Edges{});
  EXPECT_EQ(ChooseWidths(dag, std::vector<double>{1000}, std::vector<Width>{{2, 0}}, 2), (std::vector<uint8_t>{1}));
}

TEST(WidthsTest, WhatIsChosenIsNeverLongerThanOneThreadEach) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    test::Random random(seed);
    const test::RandomDag made(random, 80, 3, 1000);
    std::vector<Width> wide(made.cost.size());
    for (size_t n = 0; n < wide.size(); n += 3) wide[n] = {4, made.cost[n] * 0.4};
    const std::vector<uint8_t> chosen = ChooseWidths(made.dag, made.cost, wide, 4);
    EXPECT_LE(SimulateWide(made.dag, made.cost, wide, chosen, 4),
              SimulateWide(made.dag, made.cost, wide, std::vector<uint8_t>(wide.size(), 1), 4));
  }
}

}  // namespace
}  // namespace engine::costmodel
