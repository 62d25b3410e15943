// Rows 1 to 3 and 6 to 8, 10 to 13 of the table: each the engine's way and the same by hand.
#include <atomic>
#include <memory>

#include "engine/comm.h"
#include "mlp.h"
#include "rig.h"
#include "suite.h"

namespace engine::perf {
namespace {

constexpr Limit Ratio(double most) { return {LimitKind::kRatio, most}; }

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

}  // namespace

void SubmitRows(Suite& suite) {
  auto rig = std::make_shared<Rig>(suite.target);
  auto hand = std::make_shared<Hand>(suite.target, 1);
  const Var a = rig->eng.NewVar("a");
  const int n = suite.Count(1000);
  const auto loop = [=] {
    return Figures{NanosOf(
        [&] {
          for (int i = 0; i < n; ++i) hand->Spin(0);
          hand->Synchronize();
        },
        n)};
  };
  if (suite.Wants(1))
    suite.Measure({1,
                   "an empty op, one lane",
                   "raw launches",
                   {{"time an op", "ns", {LimitKind::kDifference, 300}}},
                   [=] { return Figures{Chain(*rig, a, n, 1)}; },
                   loop});
  if (suite.Wants(2)) {
    suite.Measure({2,
                   "tiny dependent ops, bulked",
                   "raw launches",
                   {{"time an op", "ns", Ratio(1.05)}},
                   [=] { return Figures{Chain(*rig, a, n, 15)}; },
                   loop});
    suite.Measure({2,
                   "tiny dependent ops, one by one",
                   "raw launches",
                   {{"time an op", "ns", Ratio(1.15)}},
                   [=] { return Figures{Chain(*rig, a, n, 1)}; },
                   loop});
    auto graph = std::make_shared<HandGraph>(*hand, [&](auto&) {
      for (int i = 0; i < n; ++i) hand->Spin(0);
    });
    const auto replay = [=] {
      return NanosOf(
          [&] {
            HeldOps held(rig->eng);
            for (int i = 0; i < n; ++i)
              rig->Push(held, {.name = "empty",
                               .updates = a,
                               .place = Gpu(0),
                               .graph = {.kind = 7, .params = 1, .one_call = true}});
            held.Release();
            rig->eng.Wait(a);
          },
          n);
    };
    for (int warm = 0; warm < 3; ++warm) replay();
    suite.Measure({2,
                   "tiny dependent ops, as a graph",
                   "raw graph",
                   {{"time an op", "ns", Ratio(1.02)}},
                   [=] { return Figures{replay()}; },
                   [=] {
                     return Figures{NanosOf(
                         [&] {
                           Must(hand->device->Launch(graph->exec, hand->streams[0]));
                           hand->Synchronize();
                         },
                         n)};
                   }});
  }
  if (!suite.Wants(3)) return;
  const double launch = suite.calibration["launch of an empty kernel"];
  const double both = suite.calibration["launch and synchronize"];
  for (const int bulk : {1, 15, 64, 256})
    suite.Measure({3,
                   "bulk " + std::to_string(bulk),
                   "synchronize after every op",
                   {{"time an op", "ns", Ratio(launch / both / 0.9)}},
                   [=] { return Figures{Chain(*rig, a, n, bulk)}; },
                   [=] {
                     return Figures{NanosOf(
                         [&] {
                           for (int i = 0; i < n; ++i) {
                             hand->Spin(0);
                             hand->Synchronize();
                           }
                         },
                         n)};
                   }});
}

void OverlapRows(Suite& suite) {
  constexpr Nanos kKernel{50'000};
  const int length = suite.Count(50);
  if (suite.Wants(6)) {
    auto rig = std::make_shared<Rig>(suite.target, RigOptions{.streams = 4});
    auto hand = std::make_shared<Hand>(suite.target, 4);
    std::vector<Var> chains;
    for (int i = 0; i < 4; ++i) chains.push_back(rig->eng.NewVar());
    const auto ours = [=] {
      return Figures{NanosOf([&] {
        for (int k = 0; k < length; ++k)
          for (const Var& v : chains) rig->Push({.name = "kernel", .updates = v, .place = Gpu(0)}, kKernel);
        for (const Var& v : chains) rig->eng.Wait(v);
      })};
    };
    suite.Measure(
        {6, "four chains on four lanes", "one chain alone (ideal)", {{"time", "ns", Ratio(1 / 0.95)}}, ours, [=] {
           return Figures{NanosOf([&] {
             for (int k = 0; k < length; ++k) hand->Spin(0, kKernel);
             hand->Synchronize();
           })};
         }});
    suite.Measure({6, "four chains on four lanes", "four streams by hand", {{"time", "ns", {}}}, ours, [=] {
                     return Figures{NanosOf([&] {
                       for (int k = 0; k < length; ++k)
                         for (size_t s = 0; s < 4; ++s) hand->Spin(s, kKernel);
                       for (size_t s = 0; s < 4; ++s) hand->Synchronize(s);
                     })};
                   }});
    suite.Timeline(6, "four chains on four lanes", [&] { ours(); });
  }
  if (!suite.Wants(7)) return;
  constexpr size_t kBytes = size_t{1} << 20;
  constexpr Nanos kPreprocess{60'000}, kCompute{100'000};
  auto rig = std::make_shared<Rig>(suite.target);
  auto hand = std::make_shared<Hand>(suite.target, 1);
  auto device = suite.target.device();
  void* pinned = nullptr;
  Must(device->AllocatePinned(kBytes, &pinned));
  void* buffers[2];
  for (void*& b : buffers) Must(device->Allocate(kBytes, hand->streams[0], &b));
  hand->Synchronize();
  const std::vector<Var> raw{rig->eng.NewVar("raw 0"), rig->eng.NewVar("raw 1")};
  const std::vector<Var> ready{rig->eng.NewVar("ready 0"), rig->eng.NewVar("ready 1")};
  const Var model = rig->eng.NewVar("model");
  const auto ours = [&] {
    return Figures{NanosOf(
        [&] {
          for (int k = 0; k < length; ++k) {
            const auto b = static_cast<size_t>(k % 2);
            rig->eng.Push({.name = "copy in", .writes = raw[b], .place = CopyIn(0)}, [&, b](RunContext& ctx) {
              Must(device->CopyIn(buffers[b], pinned, kBytes, ctx.stream(), MemoryKind::kPinned));
            });
            rig->Push({.name = "preprocess", .reads = raw[b], .writes = ready[b], .place = Gpu(0, 1)}, kPreprocess);
            rig->Push({.name = "compute", .reads = ready[b], .updates = model, .place = Gpu(0, 0)}, kCompute);
          }
          rig->eng.Wait(model);
        },
        length)};
  };
  suite.Measure({7,
                 "copy in and preprocess beside compute",
                 "the longest stage alone (ideal)",
                 {{"time a step", "ns", Ratio(1 / 0.95)}},
                 ours,
                 [&] {
                   const double copy = NanosOf(
                       [&] {
                         for (int k = 0; k < length; ++k)
                           Must(device->CopyIn(buffers[k % 2], pinned, kBytes, hand->streams[0], MemoryKind::kPinned));
                         hand->Synchronize();
                       },
                       length);
                   const double compute = NanosOf(
                       [&] {
                         for (int k = 0; k < length; ++k) hand->Spin(0, kCompute);
                         hand->Synchronize();
                       },
                       length);
                   return Figures{std::max(copy, compute)};
                 }});
  suite.Timeline(7, "copy in and preprocess beside compute", [&] { ours(); });
  for (void* b : buffers) Must(device->Free(b, hand->streams[0]));
  hand->Synchronize();
  Must(device->FreePinned(pinned));
}

void GraphRows(Suite& suite) {
  if (!suite.Wants(10)) return;
  constexpr uint64_t kOps = 15;
  Rig rig(suite.target);
  Hand hand(suite.target, 1);
  const Var a = rig.eng.NewVar("a");
  const int n = suite.Count(200);
  uint64_t run = 0;
  const auto ours = [&] {
    return Figures{NanosOf(
        [&] {
          HeldOps held(rig.eng);
          for (int i = 0; i < n; ++i, ++run) {
            for (uint64_t k = 0; k < kOps; ++k) {
              const uint64_t params = k == 7 ? run : 0;  // one node a run
              rig.Push(held,
                       {.name = "member",
                        .updates = a,
                        .place = Gpu(0),
                        .graph = {.kind = 1 + k, .params = params, .one_call = true}},
                       Nanos(params % 100));
            }
            held.Release();
          }
          rig.eng.Wait(a);
        },
        n)};
  };
  HandGraph graph(hand, [&](std::vector<DeviceGraphNode>& nodes) {
    for (uint64_t k = 0; k < kOps; ++k) {
      hand.Spin(0);
      Must(hand.device->LastNode(hand.streams[0], &nodes.emplace_back()));
    }
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
                           Must(suite.target.SetSpin(graph.exec, graph.nodes[7], Nanos(i % 100)));
                           Must(hand.device->Launch(graph.exec, hand.streams[0]));
                         }
                         hand.Synchronize();
                       },
                       n)};
                 }});
}

