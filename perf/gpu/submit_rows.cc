// Rows 1 to 3: what it costs to bring empty kernels to the device.
#include "rig.h"
#include "suite.h"

namespace engine::perf {
namespace {

// n empty ops of one Var, in bulks of `bulk`; 1: one by one. ns an op.
double Chain(Rig& rig, const Var& a, int n, int bulk) {
  return NanosOf(
      [&] {
        HeldOps held(rig.eng);
        for (int i = 0; i < n; ++i) {
          const OpDesc desc{.name = "empty", .updates = a, .place = Gpu(0)};
          if (bulk == 1) {
            rig.Push(desc);
            continue;
          }
          rig.Push(held, desc);
          if (i % bulk == bulk - 1) held.Release();
        }
        held.Release();
        rig.eng.Wait(a);
      },
      n);
}

// n empty kernels by hand, with one synchronization at their end or one behind each. ns a kernel.
double Loop(ByHand& hand, int n, bool synchronize_each) {
  return NanosOf(
      [&] {
        for (int i = 0; i < n; ++i) {
          hand.Spin(0);
          if (synchronize_each) hand.Synchronize();
        }
        hand.Synchronize();
      },
      n);
}

// A bulk that comes again, as one graph. Its ops are pushed before the clock starts, for a program by hand has nothing to say
// again either; what pushing them costs is a line of its own.
void AsGraph(Suite& suite, Rig& rig, ByHand& hand, const Var& a, int n) {
  const size_t graph = hand.Graph([&] {
    for (int i = 0; i < n; ++i) hand.Spin(0);
  });
  HeldOps held(rig.eng);
  const auto push = [&] {
    for (int i = 0; i < n; ++i)
      rig.Push(held,
               {.name = "empty", .updates = a, .place = Gpu(0), .graph = {.kind = 7, .params = 1, .one_call = true}});
  };
  const auto run = [&] {
    held.Release();
    rig.eng.Wait(a);
  };
  const auto by_hand = [&] {
    return Figures{NanosOf(
        [&] {
          hand.Launch(graph);
          hand.Synchronize();
        },
        n)};
  };
  for (int warm = 0; warm < 3; ++warm) {
    push();
    run();
  }
  suite.Measure({2,
                 "tiny dependent ops, as a graph",
                 "raw graph",
                 {{"time an op", "ns", Ratio(1.02)}},
                 [&] {
                   push();
                   return Figures{NanosOf(run, n)};
                 },
                 by_hand});
  suite.Measure({2,
                 "tiny dependent ops, as a graph, pushes included",
                 "raw graph",
                 {{"time an op", "ns", {}}},
                 [&] {
                   return Figures{NanosOf(
                       [&] {
                         push();
                         run();
                       },
                       n)};
                 },
                 by_hand});
}

}  // namespace

void SubmitRows(Suite& suite) {
  Rig rig(suite.target);
  const auto hand = suite.target.MakeByHand(1);
  const Var a = rig.eng.NewVar("a");
  const int n = suite.Count(1000);
  const auto loop = [&] { return Figures{Loop(*hand, n, false)}; };
  if (suite.Wants(1))
    suite.Measure({1,
                   "an empty op, one lane",
                   "raw launches",
                   {{"time an op", "ns", {LimitKind::kDifference, 300}}},
                   [&] { return Figures{Chain(rig, a, n, 1)}; },
                   loop});
  if (suite.Wants(2)) {
    suite.Measure({2,
                   "tiny dependent ops, bulked",
                   "raw launches",
                   {{"time an op", "ns", Ratio(1.05)}},
                   [&] { return Figures{Chain(rig, a, n, 15)}; },
                   loop});
    suite.Measure({2,
                   "tiny dependent ops, one by one",
                   "raw launches",
                   {{"time an op", "ns", Ratio(1.15)}},
                   [&] { return Figures{Chain(rig, a, n, 1)}; },
                   loop});
    AsGraph(suite, rig, *hand, a, n);
  }
  if (!suite.Wants(3)) return;
  // What the best program gains: both sides until the device is done, in the same minutes.
  std::vector<double> gains;
  for (int round = 0; round < suite.rounds; ++round) gains.push_back(Loop(*hand, n, true) / Loop(*hand, n, false));
  const double gain = Median(gains);
  for (const int bulk : {1, 15, 64, 256})
    suite.Measure({3,
                   "bulk " + std::to_string(bulk),
                   "synchronize after every op",
                   {{"time an op", "ns", Ratio(1 / (0.9 * gain))}},
                   [&] { return Figures{Chain(rig, a, n, bulk)}; },
                   [&] { return Figures{Loop(*hand, n, true)}; }});
}

}  // namespace engine::perf
