// Contract 9 for plans: a random program leaves the same values, errors, paths and messages whether it is pushed, or captured
// and run, under each policy, in turns with pushes in bulks of each size, with overlapping runs and with any schedule.
#include "engine/bulk.h"
#include "engine/plan.h"
#include "support/on_device.h"
#include "support/seed.h"

namespace engine::test {
namespace {

constexpr size_t kVars = 10;

struct Meaning {
  std::vector<double> values;
  std::vector<std::string> errors;
  bool operator==(const Meaning&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Meaning& m) {
  for (size_t i = 0; i < m.values.size(); ++i) out << "\n  v" << i << " = " << m.values[i] << "  " << m.errors[i];
  return out;
}

// State of one program, and its pushes, the same from the same seed. `failures`: one op in so many fails; 0: none. `devices`:
// whether the engine has one, where a third of the ops then are.
struct Program {
  explicit Program(Engine& engine, bool devices = false) : eng(engine), on_device(devices), x(kVars, 1.0) {
    for (size_t i = 0; i < kVars; ++i) vars.push_back(eng.NewVar("v" + std::to_string(i)));
    cancelled.Cancel();
  }
  void Push(Submitter& to, uint64_t seed, int ops, uint64_t failures) {
    Random random(seed);
    for (int i = 0; i < ops; ++i) {
      const size_t r = random.Below(kVars), u = random.Below(kVars), w = random.Below(kVars);
      const bool fails = failures && random.OneIn(failures), always = random.OneIn(6);
      const Placement device = random.OneIn(3) && on_device ? Gpu(0) : Cpu();
      const Name name = Name::Intern("op" + std::to_string(i));
      const auto body = [this, r, u, w, i, fails] {
        x[u] = 0.5 * x[u] + 0.25 * x[r] + i;
        if (w != r && w != u) x[w] = x[r] - i;
        if (fails) throw std::runtime_error("failure of op " + std::to_string(i));
      };
      const OpDesc all{.name = name,
                       .reads = vars[r],
                       .updates = vars[u],
                       .writes = vars[w],
                       .place = random.OneIn(16) ? Io() : device,
                       .priority = static_cast<int>(random.Below(5)) - 2,
                       .run_always = always,
                       .cancel = failures && random.OneIn(20) ? &cancelled : nullptr};
      Send(to, all, random.Below(8), body, i, vars[r], vars[u], vars[w], w);
    }
  }
  template <class Body>
  void Send(Submitter& to, const OpDesc& all, uint64_t kind, const Body& body, int i, const Var& r, const Var& u,
            const Var& w, size_t wi) {
    // The sets again: a VarSet lives for the expression that it is written in.
    if (kind == 0) {
      to.Push({.name = all.name, .writes = {w}, .place = all.place}, [this, wi, i] { x[wi] = i; });
    } else if (kind == 1) {
      to.PushAsync({.name = all.name, .reads = {r}, .updates = {u}, .writes = {w}, .cancel = all.cancel},
                   [body](RunContext&, Completion done) {
                     body();
                     done();
                   });
    } else {
      to.Push({.name = all.name,
               .reads = {r},
               .updates = {u},
               .writes = {w},
               .place = all.place,
               .priority = all.priority,
               .run_always = all.run_always,
               .cancel = all.cancel},
              body);
    }
  }
  Meaning Result() {
    Meaning m;
    for (const Var& v : vars) {
      std::string text;
      try {
        eng.Wait(v);
      } catch (const OpError& e) {
        text = e.op() + ":";
        for (const auto& hop : e.path()) text += " " + hop.op;
        text += " / " + std::string(e.what());
      }
      m.errors.push_back(text);
    }
    for (bool over = false; !over;) {
      try {
        eng.WaitAll();
        over = true;
      } catch (const OpError&) {
      }
    }
    m.values = x;
    return m;
  }

