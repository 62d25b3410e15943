// Rows 16 and 17: SmartStage with real copies, beside a loop by hand and beside the step that is not cut.
#include "engine/smart_stage.h"

#include <cstring>

#include "../stages/deeprec.h"
#include "rig.h"
#include "suite.h"

namespace engine::perf {
namespace {

// A step: the host spends `input` on a row of floats, which go to the device, where a kernel takes `compute`.
struct Step {
  size_t floats;
  Nanos input, compute;
};

void Parse(const Step& step, float* to) {
  const auto end = SteadyClock::now() + step.input;
  for (size_t i = 0; i < step.floats; ++i) to[i] = static_cast<float>(i & 7);
  while (SteadyClock::now() < end) {
  }
}

// The step under SmartStage, or the same run whole.
class Smart {
 public:
  Smart(Target& target, const Step& step, bool staged) : rig_(target) {
    Graph graph;
    const ValueId row = graph.Input<int>("row");
    const NodeId parse = graph.Add({.name = "parse", .inputs = {row}, .outputs = 1}, [step](NodeContext& ctx) {
      std::vector<float> made(step.floats);
      Parse(step, made.data());
      ctx.Return(0, HostArray::Of(std::move(made)));
    });
    const NodeId trained = graph.Add(
        {.name = "train", .inputs = {parse[0]}, .outputs = 1, .updates = {rig_.eng.NewVar("weights")}, .place = Gpu(0)},
        [step, &target](NodeContext& ctx) {
          static_cast<void>(ctx.In<DeviceArray>(0));
          Must(target.Spin(ctx.stream(), step.compute, "train"));
          ctx.Return(0, 0);
        });
    graph.Output(trained[0]);
    steps_.emplace(
        rig_.eng, graph, std::vector<SmartSource>{SourceOf<int>("rows", row, [next = 0]() mutable { return next++; })},
        SmartStageOptions{.stage = {.capacity = 4}, .do_smart_stage = staged, .stage_subgraph_on_cpu = true});
    for (int warm = 10; !steps_->Report().decided || warm > 0; --warm) steps_->Next().Wait();
  }
  // ns a step.
  double Run(int n) {
    return NanosOf(
        [&] {
          for (int i = 0; i < n; ++i) steps_->Next().Wait();
        },
        n);
  }

 private:
  Rig rig_;
  std::optional<SmartStage> steps_;
};

// Two buffers, a stream for copies and one for kernels: while a kernel runs the host parses for the next.
double PipelinedByHand(ByHand& hand, const Step& step, void* const (&pinned)[2], void* const (&memory)[2], int n) {
  const size_t bytes = step.floats * sizeof(float);
  return NanosOf(
      [&] {
        for (int i = 0; i < n; ++i) {
          const auto b = static_cast<size_t>(i % 2);
          while (i >= 2 && !hand.Reached(2 + b)) {
          }
          Parse(step, static_cast<float*>(pinned[b]));
          hand.CopyIn(memory[b], pinned[b], bytes, 0);
          hand.Record(b, 0);
          hand.Wait(1, b);
          hand.Spin(1, step.compute, "train");
          hand.Record(2 + b, 1);
        }
        hand.Synchronize(1);
      },
      n);
}

void CopyAndCompute(Suite& suite) {
  const Step step{size_t{1} << 18, Nanos(300'000), Nanos(600'000)};
  const auto hand = suite.target.MakeByHand(2, 4);
  const size_t bytes = step.floats * sizeof(float);
  void* const pinned[2] = {hand->AllocatePinned(bytes), hand->AllocatePinned(bytes)};
  void* const memory[2] = {hand->Allocate(bytes, 0), hand->Allocate(bytes, 0)};
  hand->Synchronize();
  const int n = suite.Count(100);
  {
    Smart staged(suite.target, step, true);
    suite.Measure({16,
                   "SmartStage: parse, copy 1 MiB, compute",
                   "two buffers and two streams by hand",
                   {{"time a step", "ns", Ratio(1.05)}},
                   [&] { return Figures{staged.Run(n)}; },
                   [&] { return Figures{PipelinedByHand(*hand, step, pinned, memory, n)}; }});
  }
  for (void* m : memory) hand->Free(m, 0);
  hand->Synchronize();
  for (void* p : pinned) hand->FreePinned(p);
}

void Models(Suite& suite) {
  for (const ::perf::DeepRecModel& model : ::perf::kDeepRecModels) {
    if (!model.gpu) continue;
    const auto nanos = [](double seconds) { return Nanos(static_cast<int64_t>(seconds * 1e9)); };
    const Step step{::perf::kDeepRecFeatures, nanos(model.input_seconds()), nanos(model.compute_seconds())};
    Smart staged(suite.target, step, true), whole(suite.target, step, false);
    const int n = suite.Count(20);
    char name[80];
    std::snprintf(name, sizeof name, "%s under SmartStage (published: x %.3f)", std::string(model.name).c_str(),
                  model.off / model.on);
    suite.Measure({17,
                   name,
                   "the step whole",
                   {{"time a step", "ns", {}}},
                   [&] { return Figures{staged.Run(n)}; },
                   [&] { return Figures{whole.Run(n)}; }});
  }
}

}  // namespace

void SmartRows(Suite& suite) {
  if (suite.Wants(16)) CopyAndCompute(suite);
  if (suite.Wants(17)) Models(suite);
}

}  // namespace engine::perf
