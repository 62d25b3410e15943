// SmartStage: which nodes are staged, what is said about them, and who decides whether steps are cut.
#include <map>
#include <set>

#include "training_program.h"

namespace engine::test {
namespace {

TEST(SmartStageTest, SaysWhatIsStagedAndWhyTheRestIsNot) {
  TrainingProgram p;
  SmartStage steps(p.eng, p.graph, p.Rows(5), AtOnce());
  p.Drain(steps);
  const std::string text = steps.Explain();
  for (const char* line : {"2 of 3 nodes staged, in 1 level", "staged parse", "staged look up", "handed over look up",
                           "not staged step: changes Var 'weight', which is no input_state", "without a guard"})
    EXPECT_TRUE(Has(text, line)) << text;
  const SmartStageReport report = steps.Report();
  ASSERT_EQ(report.boundary.size(), 1u);
  EXPECT_EQ(report.boundary[0].name, "look up");
}

TEST(SmartStageTest, InTracesStagedNodesStandOnTheStagesThread) {
  TrainingProgram p;
  p.eng.StartTrace();
  SmartStage steps(p.eng, p.graph, p.Rows(5), AtOnce({.name = "rows"}));
  p.Drain(steps);
  std::map<std::string, std::set<std::string>> threads;
  for (const TraceEvent& event : p.eng.StopTrace().events) threads[event.name].insert(event.thread);
  EXPECT_EQ(threads["parse"], std::set<std::string>{"rows"});
  EXPECT_EQ(threads["look up"], std::set<std::string>{"rows"});
  EXPECT_FALSE(threads["step"].contains("rows"));
}

TEST(SmartStageTest, MarkedNodesAndCollectivesStay) {
  TrainingProgram p;
  SmartStageOptions options = AtOnce();
  options.targets = {p.look_up.index};
  options.collectives = {p.parse.index};
  SmartStage steps(p.eng, p.graph, p.Rows(5), options);
  EXPECT_EQ(p.Drain(steps), TrainingProgram::Expected(5));
  const auto nodes = steps.Report().nodes;
  EXPECT_EQ(nodes[0].reason, "is a collective: every process must run it in the same order");
  EXPECT_EQ(nodes[1].reason, "is a marked target");
}

TEST(SmartStageTest, ANodeThatSaysItIsACollectiveStays) {
  TrainingProgram p;
  const NodeId gather = p.graph.Add({.name = "gather", .inputs = {p.parse[0]}, .outputs = 1, .collective = true},
                                    [](NodeContext& ctx) { ctx.Return(0, ctx.In<Ints>(0)[0]); });
  p.graph.Output(gather[0]);
  SmartStage steps(p.eng, p.graph, p.Rows(5), AtOnce());
  EXPECT_EQ(p.Drain(steps), TrainingProgram::Expected(5));
  EXPECT_TRUE(Has(steps.Explain(), "staged parse\nstaged look up\n"));
  EXPECT_TRUE(Has(steps.Explain(), "not staged gather: is a collective: every process must run it in the same order"));
}

TEST(SmartStageTest, OnlyStateOfTheInputIsChangedAhead) {
  for (const bool own : {false, true}) {
    TrainingProgram p;
    Var state = p.eng.NewVar("random");
    std::atomic<int> draws{0};
    Counter drawn;
    const NodeId draw = p.graph.Add({.name = "draw", .inputs = {p.row}, .outputs = 1, .updates = {state}},
                                    [&](NodeContext& ctx) { ctx.Return(0, ++draws), drawn.Add(); });
    p.graph.Output(draw[0]);
    SmartStageOptions options = AtOnce({.capacity = 2, .num_threads = 2});
    if (own) options.input_state = {state};
    SmartStage steps(p.eng, p.graph, p.Rows(50), options);
    for (int i = 1; i <= 3; ++i) {
      Value given[] = {2};
      engine::Run run = steps.Next(given);
      EXPECT_EQ(run.Take<int>(2), i);
      EXPECT_TRUE(own || draws == i);
    }
    if (own) drawn.WaitFor(5);
    EXPECT_EQ(steps.Explain().find("changes Var 'random', which is no input_state") == std::string::npos, own);
  }
}

TEST(SmartStageTest, OnTheCpuNodesOfADeviceStay) {
  Engine eng(Quiet(1));
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  const NodeId copy = graph.Add({.name = "copy", .inputs = {row}, .outputs = 1, .place = CopyIn()},
                                [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0)); });
  const NodeId add = graph.Add({.name = "add", .inputs = {copy[0]}, .outputs = 1},
                               [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + 1); });
  graph.Output(add[0]);
  SmartStageOptions options = AtOnce({}, 3);
  options.stage_subgraph_on_cpu = true;
  SmartStage steps(eng, graph, {SourceOf<int>("rows", row, [n = 0]() mutable { return n++; })}, options);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(steps.Next().Take<int>(0), i + 1);
  EXPECT_EQ(steps.Report().staged, 2u);
}

