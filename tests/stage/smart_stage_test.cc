// SmartStage with threads: what is staged, what is said about it, and that nobody can tell by the results.
#include "engine/smart_stage.h"

#include <map>
#include <set>

#include "support/engine_test.h"
#include "support/threads.h"
#include "turned_clock.h"

namespace engine::test {
namespace {

using Ints = std::vector<int>;

// The program of DeepRec's page: rows -> parse -> look up (a table that nobody changes) -> step (updates a weight).
struct TrainingProgram {
  explicit TrainingProgram(int workers = 2)
      : eng(Quiet(workers)), table(eng.NewVar("table")), weight(eng.NewVar("weight")) {
    row = graph.Input<int>("row");
    rate = graph.Input<int>("rate");
    parse = graph.Add({.name = "parse", .inputs = {row}, .outputs = 1},
                      [](NodeContext& ctx) { ctx.Return(0, Ints(4, ctx.In<int>(0))); });
    look_up = graph.Add({.name = "look up", .inputs = {parse[0]}, .outputs = 1, .reads = {table}},
                        [](NodeContext& ctx) { ctx.Return(0, 10 * ctx.In<Ints>(0)[0]); });
    step = graph.Add({.name = "step", .inputs = {look_up[0], rate}, .outputs = 1, .updates = {weight}},
                     [this](NodeContext& ctx) { ctx.Return(0, w += ctx.In<int>(0) * ctx.In<int>(1)); });
    graph.Output(step[0]);
    graph.Output(look_up[0]);  // staged, and forwarded
  }
  std::vector<SmartSource> Rows(int n) {
    return {SourceOf<int>("rows", row, [this, n]() -> std::optional<int> {
      if (next == n) return {};
      return next++;
    })};
  }
  std::vector<std::pair<int, int>> Drain(SmartStage& steps) {
    std::vector<std::pair<int, int>> out;
    for (;;) {
      Value given[] = {2};
      engine::Run run = steps.Next(given);
      if (!run) return out;
      const int sum = run.Take<int>(0);
      out.emplace_back(sum, run.Take<int>(1));
    }
  }
  static std::vector<std::pair<int, int>> Expected(int n) {
    std::vector<std::pair<int, int>> out;
    for (int i = 0, sum = 0; i < n; ++i) out.emplace_back(sum += 20 * i, 10 * i);
    return out;
  }

