// The policy inline, instruction by instruction: no atomic between nodes, and no lock between clients.
#include "engine/plan.h"
#include "support/engine_test.h"
#include "support/single_step.h"

namespace engine::test {
namespace {

uint64_t g_instructions, g_atomics;
void CountAtomics(const uint8_t* next) {
  ++g_instructions;
  g_atomics += IsAtomic(next);
}

// Values, Vars, several predecessors, uses that several nodes may be the last to make. The first node begins, the last ends.
void AddLattice(Graph& graph, const std::vector<Var>& vars, std::atomic<int>* counted) {
  const NodeId begin = graph.Add({.name = "begin", .outputs = 1}, [](NodeContext& ctx) {
    ctx.Return(0, 1);
    if (kCanStep) StartStepping(CountAtomics);
  });
  std::vector<ValueId> row(6, begin[0]);
  for (int r = 0; r < 4; ++r) {
    std::vector<ValueId> next;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::vector<Var> reads = vars.empty() ? vars : std::vector<Var>{vars[i]};
      const std::vector<ValueId> inputs{row[i], row[(i + 1) % row.size()]};
      next.push_back(
          graph.Add({.name = "add", .inputs = inputs, .outputs = 1, .reads = reads}, [counted](NodeContext& ctx) {
            if (counted) counted->fetch_add(1);
            ctx.Return(0, ctx.In<int>(0) + ctx.In<int>(1));
          })[0]);
    }
    row = next;
  }
  graph.Output(graph.Add({.name = "end", .inputs = row, .outputs = 1}, [](NodeContext& ctx) {
    if (kCanStep) StopStepping();
    ctx.Return(0, ctx.In<int>(0));
  })[0]);
}

TEST(InlineSteps, NoAtomicInstructionBetweenNodes) {
  if (!kCanStep) GTEST_SKIP() << "no single steps here";
  Engine eng(Quiet(2));
  std::vector<Var> vars;
  for (int i = 0; i < 6; ++i) vars.push_back(eng.NewVar());
  const auto count = [&](std::atomic<int>* counted) {
    Graph graph;
    AddLattice(graph, {}, counted);
    const Plan plan = graph.Compile(eng);
    for (int i = 0; i < 2; ++i) {  // the second time everything is warm
      g_instructions = g_atomics = 0;
      engine::Run run = plan.Start({}, {.policy = Policy::kInline});
      EXPECT_EQ(run.Output<int>(0), 16);
    }
  };
  count(nullptr);
  EXPECT_EQ(g_atomics, 0u);
  EXPECT_GT(g_instructions, 24u * 10);
  RecordProperty("instructions_per_node", static_cast<int>(g_instructions / 25));
  std::atomic<int> counted{0};
  count(&counted);  // what is looked for is found
  EXPECT_EQ(g_atomics, 24u);
}

// Releasing a Var is the dependency protocol's, once a Var and run, whatever number of nodes reads it.
TEST(InlineSteps, AtomicInstructionsGoWithVarsAndNotWithNodes) {
  if (!kCanStep) GTEST_SKIP() << "no single steps here";
  Engine eng(Quiet(2));
  std::vector<Var> vars;
  for (int i = 0; i < 6; ++i) vars.push_back(eng.NewVar());
  Graph graph;
  AddLattice(graph, vars, nullptr);
  const Plan plan = graph.Compile(eng);
  for (int i = 0; i < 2; ++i) {
    g_instructions = g_atomics = 0;
    plan.Start({}, {.policy = Policy::kInline}).Wait();
  }
  EXPECT_LE(g_atomics, 6u * 4);
}

std::atomic<uint64_t> g_stopped, g_passed;  // by the client that steps; by the other one
std::atomic<bool> g_stuck;
void LetTheOtherRun(const uint8_t*) {
  const uint64_t step = g_stopped.fetch_add(1) + 1;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (g_passed.load() < step && !g_stuck.load()) {
    sched_yield();
    if (std::chrono::steady_clock::now() > limit) g_stuck = true;
  }
}

// A client is stopped after every single instruction of its run, from Start to its output; another one gets a whole run through
// each time. A lock that runs share would be held after some instruction.
TEST(InlineSteps, AClientThatStandsStillHoldsUpNobody) {
  if (!kCanStep) GTEST_SKIP() << "no single steps here";
  Engine eng(Quiet(2));
  Graph graph;
  ValueId value = graph.Input<int>("x");
  for (int i = 0; i < 5; ++i)
    value = graph.Add({.name = "n", .inputs = {value}, .outputs = 1},
                      [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + 1); })[0];
  graph.Output(value);
  const Plan plan = graph.Compile(eng);
  const auto ask = [&](int x) {
    Value inputs[] = {x};
    engine::Run run = plan.Start(inputs, {.policy = Policy::kInline});
    return run.Take<int>(0);
  };
  // More runs at once than a plan's first places hold frames: none of what follows makes one.
  std::vector<engine::Run> open;
  for (int i = 0; i < 40; ++i) {
    Value inputs[] = {i};
    open.push_back(plan.Start(inputs, {.policy = Policy::kInline}));
  }
  open.clear();
  g_stopped = g_passed = 0;
  g_stuck = false;
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::thread other([&] {
    while (ask(1) != 6) ++wrong;  // warm
    for (uint64_t seen = 0; !over;) {
      if (g_stopped.load() == seen) {
        sched_yield();
        continue;
      }
      wrong += ask(7) != 12;
      g_passed = ++seen;
    }
  });
  for (int i = 0; i < 100; ++i) ask(i);
  StartStepping(LetTheOtherRun);
  const int got = ask(20);
  StopStepping();
  over = true;
  other.join();
  EXPECT_EQ(got, 25);
  EXPECT_EQ(wrong, 0);
  EXPECT_FALSE(g_stuck) << "stuck after instruction " << g_stopped;
  EXPECT_GT(g_stopped, 500u);
  EXPECT_EQ(plan.frames(), 40u);
}

}  // namespace
}  // namespace engine::test