void MemoryRows(Suite& suite) {
  if (!suite.Wants(11)) return;
  constexpr size_t kBytes = size_t{1} << 20;
  Rig rig(suite.target);
  Hand hand(suite.target, 2, 1);
  Device& device = *hand.device;
  const Var a = rig.eng.NewVar("a");
  const int n = suite.Count(500);
  void* memory = nullptr;
  suite.Measure({11,
                 "allocate on one lane, free on another",
                 "the same calls by hand",
                 {{"time a pair", "ns", {}}},
                 [&] {
                   return Figures{NanosOf(
                       [&] {
                         for (int i = 0; i < n; ++i) {
                           rig.eng.Push({.name = "allocate", .updates = a, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
                             Must(device.Allocate(kBytes, ctx.stream(), &memory));
                             Must(suite.target.Spin(ctx.stream(), {}));
                           });
                           rig.eng.Push({.name = "free", .updates = a, .place = Gpu(0, 1)}, [&](RunContext& ctx) {
                             Must(suite.target.Spin(ctx.stream(), {}));
                             Must(device.Free(memory, ctx.stream()));
                           });
                         }
                         rig.eng.Wait(a);
                       },
                       n)};
                 },
                 [&] {
                   return Figures{NanosOf(
                       [&] {
                         const auto pass = [&](size_t from, size_t to) {
                           Must(device.Record(hand.events[0], hand.streams[from]));
                           Must(device.Wait(hand.streams[to], hand.events[0]));
                         };
                         for (int i = 0; i < n; ++i) {
                           void* block = nullptr;
                           Must(device.Allocate(kBytes, hand.streams[0], &block));
                           hand.Spin(0);
                           pass(0, 1);
                           hand.Spin(1);
                           Must(device.Free(block, hand.streams[1]));
                           pass(1, 0);
                         }
                         hand.Synchronize(0);
                       },
                       n)};
                 }});
}