  Engine eng;
  Var table, weight;
  Graph graph;
  ValueId row, rate;
  NodeId parse, look_up, step;
  std::atomic<int> next{0};
  int w = 0;
};

// Staged from the first step on.
SmartStageOptions AtOnce(StageOptions stage = {}, int levels = 1) {
  return {.stage = std::move(stage), .max_levels = levels, .profile_steps = 0, .guard_steps = 0};
}

TEST(SmartStageTest, StepsAreTheSameStagedAndWhole) {
  for (const bool staged : {false, true}) {
    for (const int levels : {1, 2}) {
      TrainingProgram p;
      SmartStageOptions options = AtOnce({.capacity = 3, .num_threads = 2}, levels);
      options.do_smart_stage = staged;
      SmartStage steps(p.eng, p.graph, p.Rows(50), options);
      EXPECT_EQ(p.Drain(steps), TrainingProgram::Expected(50));
      EXPECT_FALSE(steps.Next());
      EXPECT_EQ(steps.stats().position, 50u);
      EXPECT_EQ(steps.Report().staged, staged ? 2u : 0u);
    }
  }
}

TEST(SmartStageTest, ProfileAndGuardChangeNothingEither) {
  TrainingProgram p;
  SmartStage steps(p.eng, p.graph, p.Rows(400), {.stage = {.name = "rows"}, .profile_steps = 3, .guard_steps = 5});
  EXPECT_TRUE(Has(steps.Explain(), "smart stage 'rows': step 0 of 3 that are timed"));
  EXPECT_EQ(p.Drain(steps), TrainingProgram::Expected(400));
  const SmartStageReport report = steps.Report();
  EXPECT_TRUE(report.decided);
  if (report.levels == 0) return;  // on this machine, now, no cut was worth it
  EXPECT_GT(report.measured_whole_seconds, 0);
  EXPECT_GT(report.measured_staged_seconds, 0);
  EXPECT_TRUE(!report.on || report.measured_staged_seconds < report.measured_whole_seconds);
  EXPECT_TRUE(Has(report.text, report.on ? "it stays staged" : "the stage is dropped"));
}

TEST(SmartStageTest, TheGuardWaitsForNoStep) {
  TrainingProgram p;
  SmartStage steps(p.eng, p.graph, p.Rows(400), {.stage = {.num_threads = 1}, .profile_steps = 0, .guard_steps = 2});
  std::vector<engine::Run> running;
  const auto start = [&] {
    Value given[] = {2};
    return steps.Next(given);
  };
  {
    // No step can end: the caller itself holds what they need, and asks for more of them, also inside an op.
    HeldOp held = HoldWrite(p.eng, p.weight);
    for (int i = 0; i < 20; ++i) running.push_back(start());
    Var mine = p.eng.NewVar("mine");
    p.eng.Push({.name = "inside", .updates = {p.weight}, .writes = {mine}}, [&] {
      for (int i = 0; i < 20; ++i) running.push_back(start());
    });
    held.Release();
    p.eng.Wait(mine);
  }
  EXPECT_EQ(steps.Report().measured_whole_seconds, 0);
  while (engine::Run run = start()) {
    running.push_back(std::move(run));
    if (running.size() > 44) running[running.size() - 4].Wait();
  }
  std::vector<std::pair<int, int>> seen;
  for (engine::Run& run : running) {
    const int sum = run.Take<int>(0);
    seen.emplace_back(sum, run.Take<int>(1));
  }
  EXPECT_EQ(seen, TrainingProgram::Expected(400));
  EXPECT_TRUE(steps.Report().decided);
}

TEST(SmartStageTest, AStepThatFailsWhileTheyAreComparedIsToldOnce) {
  Log log;
  Engine eng(Reporting(1, log));
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  const NodeId check = graph.Add({.name = "check", .inputs = {row}, .outputs = 1}, [](NodeContext& ctx) {
    if (ctx.In<int>(0) == 5) throw std::domain_error("bad row");
    ctx.Return(0, ctx.In<int>(0));
  });
  graph.Output(check[0]);
  const auto next = [n = 0]() mutable { return n++; };
  SmartStage steps(eng, graph, {SourceOf<int>("rows", row, next)}, {.profile_steps = 0, .guard_steps = 2});
  int told = 0;
  for (int i = 0; i < 200; ++i) {
    engine::Run run = steps.Next();
    try {
      EXPECT_EQ(run.Take<int>(0), i);
    } catch (const OpError&) {
      ++told;
    }
  }
  eng.WaitAll();
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(steps.Report().decided);
}

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

TEST(SmartStageTest, InTracesStagedNodesStandOnTheStagesLane) {
  TrainingProgram p;
  p.eng.StartTrace();
  SmartStage steps(p.eng, p.graph, p.Rows(5), AtOnce({.name = "rows"}));
  p.Drain(steps);
  std::map<std::string, std::set<std::string>> lanes;
  for (const TraceEvent& event : p.eng.StopTrace()) lanes[event.name].insert(event.lane);
  EXPECT_EQ(lanes["parse"], std::set<std::string>{"rows"});
  EXPECT_EQ(lanes["look up"], std::set<std::string>{"rows"});
  EXPECT_FALSE(lanes["step"].contains("rows"));
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

// DeepRec: a stage's own pool is silently ignored under the inline executor.
TEST(SmartStageTest, TheStagesPoolCountsUnderEveryPolicy) {
  const StagePool pool = MakeStagePool({.global_name = "smart, one at a time", .inter_op_threads_num = 1});
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive}) {
    TrainingProgram p;
    p.eng.SetPolicy(policy);
    std::atomic<int> inside{0}, most{0};
    const NodeId hash = p.graph.Add({.name = "hash", .inputs = {p.row}, .outputs = 1}, [&](NodeContext& ctx) {
      most = std::max(most.load(), ++inside);
      std::this_thread::yield();
      ctx.Return(0, ctx.In<int>(0));
      --inside;
    });
    p.graph.Output(hash[0]);
    SmartStage steps(p.eng, p.graph, p.Rows(100), AtOnce({.capacity = 4, .num_threads = 3, .pool = pool}));
    EXPECT_EQ(p.Drain(steps), TrainingProgram::Expected(100));
    EXPECT_EQ(most, 1);
  }
}

TEST(SmartStageTest, ReadsAheadAsFarAsItMayAndReportsThePosition) {
  TrainingProgram p;
  Counter read;
  SmartStage steps(p.eng, p.graph, {SourceOf<int>("rows", p.row, [&] { return read.Add(), p.next++; })},
                   AtOnce({.capacity = 3}));
  Value given[] = {2};
  steps.Next(given).Wait();
  read.WaitFor(5);  // one taken, three buffered, one that waits for room
  EXPECT_EQ(steps.stats().position, 1u);
  EXPECT_LE(read.count(), 5);
}

TEST(SmartStageTest, ResumingFromThePositionRepeatsAndLosesNothing) {
  for (const int stop : {1, 7, 20, 31}) {
    TrainingProgram p;
    std::vector<std::pair<int, int>> all;
    uint64_t position = 0;
    while (position < 40) {
      p.next = static_cast<int>(position);
      SmartStage steps(p.eng, p.graph, p.Rows(40), {.stage = {.capacity = 4}, .profile_steps = 2, .guard_steps = 2});
      for (int i = 0; i < stop && position + static_cast<uint64_t>(i) < 40; ++i) {
        Value given[] = {2};
        engine::Run run = steps.Next(given);
        const int sum = run.Take<int>(0);
        all.emplace_back(sum, run.Take<int>(1));
      }
      position += steps.stats().position;
    }
    EXPECT_EQ(all, TrainingProgram::Expected(40));
  }
}

TEST(SmartStageTest, RowsThatTheSourceSkipsCountInThePosition) {
  for (const bool staged : {false, true}) {
    TrainingProgram p;
    SmartStageOptions options = AtOnce({.capacity = 2, .ignored_exception_types = AnyOf<std::domain_error>()});
    options.do_smart_stage = staged;
    SmartStage steps(p.eng, p.graph,
                     {SourceOf<int>("rows", p.row,
                                    [&] {
                                      const int row = p.next++;
                                      if (row % 3 == 1) throw std::domain_error("bad row");
                                      return row;
                                    })},
                     options);
    for (const int row : {0, 2, 3, 5}) {
      Value given[] = {2};
      EXPECT_EQ(steps.Next(given).Take<int>(1), 10 * row);
      EXPECT_EQ(steps.stats().position, static_cast<uint64_t>(row + 1));
    }
  }
}

TEST(SmartStageTest, WhatFindsNoRoomInTimeMayBeDropped) {
  TrainingProgram p;
  TurnedClock clock;
  SmartStage steps(p.eng, p.graph, p.Rows(5), AtOnce({.on_timeout = OnTimeout::kDrop, .clock = &clock}));
  std::vector<int> rows;
  const auto step = [&] {
    Value given[] = {2};
    engine::Run run = steps.Next(given);
    if (run) rows.push_back(run.Take<int>(1) / 10);
    return static_cast<bool>(run);
  };
  step();
  while (steps.stats().stage.begun < 3) std::this_thread::yield();
  EXPECT_EQ(clock.Next(), 300s);  // 1 is buffered, 2 waits
  clock.Turn(300s);
  while (steps.stats().stage.drops < 1) std::this_thread::yield();
  while (step()) {
  }
  EXPECT_EQ(rows, (Ints{0, 1, 3, 4}));
  EXPECT_EQ(steps.stats().position, 5u);
}

TEST(SmartStageTest, MoreClientsThanSaidAreRefused) {
  for (const int clients : {1, 2}) {
    TrainingProgram p;
    Gate gate;
    Counter inside;
    SmartStage steps(p.eng, p.graph, {SourceOf<int>("rows", p.row, [&] { return inside.Add(), gate.Wait(), 7; })},
                     AtOnce({.name = "rows", .num_clients = clients}));
    const auto step = [&] {
      Value given[] = {2};
      return steps.Next(given).Take<int>(1);
    };
    std::thread first([&] { EXPECT_EQ(step(), 70); });
    inside.WaitFor(1);
    std::thread second([&] {
      if (clients == 2) {
        EXPECT_EQ(step(), 70);
      } else {
        EXPECT_TRUE(Has(RefusalOf(step), "smart stage 'rows': more than num_clients (1)"));
      }
      gate.Open();
    });
    if (clients == 2) gate.Open();
    first.join();
    second.join();
  }
}

TEST(SmartStageTest, AStageByHandIsALevelInFront) {
  TrainingProgram p;
  Stage<int> by_hand({.name = "reader", .capacity = 2}, [n = 0]() mutable -> std::optional<int> {
    if (n == 30) return {};
    return n++;
  });
  SmartStage steps(p.eng, p.graph, {SourceOf<int>("rows", p.row, [&] { return by_hand.Take(); })}, AtOnce());
  EXPECT_EQ(p.Drain(steps), TrainingProgram::Expected(30));
  EXPECT_EQ(by_hand.stats().delivered, 30u);
}

TEST(SmartStageTest, SeveralSourcesAndPlansAsSources) {
  Engine eng(Quiet(2));
  Var file = eng.NewVar("file");
  int at = 0;
  Graph reader;
  const NodeId read = reader.Add({.name = "read", .outputs = 1, .updates = {file}}, [&](NodeContext& ctx) {
    if (at == 10) throw EndOfData();
    ctx.Return(0, at++);
  });
  reader.Output(read[0]);
  Graph graph;
  const ValueId a = graph.Input<int>("a"), b = graph.Input<int>("b");
  const NodeId sum = graph.Add({.name = "sum", .inputs = {a, b}, .outputs = 1},
                               [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + ctx.In<int>(1)); });
  graph.Output(sum[0]);
  for (const bool staged : {false, true}) {
    at = 0;
    eng.ClearError(file);  // the end, of the time before
    SmartStageOptions options = AtOnce();
    options.do_smart_stage = staged;
    SmartStage steps(eng, graph,
                     {PlanSource("file", {a}, reader.Compile(eng)),
                      SourceOf<int>("hundreds", b, [n = 0]() mutable { return 100 * n++; })},
                     options);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(steps.Next().Take<int>(0), 101 * i);
    EXPECT_FALSE(steps.Next());
  }
}

