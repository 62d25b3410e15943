// Row 12: a training step of a small model.
#include "mlp.h"
#include "suite.h"

namespace engine::perf {
namespace {

// The part of the time between the first kernel's start and the last one's end in which one ran. Spans of one lane.
double Busy(const std::vector<Span>& spans) {
  int64_t busy = 0, first = INT64_MAX, last = INT64_MIN;
  for (const Span& s : spans) {
    busy += s.end - s.start;
    first = std::min(first, s.start);
    last = std::max(last, s.end);
  }
  return spans.empty() ? 0 : static_cast<double>(busy) / static_cast<double>(last - first);
}

struct Way {
  const char* name;
  size_t bulk;
  bool graph;
  double least_busy;  // of what it is by hand; 0: told only
};

}  // namespace

void TrainingRows(Suite& suite) {
  if (!suite.Wants(12)) return;
  Rig rig(suite.target);
  const auto hand = suite.target.MakeByHand(1);
  Mlp mlp(rig);
  const int steps = suite.Count(20);
  const auto timed = [&](auto step) {
    return NanosOf(
        [&] {
          for (int i = 0; i < steps; ++i) step();
          rig.eng.WaitAll();
          hand->Synchronize();
        },
        steps);
  };
  const auto by_hand = [&] { mlp.ByHand([&](Nanos time, const char* name) { hand->Spin(0, time, name); }); };
  const size_t graph = hand->Graph(by_hand);
  const auto busy = [&](auto step) {
    suite.target.StartSpans();
    timed(step);
    return Busy(suite.target.StopSpans());
  };
  for (const Way& way : {Way{"eager", 1, false, 0}, Way{"bulked", 15, false, 0.97}, Way{"as a graph", 15, true, 0}}) {
    const auto step = [&] { mlp.Step(way.bulk, way.graph); };
    const auto raw = [&] { way.graph ? hand->Launch(graph) : by_hand(); };
    const std::string name = std::string("MLP step, ") + way.name;
    for (int warm = 0; warm < 3; ++warm) timed(step);
    suite.Measure({12,
                   name,
                   way.graph ? "raw graph" : "raw launches",
                   {{"time a step", "ns", way.graph ? Ratio(1 / 0.99) : Limit{}}},
                   [&] { return Figures{timed(step)}; },
                   [&] { return Figures{timed(raw)}; }});
    if (way.graph) continue;
    suite.Measure({12,
                   name,
                   "raw launches",
                   {{"busy fraction", "", way.least_busy > 0 ? Limit{LimitKind::kAtLeast, way.least_busy} : Limit{}}},
                   [&] { return Figures{busy(step)}; },
                   [&] { return Figures{busy(raw)}; }});
  }
  const auto one = [&](auto step) {
    step();
    rig.eng.WaitAll();
    hand->Synchronize();
  };
  suite.Timeline(12, "MLP step by hand", [&] { one(by_hand); });
  suite.Timeline(12, "MLP step, one by one", [&] { one([&] { mlp.Step(1, false); }); });
  suite.Timeline(12, "MLP step, bulked", [&] { one([&] { mlp.Step(15, false); }); });
}

}  // namespace engine::perf
