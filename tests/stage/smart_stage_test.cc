// SmartStage with threads: nobody can tell by the results whether steps are staged; errors, clients, refusals.
#include <sys/wait.h>
#include <unistd.h>

#include "support/threads.h"
#include "training_program.h"

namespace engine::test {
namespace {

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
  EXPECT_EQ(p.Drain(steps, true), TrainingProgram::Expected(400));
  const SmartStageReport report = steps.Report();
  EXPECT_TRUE(report.decided);
  if (report.levels == 0) return;  // on this machine, now, no cut was worth it
  EXPECT_GT(report.measured_whole_seconds, 0);
  EXPECT_GT(report.measured_staged_seconds, 0);
  EXPECT_GT(report.gain_error, 0);
  // A stage that has room is kept while in doubt: what is measured of it may be a loss, within its error.
  EXPECT_TRUE(!report.on || report.gain > -2 * report.gain_error) << report.text;
  EXPECT_TRUE(Has(report.text, report.on ? "steps are staged" : "no clear gain, steps run whole"));
  EXPECT_TRUE(Has(report.text, report.sure ? "half a percent of the time" : "compared again soon"));
  EXPECT_GT(report.comparisons, 0u);
}

// Nobody can stand in for the op that asks for a step, so it cannot wait for the one that is profiled.
TEST(SmartStageTest, AProfiledStepThatCannotBeWaitedForIsTheCallersAllTheSame) {
  EngineOptions options = Quiet(1);
  options.max_spare_threads = 0;
  Engine eng(options);
  Graph graph;
  const ValueId x = graph.Input<int>("x");
  for (int i = 0; i < 64; ++i) graph.Add({.name = "node", .inputs = {x}}, [](const int&) {});
  graph.Output(x);
  SmartStage steps(eng, graph, {SourceOf<int>("source", x, [n = 0]() mutable { return n++; })}, {.profile_steps = 2});
  Var v = eng.NewVar("v");
  std::vector<engine::Run> runs;
  eng.Push({.name = "trainer", .writes = {v}}, [&] {
    for (int i = 0; i < 5; ++i) runs.push_back(steps.Next());
  });
  eng.Wait(v);
  ASSERT_EQ(runs.size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(runs[static_cast<size_t>(i)].Take<int>(0), i);
  for (int i = 5; i < 10; ++i) EXPECT_EQ(steps.Next().Take<int>(0), i) << "and outside of ops it is profiled";
}

TEST(SmartStageTest, ACallerThatTrainsBetweenTwoStepsIsStagedFor) {
  using namespace std::chrono_literals;
  Engine eng(Quiet(1));
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  graph.Output(graph.Add({.name = "parse", .inputs = {row}, .outputs = 1}, [](NodeContext& ctx) {
    std::this_thread::sleep_for(2ms);
    ctx.Return(0, 2 * ctx.In<int>(0));
  })[0]);
  const auto rows = [n = 0]() mutable { return n < 12 ? std::optional<int>(n++) : std::nullopt; };
  SmartStage steps(eng, graph, {SourceOf<int>("rows", row, rows)}, {.profile_steps = 4, .guard_steps = 0});
  for (int expected = 0; engine::Run run = steps.Next(); expected += 2) {
    EXPECT_EQ(run.Take<int>(0), expected);
    std::this_thread::sleep_for(2ms);
  }
  const SmartStageReport report = steps.Report();
  EXPECT_EQ(report.staged, 1u) << report.text;
  EXPECT_GE(report.rest_seconds, 2e-3);
  EXPECT_TRUE(Has(report.text, "; the caller itself takes ")) << report.text;
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
    if (running.size() % 4 == 0) p.eng.WaitAll();  // so that the guard hears of the ends, however slow the workers are
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
    if (ctx.In<int>(0) == 1) throw std::domain_error("bad row");  // of a step that runs whole
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
    eng.WaitAll();  // so that the guard hears of the end
  }
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(steps.Report().decided);
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

// Nobody who waits for everything meanwhile is shown it, nor is it counted as one that nobody has seen.
TEST(SmartStageTest, AnErrorOfAStagedNodeIsShownByItsStepAlone) {
  Engine eng(Quiet(2));
  const Var weight = eng.NewVar("weight");
  Gate begun, go_on;
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  const NodeId fails = graph.Add({.name = "fails", .inputs = {row}, .outputs = 1},
                                 [](NodeContext&) { throw std::runtime_error("bad row"); });
  const NodeId waits = graph.Add({.name = "waits", .inputs = {row}, .outputs = 1}, [&](NodeContext& ctx) {
    begun.Open();
    go_on.Wait();
    ctx.Return(0, 1);
  });
  const NodeId step = graph.Add({.name = "step", .inputs = {fails[0], waits[0]}, .outputs = 1, .updates = {weight}},
                                [](NodeContext& ctx) { ctx.Return(0, 2); });
  graph.Output(step[0]);
  int next = 0;
  SmartStage steps(eng, graph,
                   {SourceOf<int>("rows", row,
                                  [&]() -> std::optional<int> {
                                    if (next == 1) return {};
                                    return next++;
                                  })},
                   AtOnce());
  std::string shown;
  std::thread consumer([&] {
    engine::Run run = steps.Next();
    shown = Caught<OpError>([&] { run.Take<int>(0); }, "the staged node's error").what();
  });
  begun.Wait();
  EXPECT_EQ(eng.stats().unseen_errors, 0u);
  go_on.Open();
  consumer.join();
  EXPECT_TRUE(Has(shown, "'fails'")) << shown;
  eng.WaitAll();
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

TEST(SmartStageTest, CancelEndsTheWaitForATurn) {
  TrainingProgram p;
  Gate gate;
  Counter inside;
  SmartStage steps(p.eng, p.graph, {SourceOf<int>("rows", p.row, [&] { return inside.Add(), gate.Wait(), 1; })},
                   {.stage = {.num_clients = 2}, .do_smart_stage = false});
  const auto cancelled = [&] {
    Value given[] = {2};
    EXPECT_THROW(steps.Next(given), CancelledError);
  };
  std::thread first([&] {
    Value given[] = {2};
    EXPECT_EQ(steps.Next(given).Take<int>(1), 10);  // it has read its item
  });
  inside.WaitFor(1);
  std::thread second(cancelled);
  steps.Cancel();
  second.join();
  cancelled();
  gate.Open();
  first.join();
}

TEST(SmartStageTest, InTheChildOfAForkItSaysWhereItsClientsAre) {
  for (const int clients : {1, 2}) {
    TrainingProgram p;
    Gate gate;
    Counter inside;
    SmartStage steps(p.eng, p.graph, {SourceOf<int>("rows", p.row, [&] { return inside.Add(), gate.Wait(), 1; })},
                     {.stage = {.name = "rows", .num_clients = clients}, .do_smart_stage = false});
    const auto step = [&] {
      Value given[] = {2};
      return steps.Next(given).Take<int>(1);
    };
    std::thread first([&] { EXPECT_EQ(step(), 10); });
    inside.WaitFor(1);
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      int code = 1;
      try {
        step();
      } catch (const ForkedWhilePending& error) {
        code = Has(error.what(), "smart stage 'rows': a thread was asking it for a step") ? 0 : 2;
      }
      _exit(code);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << clients;
    gate.Open();
    first.join();
    EXPECT_EQ(step(), 10);
  }
}

// Cancel drops the items that are ready, whose destructors may ask the stage.
// A value whose destructor asks its stage for the counters.
struct Asks {
  Asks(SmartStage** of, std::atomic<int>* times) : stage(of), asked(times) {}
  Asks(Asks&& other) noexcept : stage(std::exchange(other.stage, nullptr)), asked(other.asked) {}
  ~Asks() {
    if (!stage) return;
    (void)(*stage)->stats();
    ++*asked;
  }
  SmartStage** stage;
  std::atomic<int>* asked;
};

TEST(SmartStageTest, ItemsThatCancelDropsMayAskForTheCounters) {
  Engine eng(Quiet(1));
  const Var weight = eng.NewVar("weight");
  SmartStage* stage = nullptr;
  std::atomic<int> asked{0}, made{0};
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  const NodeId parse = graph.Add({.name = "parse", .inputs = {row}}, [&](int) {
    ++made;
    return Asks(&stage, &asked);
  });
  graph.Add({.name = "step", .inputs = {parse[0]}, .updates = {weight}}, [](const Asks&) {});
  SmartStage steps(eng, std::move(graph), {SourceOf<int>("rows", row, [] { return 1; })}, AtOnce({.capacity = 3}));
  stage = &steps;
  steps.Next().Wait();
  while (made < 4) std::this_thread::yield();
  eng.WaitAll();
  while (steps.stats().stage.fill < 3) std::this_thread::yield();
  const int before = asked;
  steps.Cancel();
  EXPECT_GE(asked - before, 3);
}

// An item that is made while its stage is ending is dropped by the thread that made it, while the stage waits for that thread.
TEST(SmartStageTest, ItemsThatTheEndOfTheirStageDropsMayAskForTheCounters) {
  Engine eng(Quiet(1));
  const Var weight = eng.NewVar("weight");
  SmartStage* stage = nullptr;
  std::atomic<int> asked{0};
  std::atomic<bool> late{false};
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  const NodeId parse = graph.Add({.name = "parse", .inputs = {row}}, [&, made = 0](int) mutable {
    if (++made == 4) {  // the area has two more, which only the end drops
      late = true;
      while (asked < 3) std::this_thread::yield();
      std::this_thread::sleep_for(20ms);  // the end goes on to wait for this thread
    }
    return Asks(&stage, &asked);
  });
  graph.Add({.name = "step", .inputs = {parse[0]}, .updates = {weight}}, [](const Asks&) {});
  auto steps = std::make_unique<SmartStage>(eng, std::move(graph),
                                            std::vector<SmartSource>{SourceOf<int>("rows", row, [] { return 1; })},
                                            AtOnce({.capacity = 3}));
  stage = steps.get();
  steps->Next().Wait();
  while (asked < 1 || !late) std::this_thread::yield();
  steps.reset();
  EXPECT_EQ(asked, 4);
}

// A step of which one staged node has failed, and another has not, is refused: it keeps what the other one made.
TEST(SmartStageTest, ARefusedStepKeepsItsErrorAndItsValues) {
  TrainingProgram p;
  int sum = 0;
  const Var total = p.eng.NewVar("total"), used = p.eng.NewVar("used");
  const NodeId hash = p.graph.Add({.name = "hash", .inputs = {p.row}, .outputs = 1}, [](NodeContext& ctx) {
    if (ctx.In<int>(0) == 1) throw std::out_of_range("row 1");
    ctx.Return(0, ctx.In<int>(0));
  });
  p.graph.Add({.name = "use", .inputs = {hash[0]}, .updates = {used}}, [](NodeContext&) {});
  p.graph.Add({.name = "sum", .inputs = {p.look_up[0]}, .updates = {total}},
              [&](NodeContext& ctx) { sum += ctx.In<int>(0); });
  SmartStage steps(p.eng, p.graph, p.Rows(3), AtOnce({.capacity = 2}, 2));
  for (int i = 0; i < 3; ++i) {
    Value given[] = {2};
    for (int refused = 0; refused < 2; ++refused)
      EXPECT_TRUE(Has(RefusalOf([&] { steps.Next(given, {.priority = 1 << 20}); }), "priority"));
    engine::Run run = steps.Next(given);
    if (i == 1) {
      EXPECT_THROW(Caught<OpError>([&] { run.Wait(); }, "the row").RethrowCause(), std::out_of_range);
      p.eng.ClearError(used);
    } else {
      run.Wait();
    }
  }
  EXPECT_EQ(sum, 10 + 20);
}

TEST(SmartStageTest, ARefusedStepIsTheNextOne) {
  TrainingProgram p;
  SmartStage steps(p.eng, p.graph, p.Rows(3), AtOnce());
  EXPECT_TRUE(Has(RefusalOf([&] { steps.Next(); }), "takes 1"));
  EXPECT_EQ(p.Drain(steps), TrainingProgram::Expected(3));
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