TEST(SmartStageTest, AFailedStagedNodeFailsItsStepAsItWouldHave) {
  std::vector<std::string> told;
  for (const bool staged : {false, true}) {
    TrainingProgram p;
    int seen = 0;
    Var count = p.eng.NewVar("count");
    const NodeId hash = p.graph.Add({.name = "hash", .inputs = {p.row}, .outputs = 1}, [](NodeContext& ctx) {
      if (ctx.In<int>(0) == 3) throw std::out_of_range("row 3");
      ctx.Return(0, ctx.In<int>(0));
    });
    p.graph.Add({.name = "use", .inputs = {hash[0]}, .updates = {p.weight}},
                [&](NodeContext& ctx) { p.w += ctx.In<int>(0); });
    p.graph.Add({.name = "count", .inputs = {p.rate}, .updates = {count}}, [&] { ++seen; });
    SmartStageOptions options = AtOnce({.capacity = 2}, 2);
    options.do_smart_stage = staged;
    SmartStage steps(p.eng, p.graph, p.Rows(6), options);
    for (int i = 0; i < 6; ++i) {
      Value given[] = {2};
      engine::Run run = steps.Next(given);
      if (i != 3) {
        if (i > 3) p.eng.ClearError(p.weight);
        continue;
      }
      const OpError error = Caught<OpError>([&] { run.Wait(); }, "the row");
      told.push_back(error.op() + std::to_string(error.site().line));
      EXPECT_THROW(error.RethrowCause(), std::out_of_range);
      EXPECT_TRUE(run.OutputIf(0));  // made by what does not depend on it
      p.eng.ClearError(p.weight);
    }
    try {
      p.eng.WaitAll();
    } catch (const OpError&) {
    }
    EXPECT_EQ(seen, 6);
  }
  EXPECT_EQ(told[0], told[1]);
}

