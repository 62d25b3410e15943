// What a step of a program costs: memory, training, collectives.
#include <optional>

#include "engine/bulk.h"
#include "engine/comm.h"
#include "engine/testing/bulk_clock.h"
#include "mlp.h"
#include "rig.h"
#include "scenarios.h"

namespace engine::perf {

using enum DeviceCall;

// Memory allocated on one lane and given back on another: from the second step on the engine has it, and asks nobody.
std::vector<Counter> Memory(Target& target) {
  Rig rig(target, {.counted = true});
  Var a = rig.eng.NewVar("a"), b = rig.eng.NewVar("b");
  DeviceMemory memory;
  DeviceCounts before;
  for (int step = 0; step < 6; ++step) {
    if (step == 1) before = rig.counts();
    for (int i = 0; i < 8; ++i) {
      rig.eng.Push({.name = "allocate", .updates = {a}, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
        memory = ctx.Allocate(1 << 20);
        Must(target.Spin(ctx.stream(), kShort));
      });
      rig.eng.Push({.name = "free", .updates = {a, b}, .place = Gpu(0, 1)}, [&](RunContext& ctx) {
        Must(target.Spin(ctx.stream(), kShort));
        memory.Reset();
      });
      rig.eng.WaitAll();  // the free was reached, and the engine knows: its events are free as well
    }
  }
  const DeviceCounts counts = rig.counts() - before;
  return {{"allocations by the device in 40 pairs", counts[kAllocate], 0},
          {"memory given back to the device", counts[kFree], 0},
          AtMost("events made", counts[kCreateEvent], 16),  // an event comes back at a look: one step's ops at most
          {"synchronizations", counts[kSynchronize], 0}};
}

// A training step of the model of row 12 in bulks of 15.
std::vector<Counter> MlpStep(Target& target) {
  Rig rig(target, {.counted = true});
  Mlp mlp(rig);
  for (int warm = 0; warm < 2; ++warm) mlp.Step(15, false);
  rig.eng.WaitAll();
  const DeviceCounts before = rig.counts();
  const uint64_t dispatches = rig.eng.stats().dispatches;
  constexpr uint64_t kSteps = 4;
  for (uint64_t i = 0; i < kSteps; ++i) {
    mlp.Step(15, false);
    rig.eng.WaitAll();
  }
  const DeviceCounts counts = rig.counts() - before;
  const uint64_t bulks = kSteps * ((mlp.ops() + 14) / 15);
  return {{"dispatches", rig.eng.stats().dispatches - dispatches, bulks},
          AtMost("records", counts[kRecord], bulks),
          {"waits", counts[kWait], 0},
          AtMost("events made", counts[kCreateEvent], bulks / kSteps),  // as in Memory
          {"synchronizations", counts[kSynchronize], 0}};
}

// 40 all-reduces in groups of 4, in bulks of 5 groups. Nothing where the device has no library for them.
std::vector<Counter> Collectives(Target& target) {
  Rig rig(target);
  std::optional<Communicator> comm;
  try {
    comm.emplace(rig.eng, CommunicatorOptions{.id = NewCommunicatorId(*target.device())});
  } catch (const CommunicatorError&) {
    return {};
  }
  constexpr size_t kGroup = 4, kFloats = 256;
  Device& device = *target.device();
  void* memory = nullptr;
  Stream stream;
  Must(device.CreateStream(0, &stream));
  Must(device.Allocate(kGroup * kFloats * sizeof(float), stream, &memory));
  Must(device.Synchronize(stream));
  std::vector<Collective> calls;
  for (size_t i = 0; i < kGroup; ++i) {
    float* const at = static_cast<float*>(memory) + i * kFloats;
    calls.push_back(Collective::AllReduce(at, at, kFloats));
  }
  const Var gradients = rig.eng.NewVar("gradients");
  rig.eng.WaitAll();  // it has joined
  const DeviceStats before = rig.eng.device_stats();
  const uint64_t dispatches = rig.eng.stats().dispatches;
  {
    const ManualBulkClock bulk_clock;
    Bulk bulk(rig.eng, 5);
    for (int i = 0; i < 10; ++i) comm->Push(rig.eng, {.updates = gradients}, calls);
  }
  rig.eng.WaitAll();
  const DeviceStats after = rig.eng.device_stats();
  const std::vector<Counter> out{{"collectives", comm->stats().collectives, 40},
                                 {"groups", comm->stats().groups, 10},
                                 {"dispatches", rig.eng.stats().dispatches - dispatches, 2},
                                 {"records", after.records - before.records, 2},
                                 {"waits", after.waits - before.waits, 0},
                                 {"synchronizations", after.host_syncs - before.host_syncs, 0}};
  comm.reset();
  rig.eng.WaitAll();
  Must(device.Free(memory, stream));
  Must(device.Synchronize(stream));
  Must(device.DestroyStream(stream));
  return out;
}

}  // namespace engine::perf
