// SmartStage: its sources: how far they are read ahead, the position, their errors and their pauses.
#include "training_program.h"
#include "turned_clock.h"

namespace engine::test {
namespace {

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

// A call that may not wait for ever reads on a thread of the stage's. That thread keeps no seat of the pool while nobody asks.
TEST(SmartStageTest, AReaderThatNobodyAsksKeepsNoSeat) {
  TrainingProgram p;
  const StagePool pool = MakeStagePool({.global_name = "one seat of SmartStageTest", .inter_op_threads_num = 1});
  bool staged = false;
  SmartStageOptions options = AtOnce({.take_timeout = 60s, .pool = pool});
  options.schedule = [&] { return staged; };
  SmartStage steps(p.eng, p.graph, p.Rows(20), options);
  int count = 0;
  for (;; staged = true) {
    Value given[] = {2};
    engine::Run run = steps.Next(given);
    if (!run) break;
    EXPECT_EQ(run.Take<int>(1), 10 * count++);
  }
  EXPECT_EQ(count, 20);
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

TEST(SmartStageTest, AFilterThatThrowsFailsTheStageWithWhatItThrew) {
  for (const bool staged : {false, true}) {
    for (const bool closed : {false, true}) {
      TrainingProgram p;
      SmartStageOptions options = AtOnce({.capacity = 2});
      (closed ? options.stage.closed_exception_types : options.stage.ignored_exception_types) =
          [](const std::exception_ptr&) -> bool { throw std::logic_error("filter"); };
      options.do_smart_stage = staged;
      SmartStage steps(p.eng, p.graph,
                       {SourceOf<int>("rows", p.row,
                                      [&] {
                                        const int row = p.next++;
                                        if (row == 2) throw std::domain_error("bad row");
                                        return row;
                                      })},
                       options);
      for (const int row : {0, 1}) {
        Value given[] = {2};
        EXPECT_EQ(steps.Next(given).Take<int>(1), 10 * row);
      }
      for (int i = 0; i < 2; ++i) {  // it stays
        Value given[] = {2};
        EXPECT_EQ(Caught<std::logic_error>([&] { steps.Next(given); }, "the filter's").what(), std::string("filter"));
      }
    }
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

}  // namespace
}  // namespace engine::test
