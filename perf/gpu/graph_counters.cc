// What comes again and is launched as a graph: bulks, parameters that change, segments of plans.
#include <cstring>

#include "engine/bulk.h"
#include "engine/plan.h"
#include "heap.h"
#include "rig.h"
#include "scenarios.h"

namespace engine::perf {

using enum DeviceCall;

// A static bulk of 1,000 ops: after its warm-up one launch a step, and still every op in the trace.
std::vector<Counter> Graph(Target& target) {
  Rig rig(target, {.counted = true});
  Var a = rig.eng.NewVar("a");
  HeldOps bulk(rig.eng);
  const auto step = [&] {
    for (uint64_t i = 0; i < 1000; ++i)
      rig.Push(
          bulk,
          {.name = "member", .updates = {a}, .place = Gpu(0), .graph = {.kind = 1 + i, .params = 1, .one_call = true}});
    bulk.Release();
    rig.eng.WaitAll();
  };
  for (int warm = 0; warm < 3; ++warm) step();
  uint64_t allocated = ~uint64_t{0};  // of the quietest step, as in Lanes
  for (int i = 0; i < 3; ++i) {
    const uint64_t heap = HeapAllocations();
    step();
    allocated = std::min(allocated, HeapAllocations() - heap);
  }
  const DeviceCounts before = rig.counts();
  const uint64_t launches = target.launches(), dispatches = rig.eng.stats().dispatches;
  rig.eng.StartTrace();
  for (int i = 0; i < 5; ++i) step();
  const auto trace = rig.eng.StopTrace().events;
  const auto named =
      std::count_if(trace.begin(), trace.end(), [](const TraceEvent& e) { return !std::strcmp(e.name, "member"); });
  const DeviceCounts counts = rig.counts() - before;
  return {{"graph launches in 5 steps", counts[kLaunchGraph], 5},
          {"kernel launches by bodies", target.launches() - launches, 0},
          {"dispatches", rig.eng.stats().dispatches - dispatches, 5},
          {"records", counts[kRecord], 5},
          {"captures", counts[kBeginCapture], 0},
          {"instantiations", counts[kInstantiate], 0},
          {"names in the trace", static_cast<uint64_t>(named), 5000},
          {"heap allocations of a step", allocated, 0},
          {"synchronizations", counts[kSynchronize], 0}};
}

// Parameters change every step, one member's: one node is updated, nothing is instantiated.
std::vector<Counter> Params(Target& target) {
  Rig rig(target, {.counted = true});
  Var a = rig.eng.NewVar("a");
  HeldOps bulk(rig.eng);
  const auto step = [&](uint64_t run) {
    for (uint64_t i = 0; i < 15; ++i) {
      const uint64_t params = i == run % 15 ? run : 0;
      rig.Push(bulk,
               {.name = "member",
                .updates = {a},
                .place = Gpu(0),
                .graph = {.kind = 1 + i, .params = params, .one_call = true}},
               Nanos(params));
    }
    bulk.Release();
    rig.eng.WaitAll();
  };
  for (uint64_t warm = 0; warm < 3; ++warm) step(0);
  const DeviceCounts before = rig.counts();
  for (uint64_t run = 1; run <= 40; ++run) step(run);
  const DeviceCounts counts = rig.counts() - before;
  // The member of the run before goes back to its old parameters.
  return {{"instantiations", counts[kInstantiate], 0},
          {"nodes updated", counts[kUpdateNode], 2 * 40 - 1},
          {"graph launches", counts[kLaunchGraph], 40},
          {"whole executables updated", counts[kUpdate], 0}};
}

// The same where the bodies use ctx.Launch: no capture, and one call for each node.
std::vector<Counter> ParamsByLaunch(Target& target) {
  Rig rig(target, {.counted = true});
  Var a = rig.eng.NewVar("a");
  HeldOps bulk(rig.eng);
  uint64_t bodies = 0;
  const auto step = [&](uint64_t run) {
    for (uint64_t i = 0; i < 15; ++i) {
      const uint64_t params = i == run % 15 ? run : 0;
      bulk.Push({.name = "member",
                 .updates = {a},
                 .place = Gpu(0),
                 .graph = {.kind = 1 + i, .params = params, .one_call = true}},
                [&target, &bodies, params](RunContext& ctx) {
                  ++bodies;
                  target.Spin(ctx, Nanos(params));
                });
    }
    bulk.Release();
    rig.eng.WaitAll();
  };
  for (uint64_t warm = 0; warm < 3; ++warm) step(0);
  const DeviceCounts before = rig.counts();
  const uint64_t ran = bodies;
  for (uint64_t run = 1; run <= 40; ++run) step(run);
  const DeviceCounts counts = rig.counts() - before;
  return {{"captures", counts[kBeginCapture], 0},
          {"instantiations", counts[kInstantiate], 0},
          {"nodes given other arguments", counts[kUpdateNode], 2 * 40 - 1},
          {"bodies run", bodies - ran, 2 * 40 - 1},
          {"graph launches", counts[kLaunchGraph], 40},
          AtMost("records", counts[kRecord], 40)};
}

// Plans of 1 to 3 segments, a node on the host between each two: for each segment one op, one launch and one record, however
// many nodes it has, and no other call but looks.
std::vector<Counter> PlanSegments(Target& target) {
  std::vector<Counter> out;
  struct Shape {
    uint64_t segments, nodes;
  };
  for (const auto [segments, nodes] : {Shape{1, 1000}, Shape{1, 100}, Shape{2, 100}, Shape{3, 100}}) {
    constexpr uint64_t kRuns = 5;
    Rig rig(target, {.counted = true});
    const Var a = rig.eng.NewVar("a");
    engine::Graph graph;
    for (uint64_t s = 0; s < segments; ++s) {
      if (s != 0) graph.Add({.name = "host", .updates = {a}}, [] {});
      for (uint64_t k = 0; k < nodes; ++k)
        graph.Add({.name = "node",
                   .updates = {a},
                   .place = Gpu(0),
                   .graph = {.kind = 1 + nodes * s + k, .params = 1, .one_call = true}},
                  [&](RunContext& ctx) { Must(target.Spin(ctx.stream(), {}, "node")); });
    }
    const Plan plan = graph.Compile(rig.eng, {.static_alloc = true});
    for (int warm = 0; warm < 6; ++warm) {
      plan.Start().Wait();
      rig.eng.WaitAll();  // then its frame is free, and the next run has the same one
    }
    uint64_t allocated = ~uint64_t{0};  // of the quietest run, as in Lanes
    const DeviceCounts before = rig.counts();
    const EngineStats ops = rig.eng.stats();
    const uint64_t launches = target.launches();
    for (uint64_t run = 0; run < kRuns; ++run) {
      const uint64_t heap = HeapAllocations();
      plan.Start().Wait();
      rig.eng.WaitAll();
      allocated = std::min(allocated, HeapAllocations() - heap);
    }
    const DeviceCounts counts = rig.counts() - before;
    uint64_t others = 0;
    for (size_t call = 0; call < counts.calls.size(); ++call) {
      const auto what = static_cast<DeviceCall>(call);
      if (what != kLaunchGraph && what != kRecord && what != kQuery) others += counts[what];
    }
    const std::string at = std::to_string(segments) + " segments of " + std::to_string(nodes) + ": ";
    out.push_back({at + "ops pushed", rig.eng.stats().pushed - ops.pushed, kRuns * (1 + segments)});
    out.push_back({at + "ops completed", rig.eng.stats().completed - ops.completed, kRuns * (1 + segments)});
    out.push_back({at + "graph launches", counts[kLaunchGraph], kRuns * segments});
    out.push_back({at + "launches by bodies", target.launches() - launches, 0});
    out.push_back({at + "records", counts[kRecord], kRuns * segments});
    out.push_back({at + "other calls than these and looks", others, 0});
    out.push_back({at + "heap allocations of the quietest run", allocated, 0});
  }
  return out;
}

}  // namespace engine::perf
