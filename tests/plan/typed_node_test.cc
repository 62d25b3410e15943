// Nodes whose functions take their inputs and return their outputs.
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/data.h"
#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(TypedNodeTest);

int Half(const int& x) { return x / 2; }

template <class... Inputs>
engine::Run Start(Plan& plan, Inputs... inputs) {
  Value values[] = {Value(std::move(inputs))..., Value()};
  return plan.Start(std::span(values, sizeof...(inputs)));
}

TEST_P(TypedNodeTest, InputsAreLookedAtAndTheResultIsTheOutput) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const ValueId x = graph.Input<int>("x");
  const NodeId text = graph.Add({.name = "text", .inputs = {x}}, [](const int& n) { return std::to_string(n); });
  const NodeId half = graph.Add({.name = "half", .inputs = {x}}, Half);
  const NodeId both = graph.Add({.name = "both", .inputs = {text[0], half[0]}},
                                [](const std::string& t, const int& n) { return t + "/" + std::to_string(n); });
  EXPECT_EQ(both.outputs, 1u);
  graph.Output(both[0]);
  Plan plan = graph.Compile(eng);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(Start(plan, 10 + i).Take<std::string>(0), std::to_string(10 + i) + "/" + std::to_string(5 + i / 2));
}

TEST_P(TypedNodeTest, ATupleIsSeveralOutputsAndNothingIsNone) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const ValueId x = graph.Input<int>("x");
  int seen = 0;
  const NodeId two = graph.Add({.inputs = {x}}, [](const int& n) { return std::tuple(n + 1, std::to_string(n)); });
  const NodeId none = graph.Add({.inputs = {two[0]}}, [&seen](const int& n) { seen = n; });
  EXPECT_EQ(two.outputs, 2u);
  EXPECT_EQ(none.outputs, 0u);
  graph.Output(two[1]);
  Plan plan = graph.Compile(eng);
  EXPECT_EQ(Start(plan, 4).Take<std::string>(0), "4");
  EXPECT_EQ(seen, 5);
}

TEST_P(TypedNodeTest, AParameterByValueTakesTheInput) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const NodeId make = graph.Add({.name = "make"}, []() { return std::make_unique<int>(7); });
  const NodeId pass = graph.Add({.inputs = {make[0]}}, [](std::unique_ptr<int> p) { return p; });
  const NodeId read = graph.Add({.inputs = {pass[0]}}, [](std::unique_ptr<int>&& p) { return *std::move(p); });
  graph.Output(read[0]);
  Plan plan = graph.Compile(eng);
  EXPECT_EQ(Start(plan).Take<int>(0), 7);
}

TEST_P(TypedNodeTest, AContextMayStandFirstAndAValueIsAnyType) {
  Engine eng(Quiet(workers()));
  Graph graph;
  const ValueId x = graph.Input("x");
  std::string name;
  const NodeId pass = graph.Add({.name = "pass", .inputs = {x}}, [&name](NodeContext& ctx, Value& value) {
    name = ctx.name();
    return std::move(value);
  });
  const NodeId more = graph.Add({.inputs = {pass[0]}}, [](RunContext&, const int& n) { return n + 1; });
  graph.Output(more[0]);
  Plan plan = graph.Compile(eng);
  EXPECT_EQ(Start(plan, 1).Take<int>(0), 2);
  EXPECT_EQ(name, "pass");
}

TEST_P(TypedNodeTest, DataIsGivenBehindTheInputsAndLivesWithTheGraph) {
  Engine eng(Quiet(workers()));
  Plan plan;
  Data<int> sum(eng, "sum", 0);
  {
    Data<std::vector<int>> weights(eng, "weights", std::vector<int>{1, 2, 3});
    Graph graph;
    const ValueId x = graph.Input<int>("x");
    const NodeId dot = graph.Add({.name = "dot", .inputs = {x}}, reads(weights), updates(sum),
                                 [](const int& n, const std::vector<int>& w, int& s) {
                                   for (const int k : w) s += n * k;
                                   return s;
                                 });
    EXPECT_EQ(graph.nodes()[0].effects.size(), 2u);
    EXPECT_TRUE(Has(graph.nodes()[0].site.file, "typed_node_test.cc"));
    graph.Output(dot[0]);
    plan = graph.Compile(eng);
  }
  EXPECT_EQ(Start(plan, 2).Take<int>(0), 12);
  EXPECT_EQ(Start(plan, 1).Take<int>(0), 18);
  EXPECT_EQ(eng.Wait(sum), 18);
}

TEST_P(TypedNodeTest, TypedPushesAreCaptured) {
  Engine eng(Quiet(workers()));
  Data<int> x(eng, "x", 1), y(eng, "y", 0);
  Graph graph;
  Capture capture(graph);
  capture.Push({.name = "twice"}, updates(x), [](int& n) { n *= 2; });
  capture.Push(reads(x), updates(y), [](const int& n, int& to) { to += n; });
  Plan plan = graph.Compile(eng);
  for (int i = 0; i < 3; ++i) Start(plan).Wait();
  EXPECT_EQ(eng.Wait(x), 8);
  EXPECT_EQ(eng.Wait(y), 2 + 4 + 8);
}

TEST(TypedNodeRefusalTest, InputsOfAnotherNumberOrTypeAreRefusedWhenTheNodeIsAdded) {
  Engine eng(Quiet(1));
  Graph graph;
  const ValueId x = graph.Input<int>("x");
  const NodeId text = graph.Add({.name = "text", .inputs = {x}}, [](const int& n) { return std::to_string(n); });
  const std::string number =
      RefusalOf([&] { graph.Add({.name = "two", .inputs = {x}}, [](const int&, const int&) {}); });
  EXPECT_TRUE(Has(number, "'two'"));
  EXPECT_TRUE(Has(number, "has 1 inputs, but its function takes 2"));
  EXPECT_TRUE(Has(number, "typed_node_test.cc"));
  const std::string type = RefusalOf([&] { graph.Add({.name = "bad", .inputs = {text[0]}}, Half); });
  EXPECT_TRUE(Has(type, "input 0 of type"));
  EXPECT_TRUE(Has(type, "string"));
  EXPECT_TRUE(Has(type, "takes it as 'int'"));
  const std::string outputs =
      RefusalOf([&] { graph.Add({.name = "out", .inputs = {x}, .outputs = 2}, [](const int& n) { return n; }); });
  EXPECT_TRUE(Has(outputs, "outputs = 2, but its function returns 1"));
  Graph outer;
  const NodeId copy = outer.AddCopy(graph, 0, std::vector<ValueId>{outer.Input("y")});
  EXPECT_TRUE(Has(RefusalOf([&] { outer.Add({.inputs = {copy[0]}}, Half); }), "takes it as 'int'"));
  EXPECT_EQ(graph.nodes().size(), 1u);
}

TEST(TypedNodeRefusalTest, AnInputThatOthersReadMayNotBeTaken) {
  Engine eng(Quiet(1));
  Graph graph;
  const ValueId x = graph.Input<int>("x");
  const NodeId text = graph.Add({.inputs = {x}}, [](const int& n) { return std::to_string(n); });
  const NodeId take = graph.Add({.name = "take", .inputs = {text[0]}}, [](std::string t) { return t; });
  const NodeId look = graph.Add({.name = "look", .inputs = {text[0]}}, [](const std::string& t) { return t; });
  graph.Output(take[0]);
  graph.Output(look[0]);
  Plan plan = graph.Compile(eng);
  const OpError e = ErrorOf([&] { Start(plan, 1).Wait(); });
  EXPECT_EQ(e.op(), "take");
}

}  // namespace
}  // namespace engine::test