TEST(SmartStageTest, FiltersOfOnesOwnApplyToStagedNodes) {
  for (const int guard : {0, 1000}) {  // staged from the first step, or never
    TrainingProgram p;
    const NodeId check = p.graph.Add({.name = "check", .inputs = {p.row}, .outputs = 1}, [](NodeContext& ctx) {
      if (ctx.In<int>(0) % 3 == 1) throw std::domain_error("malformed row in line " + std::to_string(ctx.In<int>(0)));
      if (ctx.In<int>(0) == 8) throw std::length_error("truncated");
      ctx.Return(0, ctx.In<int>(0));
    });
    p.graph.Output(check[0]);
    SmartStageOptions options = AtOnce({.capacity = 2,
                                        .closed_exception_types = AnyOf<std::length_error>(),
                                        .ignored_exception_types = AnyOf<std::domain_error>()});
    options.guard_steps = guard;
    SmartStage steps(p.eng, p.graph, p.Rows(50), options);
    std::vector<int> rows;
    for (;;) {
      Value given[] = {2};
      engine::Run run = steps.Next(given);
      if (!run) break;
      rows.push_back(run.Take<int>(2));
    }
    EXPECT_EQ(rows, (Ints{0, 2, 3, 5, 6}));
    EXPECT_EQ(steps.stats().skipped, 3u);
    EXPECT_EQ(p.w, 2 * 10 * (0 + 2 + 3 + 5 + 6));
  }
}

