// Bad input: each with an error that says what was wrong and what is allowed; nothing is lost, the plan is usable again.
#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

struct RefusalTest : testing::Test {
  Engine eng{Quiet(2)};
  Graph graph;
};

TEST_F(RefusalTest, WrongInputs) {
  const ValueId x = graph.Input<int>("x");
  graph.Output(x);
  const Plan plan = graph.Compile(eng, {.name = "p"});
  EXPECT_TRUE(Has(RefusalOf([&] { plan.Start(); }), "plan 'p' started at"));
  EXPECT_TRUE(Has(RefusalOf([&] { plan.Start(); }), "takes 1 inputs and was given 0"));
  Value text[] = {std::string("text")};
  const std::string refusal = RefusalOf([&] { plan.Start(text); });
  EXPECT_TRUE(Has(refusal, "input 0 'x' must be of type 'int'"));
  EXPECT_TRUE(Has(refusal, "string"));
  EXPECT_EQ(text[0].Get<std::string>(), "text");  // not lost
  Value right[] = {3};
  EXPECT_EQ(plan.Start(right).Take<int>(0), 3);
}

TEST_F(RefusalTest, StaticShapeChecksOnce) {
  graph.Output(graph.Input<int>("x"));
  const Plan plan = graph.Compile(eng, {.static_shape = true});
  Value wrong[] = {1.0}, right[] = {1};
  EXPECT_TRUE(Has(RefusalOf([&] { plan.Start(wrong); }), "int"));
  plan.Start(right).Wait();
  Value unchecked[] = {1.0};
  EXPECT_TRUE(Has(RefusalOf([&] { plan.Start(unchecked).Take<int>(0); }), "holds 'double'"));
}

TEST_F(RefusalTest, CycleIsNamed) {
  const NodeId a = graph.Add({.name = "a"}, [] {}), b = graph.Add({.name = "b"}, [] {}),
               c = graph.Add({.name = "c"}, [] {});
  graph.Order(a, b);
  graph.Order(b, c);
  graph.Order(c, b);
  const std::string text = RefusalOf([&] { graph.Compile(eng); });
  EXPECT_TRUE(Has(text, "cycle"));
  EXPECT_TRUE(Has(text, "node 1 'b'"));
  EXPECT_TRUE(Has(text, "node 2 'c'"));
  EXPECT_EQ(text.find("'a'"), text.npos);
}

TEST_F(RefusalTest, ForeignThings) {
  Graph other;
  const ValueId theirs = other.Add({.name = "n", .outputs = 5}, [] {})[4];
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Add({.name = "mine", .inputs = {theirs}}, [] {}); }), "node 'mine'"));
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Output(theirs); }), "not of this graph"));
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Order({3, 0, 0}, {4, 0, 0}); }), "not of this graph"));
  // Also where this graph has that number, but not where it is a copy.
  const NodeId node = other.Add({.name = "theirs", .outputs = 1}, [] {});
  Graph copy = other;
  for (int i = 0; i < 3; ++i) graph.Add({.name = "n", .outputs = 3}, [] {});
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Add({.name = "mine", .inputs = {theirs}}, [] {}); }), "node 'mine'"));
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Output(theirs); }), "not of this graph"));
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Order({0}, node); }), "not of this graph"));
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Order(node, {2}); }), "not of this graph"));
  copy.Output(theirs);
  copy.Order({0}, node);
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Add({.name = "mine", .reads = {Var()}}, [] {}); }), "null Var"));
  Engine another(Quiet(1));
  Var foreign = another.NewVar("foreign");
  Capture(graph).Push({.name = "mine", .reads = {foreign}}, [] {});
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Compile(eng); }), "belongs to another engine"));
}

TEST_F(RefusalTest, DeletedVarRefusesTheRunAndKeepsTheInputs) {
  Var a = eng.NewVar("weights");
  graph.Output(graph.Input<std::string>("x"));
  Capture(graph).Push({.name = "n", .updates = {a}}, [] {});
  const Plan plan = graph.Compile(eng, {.name = "step"});
  Value inputs[] = {std::string("kept")};
  eng.Delete(a);
  const std::string text = RefusalOf([&] { plan.Start(inputs); });
  EXPECT_TRUE(Has(text, "'weights'"));
  EXPECT_TRUE(Has(text, "step"));
  EXPECT_EQ(inputs[0].Get<std::string>(), "kept");
}

