// Random steps with random effects, orders, failures and options, staged and whole, against the plain loop over the whole
// plan: outputs, errors and the states behind the Vars are the same bit for bit.
#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "engine/smart_stage.h"
#include "partition.h"
#include "random_step.h"
#include "support/engine_test.h"
#include "support/seed.h"

namespace engine::test {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 29);
}

constexpr uint32_t kVars = 5;

struct Step {
  Step(Engine& engine, uint64_t seed, bool with_failures) : eng(engine) {
    Random random(seed);
    for (uint32_t v = 0; v < kVars; ++v) vars.push_back(eng.NewVar("state"));
    row = graph.Input<uint64_t>("row");
    rate = graph.Input<uint64_t>("rate");
    std::vector<ValueId> made{row, row, rate};
    std::vector<NodeId> nodes;
    const uint64_t count = 2 + random.Below(9), failing = with_failures ? random.Below(count) : count;
    for (uint64_t n = 0; n < count; ++n) {
      NodeDesc desc{.name = Name::Intern("node-" + std::to_string(n)), .outputs = 1};
      for (uint64_t i = 1 + random.Below(2); i > 0; --i) {
        // Late nodes prefer late values, so that there is something to stage in front of them.
        desc.inputs.push_back(random.OneIn(3) ? made[random.Below(made.size())] : made.back());
        if (n < count / 2 && desc.inputs.back() == rate) desc.inputs.back() = row;
      }
      if (random.OneIn(8)) desc.inputs.clear();  // without a Var too, it is a constant of the step
      // Vars 0 and 1 belong to the first half, the others to the second, but for some.
      uint32_t var = kVars;
      bool reads = false;
      std::vector<Var> touched;
      if (random.OneIn(2)) {
        var = static_cast<uint32_t>(random.OneIn(5) ? random.Below(kVars)
                                    : n < count / 2 ? random.Below(2)
                                                    : 2 + random.Below(3));
        reads = random.OneIn(2);
        touched = {vars[var]};
        (reads ? desc.reads : desc.updates) = touched;
      }
      const bool fails = n == failing;
      nodes.push_back(graph.Add(desc, [this, n, var, reads, fails](NodeContext& ctx) {
        uint64_t x = n;
        for (size_t i = 0; i < ctx.inputs(); ++i) x = Mix(x, ctx.In<uint64_t>(i));
        if (fails && x % 5 == 0) throw std::domain_error("bad row");
        if (x % 7 == 0) std::this_thread::yield();
        if (var < kVars) {
          x = Mix(x, state[var]);
          if (!reads) state[var] = x;
        }
        ctx.Return(0, x);
      }));
      if (n > 0 && random.OneIn(6)) graph.Order(nodes[random.Below(n)], nodes[n]);
      made.push_back(nodes[n][0]);
      if (random.OneIn(3)) graph.Output(nodes[n][0]);
    }
    graph.Output(made.back());
  }

  // What a step gave, or the error that it failed with; then clears what the error poisoned, as a program that goes on.
  std::string Told(engine::Run& run) {
    std::string text;
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      const Value* made = run.OutputIf(i);
      text += made ? std::to_string(run.OutputIf(i)->Get<uint64_t>()) + " " : "- ";
    }
    try {
      run.Wait();
    } catch (const OpError& error) {
      text += error.op();
      try {
        error.RethrowCause();
      } catch (const std::exception& cause) {
        text += std::string(": ") + cause.what();
      }
    }
    return text;
  }

  Engine& eng;
  std::vector<Var> vars;
  Graph graph;
  ValueId row, rate;
  std::array<uint64_t, kVars> state{};
};

SmartStageOptions RandomOptions(Random& random) {
  return {.stage = {.capacity = 1 + random.Below(4),
                    .num_threads = 1 + static_cast<int>(random.Below(3)),
                    .autotune = random.OneIn(4),
                    .max_threads = 3},
          .max_levels = 1 + static_cast<int>(random.Below(3)),
          .profile_steps = static_cast<int>(random.Below(3)),
          .guard_steps = static_cast<int>(random.Below(3))};
}