TEST(SmartStageTest, PersistentErrorsArePausedForAlsoWhileStepsRunWhole) {
  for (const bool cancel : {false, true}) {
    TrainingProgram p;
    TurnedClock clock;
    std::atomic<int> calls{0};
    SmartStageOptions options = AtOnce({.ignored_exception_types = AnyOf<std::domain_error>(), .clock = &clock});
    options.do_smart_stage = false;
    SmartStage steps(p.eng, p.graph,
                     {SourceOf<int>("rows", p.row,
                                    [&] {
                                      if (++calls < 11) throw std::domain_error("bad row");
                                      return 7;
                                    })},
                     options);
    std::thread caller([&] {
      Value given[] = {2};
      if (cancel) {
        EXPECT_THROW(steps.Next(given), CancelledError);
      } else {
        EXPECT_EQ(steps.Next(given).Take<int>(1), 70);
      }
    });
    EXPECT_EQ(clock.Next(), 1ms);
    EXPECT_EQ(calls, 9);
    if (cancel) {
      steps.Cancel();
    } else {
      clock.Turn(1ms);
      EXPECT_EQ(clock.Next(), 2ms);
      clock.Turn(2ms);
    }
    caller.join();
    EXPECT_EQ(calls, cancel ? 9 : 11);
  }
}

