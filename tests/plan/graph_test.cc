// What a graph tells about itself.
#include "engine/graph.h"

#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

using Edge = Graph::Edge;
using Kind = Graph::Edge::Kind;

struct GraphTest : testing::Test {
  Engine eng{Quiet(1)};
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Graph graph;
};

TEST_F(GraphTest, EdgesComeFromValuesVarsAndOrder) {
  const ValueId x = graph.Input("x");
  const NodeId n0 = graph.Add({.name = "0", .inputs = {x}, .outputs = 2, .writes = {a}}, [] {});
  graph.Add({.name = "1", .inputs = {n0[1]}, .reads = {a}}, [] {});
  const NodeId n2 = graph.Add({.name = "2", .reads = {a}, .writes = {b}}, [] {});
  const NodeId n3 = graph.Add({.name = "3", .updates = {a}}, [] {});
  const NodeId n4 = graph.Add({.name = "4"}, [] {});
  graph.Order(n4, n2);
  graph.Order(n0, n3);
  EXPECT_EQ(graph.Edges(), (std::vector<Edge>{{0, 1, Kind::kValue},  // also over a: once, as a value
                                              {0, 2, Kind::kVar},
                                              {4, 2, Kind::kOrder},
                                              {0, 3, Kind::kOrder},
                                              {1, 3, Kind::kVar},
                                              {2, 3, Kind::kVar}}));
}

TEST_F(GraphTest, NodesValuesAndEffects) {
  const ValueId x = graph.Input<int>("x");
  const NodeId n = graph.Add({.name = "n",
                              .inputs = {x, x},
                              .outputs = 1,
                              .reads = {a, b},
                              .writes = {b},
                              .place = Io(),
                              .priority = 2,
                              .run_always = true,
                              .cost_key = "key"},
                             [] {});
  graph.Add({.name = "m", .inputs = {n[0]}}, [] {});
  graph.Output(n[0]);
  const Graph::Node& node = graph.nodes()[0];
  EXPECT_STREQ(node.name.c_str(), "n");
  EXPECT_STREQ(node.cost_key.c_str(), "key");
  EXPECT_EQ(node.place.kind, Placement::Kind::kIo);
  EXPECT_EQ(node.priority, 2);
  EXPECT_TRUE(node.run_always);
  EXPECT_FALSE(node.async);
  EXPECT_TRUE(Has(node.site.file, "graph_test.cc"));
  EXPECT_EQ(node.effects, (std::vector<Effect>{{a, AccessMode::kRead}, {b, AccessMode::kUpdate}}));  // merged
  EXPECT_EQ(graph.values()[x.index].consumers, std::vector<uint32_t>{0});
  EXPECT_EQ(*graph.values()[x.index].type, typeid(int));
  EXPECT_EQ(graph.values()[n[0].index].producer, 0u);
  EXPECT_EQ(graph.values()[n[0].index].consumers, std::vector<uint32_t>{1});
  EXPECT_STREQ(graph.nodes()[1].cost_key.c_str(), "");  // its own, from the name
}

TEST_F(GraphTest, PrioritiesOutOfRangeAreRefusedByNodesAndRuns) {
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Add({.name = "n", .priority = -3}, [] {}); }), "op 'n' pushed at"));
  EXPECT_TRUE(graph.nodes().empty());
  graph.Add({.name = "n", .updates = {a}, .priority = -2}, [] {});
  const Plan plan = graph.Compile(eng);
  EXPECT_TRUE(Has(RefusalOf([&] { (void)plan.Start({}, {.priority = 3}); }), "priority is 3; allowed: -2 (last) to 2"));
  eng.WaitAll();
  EXPECT_EQ(a.version(), 0u);
  (void)plan.Start({}, {.priority = 2});
  eng.Wait(a);
  EXPECT_EQ(a.version(), 1u);
}

TEST_F(GraphTest, NodesCanBeCopiedIntoAnotherGraph) {
  const ValueId x = graph.Input<int>("x");
  graph.Output(graph.Add({.name = "double", .inputs = {x}, .outputs = 1},
                         [](NodeContext& ctx) { ctx.Return(0, 2 * ctx.In<int>(0)); })[0]);
  Graph part;
  const ValueId y = part.Input<int>("y");
  part.Output(part.AddCopy(graph, 0, std::vector{y})[0]);
  graph = Graph();  // the copy stands by itself
  Value inputs[] = {4};
  EXPECT_EQ(part.Compile(eng).Start(inputs).Take<int>(0), 8);
  EXPECT_TRUE(Has(RefusalOf([&] { part.AddCopy(graph, 0, {}); }), "node 0 of a graph that has 0"));
  EXPECT_TRUE(Has(RefusalOf([&] { Graph().AddCopy(part, 0, {}); }), "with 0 inputs; it has 1"));
  EXPECT_TRUE(Has(RefusalOf([&] { Graph().AddGraph(part, {}); }), "takes 1 inputs"));
}

TEST_F(GraphTest, DescribeAndDot) {
  const ValueId x = graph.Input("x");
  const NodeId one = graph.Add({.name = "one \"quoted\"", .inputs = {x}, .outputs = 1, .updates = {a}}, [] {});
  graph.Add({.name = "two", .inputs = {one[0]}, .place = Io()}, [] {});
  graph.Output(one[0]);
  const Plan plan = graph.Compile(eng, {.name = "step"});
  EXPECT_TRUE(Has(plan.Describe(), "plan 'step': 2 nodes in 2 tasks, 1 edges"));
  EXPECT_TRUE(Has(plan.Describe(), "two on io"));
  EXPECT_TRUE(Has(plan.Dot(), "one \\\"quoted\\\"\\nupdates a"));
  EXPECT_TRUE(Has(plan.Dot(), "n0 -> n1"));
  EXPECT_TRUE(Has(plan.Dot(), "in0 -> n0"));
  EXPECT_TRUE(Has(plan.Dot(), "n0 -> out0"));
}

}  // namespace
}  // namespace engine::test
