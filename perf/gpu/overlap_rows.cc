// Rows 6, 7 and 15: work beside work on one device.
#include "rig.h"
#include "suite.h"

namespace engine::perf {
namespace {

constexpr Nanos kLink{50'000};

// `chains` chains of `length` kernels on four lanes; by hand each keeps one of four streams.
void Chains(Suite& suite, int row, int chains, int length, double limit) {
  constexpr size_t kLanes = 4;
  Rig rig(suite.target, {.streams = kLanes});
  const auto hand = suite.target.MakeByHand(kLanes);
  std::vector<Var> vars;
  for (int i = 0; i < chains; ++i) vars.push_back(rig.eng.NewVar());
  const std::string name = std::to_string(chains) + " chains on four lanes";
  const auto ours = [&] {
    return Figures{NanosOf([&] {
      for (int k = 0; k < length; ++k)
        for (const Var& v : vars) rig.Push({.name = "kernel", .updates = v, .place = Gpu(0)}, kLink);
      for (const Var& v : vars) rig.eng.Wait(v);
    })};
  };
  if (static_cast<size_t>(chains) == kLanes)
    suite.Measure({row, name, "one chain alone (ideal)", {{"time", "ns", Ratio(1 / 0.95)}}, ours, [&] {
                     return Figures{NanosOf([&] {
                       for (int k = 0; k < length; ++k) hand->Spin(0, kLink);
                       hand->Synchronize();
                     })};
                   }});
  suite.Measure({row, name, "four streams by hand", {{"time", "ns", limit > 0 ? Ratio(limit) : Limit{}}}, ours, [&] {
                   return Figures{NanosOf([&] {
                     for (int k = 0; k < length; ++k)
                       for (size_t c = 0; c < vars.size(); ++c) hand->Spin(c % kLanes, kLink);
                     for (size_t s = 0; s < kLanes; ++s) hand->Synchronize(s);
                   })};
                 }});
  suite.Timeline(row, name, [&] { ours(); });
}

// A copy, a preprocessing kernel and a computing one a step, over two buffers.
void Stages(Suite& suite, int length) {
  constexpr size_t kBytes = size_t{1} << 20;
  constexpr Nanos kPreprocess{60'000}, kCompute{100'000};
  Rig rig(suite.target);
  const auto hand = suite.target.MakeByHand(3, 6);
  const auto device = suite.target.device();
  void* const pinned = hand->AllocatePinned(kBytes);
  void* buffers[2];
  for (void*& b : buffers) b = hand->Allocate(kBytes, 0);
  hand->Synchronize();
  const std::vector<Var> raw{rig.eng.NewVar("raw 0"), rig.eng.NewVar("raw 1")};
  const std::vector<Var> ready{rig.eng.NewVar("ready 0"), rig.eng.NewVar("ready 1")};
  const Var model = rig.eng.NewVar("model");
  const auto ours = [&] {
    return Figures{NanosOf(
        [&] {
          for (int k = 0; k < length; ++k) {
            const auto b = static_cast<size_t>(k % 2);
            rig.eng.Push({.name = "copy in", .writes = raw[b], .place = CopyIn(0)}, [&, b](RunContext& ctx) {
              Must(device->CopyIn(buffers[b], pinned, kBytes, ctx.stream(), MemoryKind::kPinned));
            });
            rig.Push({.name = "preprocess", .reads = raw[b], .writes = ready[b], .place = Gpu(0, 1)}, kPreprocess);
            rig.Push({.name = "compute", .reads = ready[b], .updates = model, .place = Gpu(0, 0)}, kCompute);
          }
          rig.eng.Wait(model);
        },
        length)};
  };
  // Events: 0 and 1 the copies of a buffer, 2 and 3 its preprocessing, 4 and 5 its computation.
  const auto by_hand = [&] {
    return Figures{NanosOf(
        [&] {
          for (int k = 0; k < length; ++k) {
            const auto b = static_cast<size_t>(k % 2);
            if (k >= 2) hand->Wait(0, 2 + b);
            hand->CopyIn(buffers[b], pinned, kBytes, 0);
            hand->Record(b, 0);
            hand->Wait(1, b);
            if (k >= 2) hand->Wait(1, 4 + b);
            hand->Spin(1, kPreprocess);
            hand->Record(2 + b, 1);
            hand->Wait(2, 2 + b);
            hand->Spin(2, kCompute);
            hand->Record(4 + b, 2);
          }
          hand->Synchronize(2);
        },
        length)};
  };
  const std::string name = "copy in and preprocess beside compute";
  suite.Measure({7, name, "the longest stage alone (ideal)", {{"time a step", "ns", Ratio(1 / 0.95)}}, ours, [&] {
                   const double copy = NanosOf(
                       [&] {
                         for (int k = 0; k < length; ++k) hand->CopyIn(buffers[k % 2], pinned, kBytes, 0);
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
  suite.Measure({7, name, "three streams by hand", {{"time a step", "ns", {}}}, ours, by_hand});
  suite.Timeline(7, name, [&] { ours(); });
  for (void* b : buffers) hand->Free(b, 0);
  hand->Synchronize();
  hand->FreePinned(pinned);
}

}  // namespace

void OverlapRows(Suite& suite) {
  const int length = suite.Count(50);
  if (suite.Wants(6)) Chains(suite, 6, 4, length, 0);
  if (suite.Wants(7)) Stages(suite, length);
  if (suite.Wants(15)) Chains(suite, 15, 8, length, 1.05);
}

}  // namespace engine::perf