  Engine& eng;
  const bool on_device;
  std::vector<Var> vars;
  std::vector<double> x;
  CancelScope cancelled;
};

constexpr int kOps = 120;
constexpr int kTimes = 4;

Meaning Eagerly(uint64_t seed, uint64_t failures) {
  Engine eng(Quiet(0));
  const PolicyScope scope = eng.EnterPolicy({Policy::kNaive});
  Program program(eng);
  for (int i = 0; i < kTimes; ++i) program.Push(eng, seed, kOps, failures);
  return program.Result();
}

// Any ranks; and batches of neighbours, which cannot form a cycle.
Schedule AnySchedule(const Graph& graph, uint64_t seed) {
  Random random(seed);
  Schedule schedule;
  uint32_t batch = 0;
  const Graph::Node* before = nullptr;
  for (const Graph::Node& node : graph.nodes()) {
    schedule.rank.push_back(static_cast<double>(random.Below(10)));
    const bool joins = before && !before->async && !node.async && before->place.kind == node.place.kind;
    batch += !joins || random.OneIn(3);
    schedule.batch.push_back(batch);
    before = &node;
  }
  return schedule;
}

// Runs are pushed without waiting, so that they overlap as far as their Vars allow.
Meaning Replayed(int workers, Policy policy, uint64_t seed, uint64_t failures, bool traced, bool scheduled) {
  Engine eng(Quiet(workers));
  Program program(eng);
  Graph graph;
  Capture capture(graph);
  program.Push(capture, seed, kOps, failures);
  const Plan plan = graph.Compile(eng, {.schedule = scheduled ? AnySchedule(graph, seed) : Schedule()});
  if (traced) eng.StartTrace();
  // Under cost_model: one step as compiled, one measured, then with and without the schedule.
  if (policy == Policy::kCostModel) eng.SetPolicy(policy, {.start_step = 1, .stop_step = 2});
  for (int i = 0; i < kTimes; ++i) plan.Start({}, {.policy = policy});
  return program.Result();
}

// Runs among eager ops of the same program; those for the device are held in bulks when the run takes its place.
Meaning InTurns(int workers, Policy policy, uint64_t seed, uint64_t failures, int bulk_size) {
  Engine eng(OnDevice(workers));
  Program program(eng, true);
  Graph graph;
  Capture capture(graph);
  program.Push(capture, seed, kOps, failures);
  const Plan plan = graph.Compile(eng);
  const PolicyScope scope = eng.EnterPolicy({policy});
  Bulk bulk(eng, bulk_size);
  for (int i = 0; i < kTimes; ++i) {
    if (i % 2 == 0) {
      program.Push(bulk, seed, kOps, failures);
    } else {
      plan.Start();
    }
  }
  bulk.Release();
  return program.Result();
}

class PlanMeaningTest : public testing::TestWithParam<std::tuple<int, Policy>> {};
INSTANTIATE_TEST_SUITE_P(All, PlanMeaningTest,
                         testing::Combine(testing::Values(0, 1, 2, 4, 8),
                                          testing::Values(Policy::kThreaded, Policy::kInline, Policy::kNaive,
                                                          Policy::kCostModel)),
                         [](const auto& instance) {
                           return std::to_string(std::get<0>(instance.param)) + "_" +
                                  std::string(PolicyName(std::get<1>(instance.param)));
                         });

TEST_P(PlanMeaningTest, CapturedProgramsMeanWhatTheyMeanEagerly) {
  const auto [workers, policy] = GetParam();
  for (uint64_t program = 0; program < (kSanitized ? 1 : 10); ++program) {
    const uint64_t seed = Seed() + program;
    SCOPED_TRACE(SeedLine() + ", program " + std::to_string(program));
    for (const uint64_t failures : {uint64_t{0}, uint64_t{12}}) {
      const Meaning reference = Eagerly(seed, failures);
      EXPECT_EQ(Replayed(workers, policy, seed, failures, false, false), reference);
      EXPECT_EQ(Replayed(workers, policy, seed, failures, true, false), reference);
      EXPECT_EQ(Replayed(workers, policy, seed, failures, false, true), reference);
      for (const int size : {1, 2, 15, 1000}) EXPECT_EQ(InTurns(workers, policy, seed, failures, size), reference);
    }
  }
}

// Values instead of Vars: a random expression graph against the same expression, evaluated by hand.
TEST_P(PlanMeaningTest, ValuesAreWhatTheExpressionSays) {
  const auto [workers, policy] = GetParam();
  SCOPED_TRACE(SeedLine());
  Random random(Seed());
  Engine eng(Quiet(workers));
  for (int program = 0; program < 5; ++program) {
    Graph graph;
    std::vector<ValueId> values{graph.Input<uint64_t>("x")};
    std::vector<std::pair<size_t, size_t>> uses;
    for (int i = 0; i < 80; ++i) {
      const size_t a = random.Below(values.size()), b = random.Below(values.size());
      uses.emplace_back(a, b);
      const bool async = random.OneIn(8);
      const NodeDesc desc{
          .name = "mix", .inputs = {values[a], values[b]}, .outputs = 1, .place = random.OneIn(10) ? Io() : Cpu()};
      const auto mix = [](NodeContext& ctx) { ctx.Return(0, ctx.In<uint64_t>(0) * 31 + ctx.In<uint64_t>(1)); };
      const NodeId node = async ? graph.AddAsync(desc,
                                                 [mix](NodeContext& ctx, Completion done) {
                                                   mix(ctx);
                                                   done();
                                                 })
                                : graph.Add(desc, mix);
      values.push_back(node[0]);
    }
    graph.Output(values.back());
    graph.Output(values[values.size() / 2]);
    const Plan plan = graph.Compile(eng);
    std::vector<engine::Run> runs;
    for (uint64_t i = 0; i < 8; ++i) {
      Value inputs[] = {i};
      runs.push_back(plan.Start(inputs, {.policy = policy}));
    }
    for (uint64_t i = 0; i < 8; ++i) {
      std::vector<uint64_t> expected{i};
      for (const auto& [a, b] : uses) expected.push_back(expected[a] * 31 + expected[b]);
      EXPECT_EQ(runs[i].Take<uint64_t>(0), expected.back());
      EXPECT_EQ(runs[i].Take<uint64_t>(1), expected[values.size() / 2]);
    }
  }
}

}  // namespace
}  // namespace engine::test
