// TrainingProgram: a step with three nodes, of which two may be staged, for the tests of SmartStage.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "engine/smart_stage.h"
#include "support/engine_test.h"

namespace engine::test {

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
  // All steps that `steps` has. `one_by_one`: nothing of a step, nor of the guard that times it, is pending when the
  // next one is asked for; then the number of steps says how far the guard is, however slow the workers are.
  std::vector<std::pair<int, int>> Drain(SmartStage& steps, bool one_by_one = false) {
    std::vector<std::pair<int, int>> out;
    for (;;) {
      Value given[] = {2};
      engine::Run run = steps.Next(given);
      if (!run) return out;
      if (one_by_one) eng.WaitAll();
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
inline SmartStageOptions AtOnce(StageOptions stage = {}, int levels = 1) {
  return {.stage = std::move(stage), .max_levels = levels, .profile_steps = 0, .guard_steps = 0};
}

}  // namespace engine::test
