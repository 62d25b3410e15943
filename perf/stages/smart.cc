#include "smart.h"

#include <engine/smart_stage.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

using perf::Clock;
using perf::NsBetween;

constexpr int kSteps = 12, kMeasured = 60;

void Work(double ns) {
  for (const auto from = Clock::now(); NsBetween(from, Clock::now()) < ns;) {
  }
}

// A chain of nodes with some branches. The last nodes update a Var, as a model does.
engine::Graph RandomStep(unsigned seed, engine::Var model, engine::ValueId* row) {
  std::mt19937 random(seed);
  engine::Graph graph;
  *row = graph.Input<int>("row");
  std::vector<engine::ValueId> made{*row};
  const unsigned count = 3 + random() % 6, ahead = random() % count;
  for (unsigned n = 0; n < count; ++n) {
    const double ns = 2e3 * std::pow(100.0, static_cast<double>(random() % 1000) / 1000);  // 2 … 200 µs
    const engine::ValueId from = made[made.size() - 1 - random() % std::min<std::size_t>(2, made.size())];
    const auto body = [ns](engine::NodeContext& ctx) {
      Work(ns);
      ctx.Return(0, ctx.In<int>(0) + 1);
    };
    const engine::NodeId node =
        n < ahead ? graph.Add({.name = "input", .inputs = {from}, .outputs = 1}, body)
                  : graph.Add({.name = "model", .inputs = {from}, .outputs = 1, .updates = {model}}, body);
    made.push_back(node[0]);
  }
  graph.Output(made.back());
  return graph;
}

// Seconds of a step after everything was decided. `on`: whether the step is staged.
double Measure(engine::Engine& eng, unsigned seed, bool smart, bool* on) {
  const engine::Var model = eng.NewVar("model");
  engine::ValueId row;
  const engine::Graph graph = RandomStep(seed, model, &row);
  engine::SmartStage steps(eng, graph, {engine::SourceOf<int>("rows", row, [n = 0]() mutable { return n++; })},
                           {.stage = {.capacity = 2}, .do_smart_stage = smart});
  const auto step = [&] { steps.Next().Wait(); };
  int warm = 20;
  while (!steps.Report().decided || --warm > 0) step();
  const auto from = Clock::now();
  for (int i = 0; i < kMeasured; ++i) step();
  *on = steps.Report().on;
  return NsBetween(from, Clock::now()) / kMeasured * 1e-9;
}

struct Interval {
  double mean, low, high;
};
// The interval of the mean, at 95 % (normal, because there are many pairs).
Interval IntervalOf(const std::vector<double>& samples) {
  double mean = 0, squares = 0;
  for (double s : samples) mean += s;
  mean /= static_cast<double>(samples.size());
  for (double s : samples) squares += (s - mean) * (s - mean);
  const double n = static_cast<double>(samples.size());
  const double error = samples.size() > 1 ? 2 * std::sqrt(squares / (n - 1) / n) : 0;
  return {mean, mean - error, mean + error};
}

}  // namespace

perf::Answer SmartPairs(std::size_t pairs) {
  engine::Engine eng({.workers = 1});
  std::vector<double> all;
  double lost = 0, staged = 0, best = 1;
  for (unsigned seed = 1; seed <= kSteps; ++seed) {
    std::vector<double> ratios;
    std::size_t on_count = 0;
    for (std::size_t i = 0; i < pairs; ++i) {
      double seconds[2];
      for (const bool smart : {i % 2 == 0, i % 2 != 0}) {  // so that neither always comes second
        bool on;
        seconds[smart] = Measure(eng, seed, smart, &on);
        on_count += on;
      }
      ratios.push_back(std::log(seconds[1] / seconds[0]));
    }
    const Interval here = IntervalOf(ratios);
    lost += here.low > std::log(1.03);  // slower by more than the measurement's own error
    staged += static_cast<double>(on_count) / static_cast<double>(pairs);
    best = std::min(best, std::exp(here.mean));
    all.insert(all.end(), ratios.begin(), ratios.end());
  }
  const Interval total = IntervalOf(all);
  perf::Answer answer;
  answer.figures = {{"over_whole", std::exp(total.mean)},
                    {"low95", std::exp(total.low)},
                    {"high95", std::exp(total.high)},
                    {"steps_lost", lost},
                    {"steps_staged", staged},
                    {"best_over_whole", best}};
  return answer;
}
