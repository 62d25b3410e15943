#include "counters.h"

#include <cstring>
#include <optional>
#include <set>

#include "engine/bulk.h"
#include "engine/comm.h"
#include "engine/plan.h"
#include "heap.h"
#include "mlp.h"
#include "order_model.h"
#include "rig.h"

namespace engine::perf {
namespace {

using enum DeviceCall;
constexpr Nanos kShort{1000};

// For what may be less by chance: a record is also made where the issuer runs out of ops.
Counter AtMost(std::string name, uint64_t got, uint64_t most) { return {std::move(name), std::max(got, most), most}; }

// 1,000 ops of one Var in bulks of 15: 67 dispatches, a record for each second one, and every op has its name in the trace.
std::vector<Counter> Bulks(Target& target) {
  Rig rig(target, {.counted = true});
  Var a = rig.eng.NewVar("a");
  const uint64_t launches = target.launches();
  Rig::Busy busy(rig);
  rig.eng.StartTrace();
  HeldOps bulk(rig.eng);
  for (int i = 0; i < 1000; ++i) {
    rig.Push(bulk, {.name = "member", .updates = {a}, .place = Gpu(0)});
    if (i % 15 == 14) bulk.Release();
  }
  bulk.Release();
  busy.Release();
  rig.UntilIssued();
  rig.eng.WaitAll();
  const auto trace = rig.eng.StopTrace().events;
  const auto named =
      std::count_if(trace.begin(), trace.end(), [](const TraceEvent& e) { return !std::strcmp(e.name, "member"); });
  const DeviceCounts counts = rig.counts();
  return {{"dispatches", rig.eng.stats().dispatches, 67 + 1},
          AtMost("records", counts[kRecord], 67 / 2 + 2),
          {"waits", counts[kWait], 0},
          {"launches", target.launches() - launches, 1000},
          {"names in the trace", static_cast<uint64_t>(named), 1000},
          {"synchronizations", counts[kSynchronize], 0},
          {"records of an event in use", counts[kRecordPending], 0}};
}

// 1,000 dependent ops one by one: a launch each, and one record for 16 of them.
std::vector<Counter> OneByOne(Target& target) {
  Rig rig(target, {.counted = true});
  Var a = rig.eng.NewVar("a");
  const uint64_t launches = target.launches();
  Rig::Busy busy(rig);
  for (int i = 0; i < 1000; ++i) rig.Push({.name = "kernel", .updates = {a}, .place = Gpu(0)});
  busy.Release();
  rig.eng.Wait(a);
  const DeviceCounts counts = rig.counts();
  return {{"launches", target.launches() - launches, 1000},
          AtMost("records", counts[kRecord], 1000 / 16 + 2),
          {"waits", counts[kWait], 0},
          {"synchronizations", counts[kSynchronize], 0}};
}

// Ops that nobody waits for: the device is asked nothing. Who comes to wait then finds them ended.
std::vector<Counter> NobodyWaits(Target& target) {
  Rig rig(target, {.counted = true});
  Var a = rig.eng.NewVar("a");
  std::atomic<uint64_t> issued{0};
  for (int i = 0; i < 200; ++i)
    rig.eng.Push({.name = "kernel", .updates = {a}, .place = Gpu(0)}, [&](RunContext& ctx) {
      Must(target.Spin(ctx.stream(), {}, "kernel"));
      issued.fetch_add(1);
    });
  Rig::Until("all are issued", [&] { return issued.load() == 200; });  // and no counter is read: that is a look
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const DeviceCounts before = rig.counts();
  rig.eng.WaitAll();
  return {{"queries while nobody waits", before[kQuery], 0},
          {"synchronizations", rig.counts()[kSynchronize], 0},
          {"ops completed", rig.eng.stats().completed, 200}};
}

// A step that has a host read, a pageable copy and two waits, while the device stands still: these and nothing else.
std::vector<Counter> HostSynchronizations(Target& target) {
  Rig rig(target, {.counted = true, .spin = std::chrono::microseconds(0)});
  Device& device = *rig.counting;
  Var a = rig.eng.NewVar("a"), b = rig.eng.NewVar("b"), host = rig.eng.NewVar("host"), in = rig.eng.NewVar("in");
  std::vector<float> batch(1024, 1.0f);
  std::vector<Counter> out;
  for (int step = 0; step < 3; ++step) {
    const DeviceCounts before = rig.counts();
    const uint64_t waits = rig.eng.device_stats().host_waits;
    rig.eng.Push({.name = "copy in", .writes = {in}, .place = CopyIn(0)}, [&](RunContext& ctx) {
      void* memory = nullptr;
      Must(device.Allocate(batch.size() * sizeof(float), ctx.stream(), &memory));
      Must(device.CopyIn(memory, batch.data(), batch.size() * sizeof(float), ctx.stream(), MemoryKind::kPageable));
      Must(device.Free(memory, ctx.stream()));
    });
    rig.eng.Wait(in);  // nothing to put aside: a pageable copy blocks by itself, but its free may be to come
    const uint64_t for_copy = rig.eng.device_stats().host_waits - waits;
    const uint64_t hold = rig.PushHold({.name = "held", .updates = {a}, .place = Gpu(0)});
    HeldOps bulk(rig.eng);
    for (int i = 0; i < 30; ++i) {
      rig.Push(bulk, {.name = "kernel", .reads = {a}, .updates = {b}, .place = Gpu(0)}, kShort);
      if (i % 15 == 14) bulk.Release();
    }
    rig.eng.Push({.name = "host read", .reads = {b}, .writes = {host}}, [] {});
    const auto put_aside = [&] { return rig.eng.device_stats().host_waits - waits - for_copy; };
    Rig::Until("the host read is put aside", [&] { return put_aside() >= 1; });
    std::thread first([&] { rig.eng.Wait(b); });
    std::thread second([&] { rig.eng.Wait(a); });
    Rig::Until("both waits are put aside", [&] { return put_aside() >= 3; });
    target.Release(hold);
    first.join();
    second.join();
    rig.eng.WaitAll();
    const std::string at = "step " + std::to_string(step) + ": ";
    const DeviceCounts counts = rig.counts() - before;
    out.push_back({at + "host waits (2 waits, 1 host read)", put_aside(), 3});
    out.push_back({at + "pageable copies", counts[kPageableCopy], 1});
    out.push_back({at + "synchronizations by the engine", counts[kSynchronize], 0});
    out.push_back({at + "back-pressure", rig.eng.stats().backpressure_waits, 0});
  }
  return out;
}

// A pusher that is ahead of the device by its bound waits once, and needs no synchronization for it.
std::vector<Counter> BackPressure(Target& target) {
  constexpr size_t kBound = 64;
  Rig rig(target, {.counted = true, .max_pending = kBound});
  Var a = rig.eng.NewVar("a");
  const uint64_t hold = rig.PushHold({.name = "held", .updates = {a}, .place = Gpu(0)});
  std::thread release([&] {
    Rig::Until("the pusher waits", [&] { return rig.eng.stats().backpressure_waits == 1; });
    target.Release(hold);
  });
  while (rig.eng.stats().backpressure_waits == 0) rig.Push({.name = "kernel", .updates = a, .place = Gpu(0)}, kShort);
  release.join();
  rig.eng.WaitAll();
  return {{"back-pressure waits", rig.eng.stats().backpressure_waits, 1},
          {"synchronizations", rig.counts()[kSynchronize], 0},
          {"records of an event in use", rig.counts()[kRecordPending], 0}};
}

// Random bulks on four lanes over a few Vars, the device held: the waits are the least that order them, and a second step
// makes and takes nothing.
std::vector<Counter> Lanes(Target& target) {
  constexpr uint32_t kLanes = 4, kVars = 8, kBulks = 100;
  Rig rig(target, {.counted = true});
  std::vector<Var> vars, gates;
  for (uint32_t i = 0; i < kVars; ++i) vars.push_back(rig.eng.NewVar());
  for (uint32_t i = 0; i < kLanes; ++i) gates.push_back(rig.eng.NewVar());
  const std::vector<ModelBulk> bulks = RandomBulks(17, kBulks, kLanes, kVars);
  uint64_t members = 0;
  for (const ModelBulk& b : bulks) members += b.members.size();
  const uint64_t least_waits = LeastWaits(bulks, kLanes, kVars);
  std::vector<Counter> out;
  HeldOps bulk(rig.eng);
  std::vector<uint64_t> holds(kLanes);
  // A queue grows when its thread's turn comes late: the quietest step says what an op costs.
  uint64_t least_allocated = ~uint64_t{0};
  for (int step = 0; step < 6; ++step) {
    const DeviceCounts before = rig.counts();
    const uint64_t heap = HeapAllocations();
    const uint64_t slabs = rig.eng.stats().slab_allocations;
    const uint64_t pushed = rig.eng.stats().pushed;
    for (uint32_t i = 0; i < kLanes; ++i)
      holds[i] = rig.PushHold({.name = "held", .updates = {gates[i]}, .place = Gpu(0, static_cast<uint8_t>(i))});
    for (const ModelBulk& b : bulks) {
      for (const ModelOp& op : b.members) {
        OpDesc desc{.name = "member", .place = Gpu(0, static_cast<uint8_t>(b.lane))};
        desc.updates = vars[op.updates];
        if (op.reads != op.updates) desc.reads = vars[op.reads];
        rig.Push(bulk, desc, kShort);
      }
      bulk.Release();
      rig.UntilIssued();  // else a bulk could begin before one that it needs in its middle, and be split there
    }
    const DeviceCounts counts = rig.counts() - before;
    for (const uint64_t hold : holds) target.Release(hold);
    rig.eng.WaitAll();
    const uint64_t allocated = HeapAllocations() - heap;
    const std::string at = "step " + std::to_string(step) + ": ";
    out.push_back({at + "ops", rig.eng.stats().pushed - pushed, members + kLanes});
    out.push_back(AtMost(at + "records", counts[kRecord], kBulks + kLanes));
    out.push_back(AtMost(at + "waits", counts[kWait], least_waits));
    out.push_back({at + "synchronizations", counts[kSynchronize], 0});
    out.push_back({at + "records of an event in use", counts[kRecordPending], 0});
    if (step < 2) continue;  // blocks and events travel to where they are used
    least_allocated = std::min(least_allocated, allocated);
    out.push_back({at + "streams made", counts[kCreateStream], 0});
    out.push_back({at + "slabs taken from the system", rig.eng.stats().slab_allocations - slabs, 0});
  }
  out.push_back({"heap allocations of the quietest step", least_allocated, 0});
  // How many are in use at once depends on when the issuer ran out of ops; they are used again.
  out.push_back(AtMost("events made", rig.counts()[kCreateEvent], kBulks + kLanes));
  return out;
}

// Runs of a plan on two lanes, behind a kernel that has not ended: they follow each other there, with two waits a run, for the
// other lane and back from it.
std::vector<Counter> PlanRuns(Target& target) {
  constexpr uint64_t kRuns = 4;
  Rig rig(target, {.counted = true});
  const Var a = rig.eng.NewVar("a");
  const auto body = [&target](RunContext& ctx) { Must(target.Spin(ctx.stream(), kShort, "node")); };
  engine::Graph graph;
  for (int i = 0; i < 3; ++i) graph.Add({.name = "node", .updates = {a}, .place = Gpu(0, 0)}, body);
  graph.Add({.name = "node", .reads = {a}, .place = Gpu(0, 1)}, body);
  const Plan plan = graph.Compile(rig.eng);
  std::vector<Counter> out;
  for (int step = 0; step < 4; ++step) {
    const DeviceCounts before = rig.counts();
    const uint64_t issued = rig.eng.device_stats().issued;
    const uint64_t hold = rig.PushHold({.name = "held", .updates = {a}, .place = Gpu(0, 0)});
    for (uint64_t run = 0; run < kRuns; ++run) plan.Start();
    Rig::Until("all runs are issued", [&] { return rig.eng.device_stats().issued == issued + 1 + 4 * kRuns; });
    const DeviceCounts counts = rig.counts() - before;
    target.Release(hold);
    rig.eng.WaitAll();
    const std::string at = "step " + std::to_string(step) + ": ";
    out.push_back(AtMost(at + "records", counts[kRecord], 1 + 2 * kRuns));
    out.push_back({at + "waits", counts[kWait], 2 * kRuns - 1});
    out.push_back({at + "synchronizations", counts[kSynchronize], 0});
    out.push_back({at + "records of an event in use", counts[kRecordPending], 0});
  }
  out.push_back(AtMost("events made", rig.counts()[kCreateEvent], 1 + 2 * kRuns));  // as in Lanes
  return out;
}

// Plans of 1, 2 and 3 segments of 100 nodes, a node on the host between each two: for each segment one op, one launch and one
// record, however many nodes it has.
std::vector<Counter> PlanSegments(Target& target) {
  std::vector<Counter> out;
  for (const uint64_t segments : {1, 2, 3}) {
    constexpr uint64_t kRuns = 5;
    Rig rig(target, {.counted = true});
    const Var a = rig.eng.NewVar("a");
    engine::Graph graph;
    for (uint64_t s = 0; s < segments; ++s) {
      if (s != 0) graph.Add({.name = "host", .updates = {a}}, [] {});
      for (uint64_t k = 0; k < 100; ++k)
        graph.Add({.name = "node",
                   .updates = {a},
                   .place = Gpu(0),
                   .graph = {.kind = 1 + 100 * s + k, .params = 1, .one_call = true}},
                  [&](RunContext& ctx) { Must(target.Spin(ctx.stream(), {}, "node")); });
    }
    const Plan plan = graph.Compile(rig.eng, {.static_alloc = true});
    for (int warm = 0; warm < 6; ++warm) plan.Start().Wait();
    rig.eng.WaitAll();
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
    const std::string at = std::to_string(segments) + " segments: ";
    out.push_back({at + "ops pushed", rig.eng.stats().pushed - ops.pushed, kRuns * (1 + segments)});
    out.push_back({at + "ops completed", rig.eng.stats().completed - ops.completed, kRuns * (1 + segments)});
    out.push_back({at + "graph launches", counts[kLaunchGraph], kRuns * segments});
    out.push_back({at + "launches by bodies", target.launches() - launches, 0});
    out.push_back({at + "records", counts[kRecord], kRuns * segments});
    out.push_back({at + "waits", counts[kWait], 0});
    out.push_back({at + "synchronizations", counts[kSynchronize], 0});
    out.push_back({at + "heap allocations of the quietest run", allocated, 0});
  }
  return out;
}

// Four chains without a lane of their own: each stays on one of four, and nobody waits for anybody.
std::vector<Counter> FourChains(Target& target) {
  Rig rig(target, {.streams = 4, .counted = true});
  std::vector<Var> chains;
  std::vector<uint64_t> holds;
  for (int i = 0; i < 4; ++i) chains.push_back(rig.eng.NewVar());
  for (const Var& v : chains) holds.push_back(rig.PushHold({.name = "held", .updates = v, .place = Gpu(0)}));
  Rig::Busy busy(rig);
  for (int k = 0; k < 50; ++k)
    for (const Var& v : chains) rig.Push({.name = "kernel", .updates = v, .place = Gpu(0)}, kShort);
  busy.Release();
  rig.UntilIssued();
  const DeviceCounts counts = rig.counts();
  for (const uint64_t hold : holds) target.Release(hold);
  rig.eng.WaitAll();
  return {{"lanes", rig.eng.device_stats().lanes, 4},
          {"waits", counts[kWait], 0},
          AtMost("records", counts[kRecord], 4 * (51 / 16 + 2)),
          {"synchronizations", counts[kSynchronize], 0}};
}

// Copy, preprocess, compute over two buffers, the copies held: a step waits for its own stages, and for those that used
// its buffers two steps before.
std::vector<Counter> StageLane(Target& target) {
  constexpr uint64_t kSteps = 6;
  Rig rig(target, {.counted = true});
  const std::vector<Var> raw{rig.eng.NewVar("raw 0"), rig.eng.NewVar("raw 1")};
  const std::vector<Var> ready{rig.eng.NewVar("ready 0"), rig.eng.NewVar("ready 1")};
  const Var model = rig.eng.NewVar("model");
  const uint64_t hold = rig.PushHold({.name = "held", .updates = {raw[0]}, .place = CopyIn(0)});
  for (uint64_t k = 0; k < kSteps; ++k) {
    const size_t b = k % 2;
    rig.Push({.name = "copy in", .writes = raw[b], .place = CopyIn(0)}, kShort);
    rig.Push({.name = "preprocess", .reads = raw[b], .writes = ready[b], .place = Gpu(0, 1)}, kShort);
    rig.Push({.name = "compute", .reads = ready[b], .updates = model, .place = Gpu(0, 0)}, kShort);
    rig.UntilIssued();  // steps in order: another order of issue, which is as good, can imply more of the waits
  }
  const DeviceCounts counts = rig.counts();
  target.Release(hold);
  rig.eng.WaitAll();
  return {AtMost("waits", counts[kWait], 2 * 2 + (kSteps - 2) * 4),
          AtMost("records", counts[kRecord], 1 + 3 * kSteps),
          {"synchronizations", counts[kSynchronize], 0},
          {"records of an event in use", counts[kRecordPending], 0}};
}

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

}  // namespace

const std::vector<Scenario>& Scenarios() {
  static const std::vector<Scenario> all = {
      {2, "static_bulk", "1,000 ops of a static bulk are one graph launch", Graph},
      {4, "host_synchronizations", "the host waits for what was asked for, and for nothing else", HostSynchronizations},
      {4, "back_pressure", "a pusher ahead of the device by its bound waits once", BackPressure},
      {9, "nobody_waits", "200 ops that nobody waits for", NobodyWaits},
      {5, "one_by_one", "1,000 dependent ops, one by one", OneByOne},
      {5, "bulks_of_15", "1,000 ops in bulks of 15", Bulks},
      {5, "lanes", "100 random bulks on four lanes", Lanes},
      {5, "plan_runs", "runs of a plan follow each other on the device", PlanRuns},
      {14, "plan_segments", "a plan of segments of 100 nodes, replayed", PlanSegments},
      {6, "four_chains", "four chains on four lanes", FourChains},
      {7, "stage_lane", "copy in and preprocess beside compute", StageLane},
      {10, "params", "parameters change, structure does not", Params},
      {10, "params_by_launch", "the same, bodies use ctx.Launch", ParamsByLaunch},
      {11, "memory", "memory allocated on one lane and freed on another", Memory},
      {12, "mlp_step", "a training step in bulks of 15", MlpStep},
      {13, "collectives", "40 all-reduces in groups of 4, in bulks of 5 groups", Collectives},
  };
  return all;
}

}  // namespace engine::perf
