// RandomLoop: a random program of steps on host and device. It is run as runs of a plan with an op between each two, and the
// numbers that it makes are compared with those of the same steps in a loop.
#pragma once

#include <random>

#include "device_test.h"
#include "engine/plan.h"

namespace engine::test {

struct RandomLoop {
  std::vector<Placement> places;
  size_t steps;
  int rounds;
  int inline_each;          // one run of so many is of the policy inline
  bool graphs = false;      // steps on a device have keys, and the plan has fixed memory
  size_t most_runs = 1000;  // so many are started before all are waited for

  // How often a graph was launched.
  uint64_t Run(uint64_t seed) const {
    const testing::ScopedTrace trace(__FILE__, __LINE__, "seed " + std::to_string(seed));
    std::mt19937_64 chance(seed);
    Rig rig({}, 2);
    constexpr size_t kVars = 5;
    std::array<Var, kVars> vars;
    std::array<uint32_t, kVars> x{}, want{};
    for (Var& v : vars) v = rig.eng().NewVar();
    struct Step {
      size_t from, to;
      uint32_t c;
      Placement place;
      void Apply(std::array<uint32_t, kVars>& at) const { at[to] = 3 * at[to] + at[from] + c; }
    };
    const auto draw = [&] {
      return Step{chance() % kVars, chance() % kVars, static_cast<uint32_t>(chance() % 100),
                  places[chance() % places.size()]};
    };
    uint64_t kind = 0;
    const auto push = [&](Submitter& to, const Step& s) {
      OpDesc desc{.name = "step", .reads = vars[s.from], .updates = vars[s.to], .place = s.place};
      if (s.place.kind == Placement::Kind::kDefault) {
        to.Push(desc, [&x, s] { s.Apply(x); });
      } else {
        if (graphs) desc.graph = {.kind = ++kind, .one_call = true};
        to.Push(desc, [&x, &rig, s](RunContext& ctx) { rig.Launch(ctx, "k", [&x, s] { s.Apply(x); }); });
      }
    };
    std::vector<Step> program(steps);
    Graph graph;
    Capture capture(graph);
    for (Step& s : program) push(capture, s = draw());
    const Plan plan = graph.Compile(rig.eng(), {.static_alloc = graphs});
    std::vector<engine::Run> runs;
    const auto wait = [&] {
      for (engine::Run& run : runs) run.Wait();
      runs.clear();
    };
    for (int round = 0; round < rounds; ++round) {
      if (runs.size() == most_runs) wait();
      const bool alone = round % inline_each == inline_each - 1;
      runs.push_back(plan.Start({}, {.policy = alone ? Policy::kInline : Policy::kThreaded}));
      for (const Step& s : program) s.Apply(want);
      const Step between = draw();
      push(rig.eng(), between);
      between.Apply(want);
    }
    wait();
    rig.eng().WaitAll();
    EXPECT_EQ(x, want);
    return rig.eng().device_stats().graph_launches;
  }
};

}  // namespace engine::test
