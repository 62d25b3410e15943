// Rows 10 and 14: what comes again, as a graph of the device.
#include "engine/plan.h"
#include "rig.h"
#include "suite.h"

namespace engine::perf {
namespace {

// A bulk of which one op has other parameters every time.
void OneNodeChanges(Suite& suite) {
  constexpr uint64_t kOps = 15, kChanging = 7;
  Rig rig(suite.target);
  const auto hand = suite.target.MakeByHand(1);
  const Var a = rig.eng.NewVar("a");
  const int n = suite.Count(200);
  uint64_t run = 0;
  const auto ours = [&] {
    return Figures{NanosOf(
        [&] {
          HeldOps held(rig.eng);
          for (int i = 0; i < n; ++i, ++run) {
            for (uint64_t k = 0; k < kOps; ++k) {
              const uint64_t params = k == kChanging ? run : 0;
              held.Push({.name = "member",
                         .updates = a,
                         .place = Gpu(0),
                         .graph = {.kind = 1 + k, .params = params, .one_call = true}},
                        [&suite, params](RunContext& ctx) { suite.target.Spin(ctx, Nanos(params % 100)); });
            }
            held.Release();
          }
          rig.eng.Wait(a);
        },
        n)};
  };
  constexpr Nanos kMark{1};  // by which the node is found
  const size_t graph = hand->Graph([&] {
    for (uint64_t k = 0; k < kOps; ++k) hand->Spin(0, k == kChanging ? kMark : Nanos(0));
  });
  suite.Measure({10,
                 "one node's parameters change every run",
                 "raw parameter update",
                 {{"time a run", "ns", Ratio(1.1)}},
                 ours,
                 [&] {
                   return Figures{NanosOf(
                       [&] {
                         for (int i = 0; i < n; ++i) {
                           hand->SetSpin(graph, kMark, Nanos(i % 100));
                           hand->Launch(graph);
                         }
                         hand->Synchronize();
                       },
                       n)};
                 }});
}

// A plan against the same graph by hand. `runs` of them follow each other before anybody waits.
void PlanReplay(Suite& suite, int nodes, int runs) {
  Rig rig(suite.target);
  const auto hand = suite.target.MakeByHand(1);
  const Var a = rig.eng.NewVar("a");
  engine::Graph graph;
  for (int i = 0; i < nodes; ++i)
    graph.Add({.name = "node",
               .updates = {a},
               .place = Gpu(0),
               .graph = {.kind = 1 + static_cast<uint64_t>(i), .params = 1, .one_call = true}},
              [&](RunContext& ctx) { Must(suite.target.Spin(ctx.stream(), {}, "node")); });
  const Plan plan = graph.Compile(rig.eng, {.static_alloc = true});
  const size_t by_hand = hand->Graph([&] {
    for (int i = 0; i < nodes; ++i) hand->Spin(0);
  });
  for (int warm = 0; warm < 8; ++warm) plan.Start().Wait();
  suite.Measure({14,
                 "a plan of " + std::to_string(nodes) + " nodes replayed" + (runs > 1 ? ", back to back" : ""),
                 "raw graph",
                 {{"time a run", "ns", Ratio(1.02)}},
                 [&] {
                   return Figures{NanosOf(
                       [&] {
                         for (int i = 0; i < runs; ++i) plan.Start();
                         rig.eng.Wait(a);
                       },
                       runs)};
                 },
                 [&] {
                   return Figures{NanosOf(
                       [&] {
                         for (int i = 0; i < runs; ++i) hand->Launch(by_hand);
                         hand->Synchronize();
                       },
                       runs)};
                 }});
}

}  // namespace

void GraphRows(Suite& suite) {
  if (suite.Wants(10)) OneNodeChanges(suite);
  if (!suite.Wants(14)) return;
  PlanReplay(suite, suite.Count(1000), 1);
  PlanReplay(suite, suite.Count(1000), 16);
  PlanReplay(suite, 15, suite.Count(100));
}

}  // namespace engine::perf