void Check(Engine& eng, uint64_t seed) {
  Random random(seed);
  const bool failures = random.OneIn(3);
  const uint64_t length = random.Below(40);
  Step plain(eng, seed, failures), smart(eng, seed, failures);
  std::vector<std::string> expected, seen;
  const Plan plan = plain.graph.Compile(eng);
  for (uint64_t i = 0; i < length; ++i) {
    Value inputs[] = {i, 2 * i};
    engine::Run run = plan.Start(inputs);
    expected.push_back(plain.Told(run));
  }
  const uint64_t stop = random.OneIn(4) ? random.Below(40) : UINT64_MAX;  // then it is cancelled
  SmartStageOptions options = RandomOptions(random);
  if (random.OneIn(3)) options.schedule = [often = Random(random.Next())]() mutable { return often.OneIn(2); };
  for (uint32_t v = 0; v < 3; ++v) {
    if (!random.OneIn(4)) options.input_state.push_back(smart.vars[v]);
  }
  std::string text;
  {
    uint64_t next = 0;
    SmartStage steps(eng, smart.graph,
                     {SourceOf<uint64_t>("rows", smart.row,
                                         [&]() -> std::optional<uint64_t> {
                                           if (next == length) return {};
                                           return next++;
                                         })},
                     options);
    for (uint64_t i = 0; i < stop; ++i) {
      Value given[] = {2 * i};
      engine::Run run = steps.Next(given);
      if (!run) break;
      seen.push_back(smart.Told(run));
      EXPECT_EQ(steps.stats().position, i + 1);
    }
    text = steps.Explain();
  }
  SCOPED_TRACE(text);
  ASSERT_EQ(seen.size(), std::min(length, stop));
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), expected.begin())) << testing::PrintToString(seen) << "\n"
                                                                      << testing::PrintToString(expected);
  if (stop >= length) {  // otherwise the states of the stage's own are ahead
    EXPECT_EQ(smart.state, plain.state);
  }
}

TEST(SmartRandomTest, NobodyCanTellByTheResults) {
  SCOPED_TRACE(SeedLine());
  Random seeds(Seed());
  EngineOptions options = Quiet(2);
  options.on_unobserved = [](const OpError&) {};
  Engine eng(options);
  for (int i = 0; i < (kSanitized ? 60 : 600) && !testing::Test::HasFailure(); ++i) {
    const uint64_t seed = seeds.Next();
    SCOPED_TRACE("step " + std::to_string(i) + " of seed " + std::to_string(seed));
    Check(eng, seed);
  }
}

// --- random cuts

using detail::Cut;
using detail::StepGraph;

TEST(SmartRandomTest, LevelsKeepOrderAndSlowestIsLeast) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 8);
  for (int i = 0; i < 500; ++i) {
    const StepGraph graph = RandomStep(random);
    const Cut cut = Partition(graph, {}, detail::Choice::kLargest);
    const auto levels = Levels(graph, cut, 3);
    std::vector<uint32_t> all;
    double slowest = 0;
    for (const auto& level : levels) {
      double sum = 0;
      for (uint32_t n : level) sum += graph.nodes[n].seconds;
      slowest = std::max(slowest, sum);
      all.insert(all.end(), level.begin(), level.end());
    }
    EXPECT_EQ(all, cut.staged);
    // Against every way to cut the list twice.
    const auto legal = [&](size_t at) {
      for (size_t a = 0; a < at; ++a)
        for (size_t b = at; b < all.size(); ++b)
          for (const auto& x : graph.nodes[all[a]].effects)
            for (const auto& y : graph.nodes[all[b]].effects)
              if (x.var == y.var && (x.mode != AccessMode::kRead || y.mode != AccessMode::kRead)) return false;
      return true;
    };
    const auto sum = [&](size_t from, size_t to) {
      double seconds = 0;
      for (size_t n = from; n < to; ++n) seconds += graph.nodes[all[n]].seconds;
      return seconds;
    };
    double best = sum(0, all.size());
    for (size_t a = 0; a <= all.size(); ++a)
      for (size_t b = a; b <= all.size(); ++b)
        if (legal(a) && legal(b)) best = std::min(best, std::max({sum(0, a), sum(a, b), sum(b, all.size())}));
    EXPECT_NEAR(slowest, best, 1e-12);
  }
}

}  // namespace
}  // namespace engine::test