TEST_F(RefusalTest, WrongValuesInsideNodes) {
  const ValueId x = graph.Input("x");
  graph.Add({.name = "typed", .inputs = {x}}, [](NodeContext& ctx) { ctx.In<int>(0); });
  graph.Add({.name = "counted", .inputs = {x}}, [](NodeContext& ctx) { ctx.In(7); });
  graph.Add({.name = "output", .inputs = {x}}, [](NodeContext& ctx) { ctx.Return(0, 1); });
  graph.Add({.name = "taken", .inputs = {x}}, [](NodeContext& ctx) { ctx.Take<double>(0); });
  const Plan plan = graph.Compile(eng);
  Value inputs[] = {2.5};
  engine::Run run = plan.Start(inputs);
  EXPECT_TRUE(Has(ErrorOf([&] { run.Wait(); }).what(), "node 'typed' takes input 0 as 'int', and it holds 'double'"));
  std::string all;
  for (int i = 0; i < 4; ++i) all += std::string(i == 3 ? "" : ErrorOf([&] { eng.WaitAll(); }).what()) + "\n";
  EXPECT_TRUE(Has(all, "asks for input 7 of 1"));
  EXPECT_TRUE(Has(all, "sets output 0 of 0"));
  EXPECT_TRUE(Has(all, "may not take input 0"));
}

TEST_F(RefusalTest, WaitForARunThatNeedsOurVar) {
  Var a = eng.NewVar("a");
  Capture(graph).Push({.name = "n", .updates = {a}}, [] {});
  const Plan plan = graph.Compile(eng, {.name = "inner"});
  std::string text;
  eng.Push({.name = "outer", .reads = {a}}, [&] { text = RefusalOf([&] { plan.Start().Wait(); }); });
  eng.WaitAll();
  EXPECT_TRUE(Has(text, "op 'outer' waits"));
  EXPECT_TRUE(Has(text, "'inner', which needs Var 'a'"));
  eng.Wait(a);                 // started inside: the wait for everything need not have meant it
  EXPECT_EQ(a.version(), 1u);  // the run itself went on
}

TEST_F(RefusalTest, NodeThatWaitsForItsOwnRunsVar) {
  Var a = eng.NewVar("a");
  std::string text;
  Capture(graph).Push({.name = "n", .updates = {a}}, [&] { text = RefusalOf([&] { eng.Wait(a); }); });
  graph.Compile(eng).Start().Wait();
  EXPECT_TRUE(Has(text, "op 'n' waits at "));
  EXPECT_TRUE(Has(text, "for Var 'a', which it names itself"));
}

TEST_F(RefusalTest, SchedulesThatDoNotFit) {
  const NodeId a = graph.Add({.name = "a"}, [] {}), b = graph.Add({.name = "b"}, [] {}),
               c = graph.Add({.name = "c"}, [] {});
  graph.Order(a, b);
  graph.Order(b, c);
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Compile(eng, {.schedule = {.rank = {1.0}}}); }), "rank has 1 entries"));
  EXPECT_TRUE(Has(RefusalOf([&] { graph.Compile(eng, {.schedule = {.batch = {0, 1, 0}}}); }), "cycle"));
  graph.Compile(eng, {.schedule = {.batch = {0, 0, 0}}}).Start().Wait();
}

TEST_F(RefusalTest, EmptyHandlesTimesAndShutdown) {
  EXPECT_TRUE(Has(RefusalOf([&] { engine::Run().Wait(); }), "empty Run"));
  EXPECT_TRUE(Has(RefusalOf([&] { Plan().Start(); }), "empty Plan"));
  graph.Add({.name = "a"}, [] {});
  const Plan plan = graph.Compile(eng);
  std::vector<NodeTime> two(2);
  EXPECT_TRUE(Has(RefusalOf([&] { plan.Start({}, {.times = two}); }), "times has 2 entries for a graph of 1"));
  engine::Run run = plan.Start();
  EXPECT_TRUE(Has(RefusalOf([&] { run.Output(0); }), "which has 0"));
  eng.Shutdown();
  EXPECT_TRUE(Has(RefusalOf([&] { plan.Start(); }), "shutdown"));
}

TEST_F(RefusalTest, OutputsThatThereAreNot) {
  graph.Output(graph.Add({.name = "fails"}, []() -> int { throw std::runtime_error("broken"); })[0]);
  const Plan plan = graph.Compile(eng, {.name = "p"});
  engine::Run run = plan.Start();
  EXPECT_TRUE(Has(RefusalOf([&] { run.OutputIf(1); }), "output 1 of plan 'p', which has 1, asked for at"));
  EXPECT_TRUE(Has(RefusalOf([&] { run.Settled(1); }), "output 1 of plan 'p', which has 1"));
  EXPECT_EQ(run.OutputIf(0), nullptr);
}

}  // namespace
}  // namespace engine::test