namespace {

// The part of the time between the first kernel's start and the last one's end in which one ran. Spans of one lane.
double Busy(std::vector<Span> spans) {
  int64_t busy = 0, first = INT64_MAX, last = INT64_MIN;
  for (const Span& s : spans) {
    busy += s.end - s.start;
    first = std::min(first, s.start);
    last = std::max(last, s.end);
  }
  return spans.empty() ? 0 : static_cast<double>(busy) / static_cast<double>(last - first);
}

}  // namespace

void TrainingRows(Suite& suite) {
  if (!suite.Wants(12)) return;
  Rig rig(suite.target);
  Hand hand(suite.target, 1);
  Mlp mlp(rig);
  const int steps = suite.Count(20);
  const auto timed = [&](auto step) {
    return NanosOf(
        [&] {
          for (int i = 0; i < steps; ++i) step();
          rig.eng.WaitAll();
          hand.Synchronize();
        },
        steps);
  };
  const auto by_hand = [&] { mlp.ByHand([&](Nanos time, const char* name) { hand.Spin(0, time, name); }); };
  HandGraph graph(hand, [&](auto&) { by_hand(); });
  const auto busy = [&](auto step) {
    suite.target.StartSpans();
    timed(step);
    return Busy(suite.target.StopSpans());
  };
  struct Way {
    const char* name;
    size_t bulk;
    bool graph;
    double least;
  };
  for (const Way& way : {Way{"eager", 1, false, 0}, Way{"bulked", 15, false, 0.97}, Way{"as a graph", 15, true, 0}}) {
    const auto step = [&] { mlp.Step(way.bulk, way.graph); };
    const auto raw = [&] {
      if (way.graph) {
        Must(hand.device->Launch(graph.exec, hand.streams[0]));
      } else {
        by_hand();
      }
    };
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
                   {{"busy fraction", "", way.least > 0 ? Limit{LimitKind::kAtLeast, way.least} : Limit{}}},
                   [&] { return Figures{busy(step)}; },
                   [&] { return Figures{busy(raw)}; }});
  }
  const auto one = [&](auto step) {
    step();
    rig.eng.WaitAll();
    hand.Synchronize();
  };
  suite.Timeline(12, "MLP step by hand", [&] { one(by_hand); });
  suite.Timeline(12, "MLP step, one by one", [&] { one([&] { mlp.Step(1, false); }); });
  suite.Timeline(12, "MLP step, bulked", [&] { one([&] { mlp.Step(15, false); }); });
}

void CollectiveRows(Suite& suite) {
  if (!suite.Wants(13)) return;
  std::string why;
  const auto raw = MakeRawAllReduce(suite.target, &why);
  if (!raw) return suite.Absent(13, why);
  constexpr size_t kFloats = size_t{1} << 20;
  Rig rig(suite.target);
  Hand hand(suite.target, 1);
  void* memory = nullptr;
  Must(hand.device->Allocate(kFloats * sizeof(float), hand.streams[0], &memory));
  hand.Synchronize();
  Communicator comm(rig.eng, {.id = NewCommunicatorId(*suite.target.device())});
  const Var a = rig.eng.NewVar("a");
  const int n = suite.Count(200);
  suite.Measure({13,
                 "all-reduce, one rank, 4 MiB",
                 "raw NCCL",
                 {{"time a call", "ns", Ratio(1.03)}},
                 [&] {
                   return Figures{NanosOf(
                       [&] {
                         for (int i = 0; i < n; ++i)
                           comm.Push(rig.eng, {.name = "all-reduce", .updates = a},
                                     {Collective::AllReduce(memory, memory, kFloats)});
                         rig.eng.Wait(a);
                       },
                       n)};
                 },
                 [&] {
                   return Figures{NanosOf(
                       [&] {
                         for (int i = 0; i < n; ++i) Must(raw->Run(memory, kFloats, hand.streams[0]));
                         hand.Synchronize();
                       },
                       n)};
                 }});
  rig.eng.WaitAll();
  Must(hand.device->Free(memory, hand.streams[0]));
}

}  // namespace engine::perf
