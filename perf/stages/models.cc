#include "models.h"

#include <engine/smart_stage.h>
#include <engine/testing/software_device.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "deeprec.h"

namespace {

using perf::Clock;
using perf::NsBetween;
using std::chrono::duration;

using Model = perf::DeepRecModel;

// Time on a CPU is spent computing. Time on a device is slept, because a device has cores of its own.
void Spend(double seconds) {
  for (const auto from = Clock::now(); NsBetween(from, Clock::now()) < seconds * 1e9;) {
  }
}

engine::Graph StepOf(const Model& model, engine::SoftwareDevice& device, engine::Var weights, engine::ValueId* row) {
  const double rest = model.compute_seconds(), input = model.input_seconds();
  engine::Graph graph;
  *row = graph.Input<int>("row");
  const engine::NodeId parse =
      graph.Add({.name = "parse", .inputs = {*row}, .outputs = 1}, [input](engine::NodeContext& ctx) {
        Spend(input);
        ctx.Return(0, engine::HostArray::Of(std::vector<float>(perf::kDeepRecFeatures, 1)));
      });
  const engine::NodeId trained =
      graph.Add({.name = "train",
                 .inputs = {parse[0]},
                 .outputs = 1,
                 .updates = {weights},
                 .place = model.gpu ? engine::Gpu(0) : engine::Cpu()},
                [rest, gpu = model.gpu, &device](engine::NodeContext& ctx) {
                  ctx.Return(0, 0);
                  if (!gpu) return Spend(rest);
                  static_cast<void>(ctx.In<engine::DeviceArray>(0));
                  const auto sleep = [rest] { std::this_thread::sleep_for(duration<double>(rest)); };
                  engine::DeviceStatus status = device.Launch(ctx.stream(), "train", {}, sleep);
                  if (!status.ok()) throw engine::DeviceError(std::move(status));
                });
  graph.Output(trained[0]);
  return graph;
}

// Seconds of a step, after SmartStage has decided.
double Measure(const Model& model, bool smart, std::size_t n, engine::SmartStageReport* report) {
  const auto device = engine::MakeSoftwareDevice();
  engine::EngineOptions options;
  options.workers = 1;
  options.devices = {device};
  engine::Engine eng(options);
  engine::ValueId row;
  const engine::Graph graph = StepOf(model, *device, eng.NewVar("weights"), &row);
  engine::SmartStage steps(eng, graph, {engine::SourceOf<int>("rows", row, [next = 0]() mutable { return next++; })},
                           {.stage = {.capacity = 4}, .do_smart_stage = smart, .stage_subgraph_on_cpu = model.gpu});
  const auto step = [&] { steps.Next().Wait(); };
  int warm = 10;
  while (!steps.Report().decided || --warm > 0) step();
  const auto from = Clock::now();
  for (std::size_t i = 0; i < n; ++i) step();
  *report = steps.Report();
  return NsBetween(from, Clock::now()) / static_cast<double>(n) * 1e-9;
}

}  // namespace

perf::Answer ModelSteps(std::string_view name, std::size_t n) {
  const auto model = std::find_if(perf::kDeepRecModels.begin(), perf::kDeepRecModels.end(),
                                  [&](const Model& m) { return m.name == name; });
  if (model == perf::kDeepRecModels.end()) return perf::Answer::Skip("no such model");
  engine::SmartStageReport report, off;
  const double staged = Measure(*model, true, n, &report), whole = Measure(*model, false, n, &off);
  // The best that the two parts allow, as they were timed in these steps.
  const double best = std::max(report.stage_seconds, report.rest_seconds);
  const double allowed = best > 0 ? report.whole_seconds / best : 1;
  perf::Answer answer;
  answer.figures = {{"over_whole", staged / whole},
                    {"gain", whole / staged},
                    {"allowed", allowed},
                    {"of_allowed", whole / staged / allowed},
                    {"published", model->on / model->off},
                    {"staged", report.on ? 1.0 : 0.0}};
  return answer;
}