TEST(SmartStageTest, NodesThatNobodyNeedsAreNotRunAhead) {
  TrainingProgram p;
  std::vector<int> printed;
  p.graph.Add({.name = "print", .inputs = {p.parse[0]}},
              [&](NodeContext& ctx) { printed.push_back(ctx.In<Ints>(0)[0]); });
  SmartStage steps(p.eng, p.graph, p.Rows(50), AtOnce({.capacity = 8}));
  Value given[] = {2};
  steps.Next(given).Wait();
  EXPECT_EQ(printed, Ints{0});
  EXPECT_TRUE(Has(steps.Explain(), "not staged print: has neither a result that is used nor an effect"));
}

// What a node without inputs gives may differ from call to call. Both sides of the cut need it here.
TEST(SmartStageTest, ANodeThatNeedsNothingOfTheStepRunsOnceAStep) {
  for (const int levels : {1, 3}) {
    TrainingProgram p;
    int calls = 0;
    Graph graph;
    const ValueId row = graph.Input<int>("row");
    const NodeId config = graph.Add({.name = "config"}, [&] { return ++calls; });
    const NodeId twice = graph.Add({.name = "twice", .inputs = {config[0]}}, [](const int& n) { return 2 * n; });
    const NodeId parse = graph.Add({.name = "parse", .inputs = {row, twice[0]}}, [](int x, int n) { return x + n; });
    const NodeId step = graph.Add({.name = "step", .inputs = {parse[0], config[0]}, .updates = {p.weight}},
                                  [](int x, const int& n) { return 1000 * n + x; });
    graph.Output(step[0]);
    SmartStage steps(p.eng, graph, {SourceOf<int>("rows", row, [n = 0]() mutable { return n++; })}, AtOnce({}, levels));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(steps.Next().Take<int>(0), 1000 * (i + 1) + i + 2 * (i + 1));
    EXPECT_EQ(steps.Report().staged, 3u);
    EXPECT_TRUE(Has(steps.Explain(), "handed over config"));
  }
}

// DeepRec: an empty boundary failed.
TEST(SmartStageTest, AStageThatHandsNothingOverIsAStage) {
  TrainingProgram p;
  Var seen = p.eng.NewVar("seen");
  std::atomic<int> rows{0};
  Graph graph;
  const ValueId row = graph.Input<int>("row"), rate = graph.Input<int>("rate");
  graph.Add({.name = "count", .inputs = {row}, .updates = {seen}}, [&] { ++rows; });
  const NodeId step = graph.Add({.name = "step", .inputs = {rate}, .outputs = 1},
                                [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + 1); });
  graph.Output(step[0]);
  SmartStageOptions options = AtOnce();
  options.input_state = {seen};
  SmartStage steps(p.eng, graph,
                   {SourceOf<int>("rows", row,
                                  [n = 0]() mutable -> std::optional<int> {
                                    if (n == 20) return {};
                                    return n++;
                                  })},
                   options);
  for (int i = 0; i < 20; ++i) {
    Value given[] = {i};
    EXPECT_EQ(steps.Next(given).Take<int>(0), i + 1);
  }
  Value given[] = {0};
  EXPECT_FALSE(steps.Next(given));
  EXPECT_EQ(rows, 20);
  EXPECT_EQ(steps.Report().staged, 1u);
  EXPECT_TRUE(steps.Report().boundary.empty());
}

TEST(SmartStageTest, ThePolicySaysWhetherStepsAreCut) {
  TrainingProgram p;
  const auto on = [&](std::optional<bool> own) {
    SmartStageOptions options = AtOnce();
    options.do_smart_stage = own;
    return SmartStage(p.eng, p.graph, p.Rows(1), options).Report().on;
  };
  EXPECT_TRUE(on({}));
  {
    const PolicyScope scope = p.eng.EnterPolicy({Policy::kThreaded, {.smart_stage = false}});
    EXPECT_FALSE(on({}));
    EXPECT_TRUE(on(true));
  }
  p.eng.SetPolicy(Policy::kInline, {.smart_stage = false});
  EXPECT_FALSE(p.eng.policy_choice().options.smart_stage);
  EXPECT_FALSE(on({}));
  p.eng.SetPolicy(Policy::kThreaded);
  EXPECT_TRUE(on({}));
}

TEST(SmartStageTest, AFrontEndRecordsTheStepByTheFirstItem) {
  for (const bool staged : {false, true}) {
    TrainingProgram p;
    SmartStageOptions options = AtOnce({.capacity = 2});
    options.do_smart_stage = staged;
    auto rows = p.Rows(20);
    int pulled = 0, recorded = 0;
    SmartStage steps(
        p.eng,
        [&](std::vector<Value>* values) {
          ++pulled;
          values->resize(1);
          return rows[0].pull(*values);
        },
        options);
    EXPECT_TRUE(Has(RefusalOf([&] { steps.Next(); }), "has not been recorded"));
    const auto record = [&]() -> RecordedStep {
      EXPECT_EQ(pulled, 1);
      if (++recorded == 1) throw std::runtime_error("not yet");
      return {.graph = p.graph, .sourced = rows[0].inputs};
    };
    EXPECT_THROW(steps.Record(record), std::runtime_error);
    EXPECT_TRUE(steps.Record(record));
    EXPECT_TRUE(steps.Record(record));
    EXPECT_EQ(recorded, 2);
    EXPECT_EQ(p.Drain(steps), TrainingProgram::Expected(20));
    EXPECT_EQ(steps.stats().read, 20u);
  }
}

}  // namespace
}  // namespace engine::test