TEST(SmartStageTest, WhatASourceThrowsComesAsItselfAfterTheStepsBeforeIt) {
  for (const bool staged : {false, true}) {
    TrainingProgram p;
    SmartStageOptions options = AtOnce({.capacity = 4});
    options.do_smart_stage = staged;
    SmartStage steps(p.eng, p.graph,
                     {SourceOf<int>("rows", p.row,
                                    [&] {
                                      if (p.next == 3) throw std::runtime_error("rows.csv is truncated");
                                      return p.next++;
                                    })},
                     options);
    Value given[] = {2};
    for (int i = 0; i < 3; ++i) {
      given[0] = 2;
      EXPECT_TRUE(steps.Next(given));
    }
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(Caught<std::runtime_error>([&] { steps.Next(given); }, "it").what(),
                std::string("rows.csv is truncated"));
  }
}

TEST(SmartStageTest, ASourceThatBlocksForEverIsNamedAndCancelled) {
  for (const bool staged : {false, true}) {
    TrainingProgram p;
    Gate gate;
    SmartStageOptions options = AtOnce({.name = "reader", .take_timeout = 1ms});
    options.do_smart_stage = staged;
    SmartStage steps(p.eng, p.graph, {SourceOf<int>("rows", p.row, [&] { return gate.Wait(), p.next++; })}, options);
    Value given[] = {2};
    std::string text;  // at first, that no producer has begun
    while (text.find("the source has not returned") == std::string::npos)
      text = Caught<StageTimeoutError>([&] { steps.Next(given); }, "a timeout").what();
    EXPECT_TRUE(Has(text, "stage 'reader': no item within 1 ms"));
    std::thread opener([&] { gate.Open(); });
    engine::Run run;
    while (!run) {
      try {
        run = steps.Next(given);
      } catch (const StageTimeoutError&) {
      }
    }
    EXPECT_EQ(run.Output<int>(1), 0);  // nothing was lost by it
    opener.join();
  }
}

TEST(SmartStageTest, CancelEndsAWaitingNext) {
  TrainingProgram p;
  const int before = Threads();
  {
    Gate gate;
    Counter inside;
    SmartStage steps(p.eng, p.graph, {SourceOf<int>("rows", p.row, [&] { return inside.Add(), gate.Wait(), 1; })},
                     AtOnce());
    std::thread caller([&] {
      Value given[] = {2};
      EXPECT_THROW(steps.Next(given), CancelledError);
    });
    inside.WaitFor(1);
    steps.Cancel();
    caller.join();
    gate.Open();
  }
  AwaitThreads(before);
}

TEST(SmartStageTest, ARefusedStepIsTheNextOne) {
  TrainingProgram p;
  SmartStage steps(p.eng, p.graph, p.Rows(3), AtOnce());
  EXPECT_TRUE(Has(RefusalOf([&] { steps.Next(); }), "takes 1"));
  EXPECT_EQ(p.Drain(steps), TrainingProgram::Expected(3));
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

TEST(SmartStageTest, WhatCannotBeHonouredIsRefused) {
  TrainingProgram p;
  const auto refusal = [&](SmartStageOptions options, std::vector<SmartSource> sources) {
    options.stage.name = "bad";
    return RefusalOf([&] { SmartStage(p.eng, p.graph, std::move(sources), options); });
  };
  const Graph other;
  EXPECT_TRUE(Has(refusal({.graph = &other}, p.Rows(1)), "smart stage 'bad': its option graph is another graph"));
  EXPECT_TRUE(Has(refusal({.stage = {.capacity = 0}}, p.Rows(1)), "stage 'bad': capacity is 0"));
  EXPECT_TRUE(Has(refusal({.stage = {.ordered = false}}, p.Rows(1)), "ordered is false"));
  EXPECT_TRUE(Has(refusal({.targets = {7}}, p.Rows(1)), "node 7 is marked, and the step has 3"));
  EXPECT_TRUE(Has(refusal({.max_levels = 0}, p.Rows(1)), "max_levels is 0"));
  EXPECT_TRUE(Has(refusal({}, {}), "no input of the step comes from a source"));
  EXPECT_TRUE(Has(refusal({}, {p.Rows(1)[0], p.Rows(1)[0]}), "two sources give the input 'row'"));
}

}  // namespace
}  // namespace engine::test
