// What the order between lanes costs: records and waits.
#include "engine/bulk.h"
#include "engine/plan.h"
#include "heap.h"
#include "order_model.h"
#include "rig.h"
#include "scenarios.h"

namespace engine::perf {

using enum DeviceCall;

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

// Chains without a lane of their own: each stays on one of four, and nobody waits for anybody.
static std::vector<Counter> Chains(Target& target, uint64_t n) {
  constexpr uint64_t kLanes = 4, kLength = 50;
  Rig rig(target, {.streams = kLanes, .counted = true});
  std::vector<Var> chains;
  std::vector<uint64_t> holds;
  for (uint64_t i = 0; i < n; ++i) chains.push_back(rig.eng.NewVar());
  for (const Var& v : chains) holds.push_back(rig.PushHold({.name = "held", .updates = v, .place = Gpu(0)}));
  Rig::Busy busy(rig);
  for (uint64_t k = 0; k < kLength; ++k)
    for (const Var& v : chains) rig.Push({.name = "kernel", .updates = v, .place = Gpu(0)}, kShort);
  busy.Release();
  rig.UntilIssued();
  const DeviceCounts counts = rig.counts();
  for (const uint64_t hold : holds) target.Release(hold);
  rig.eng.WaitAll();
  return {{"lanes", rig.eng.device_stats().lanes, kLanes},
          {"waits", counts[kWait], 0},
          // A hold has a record of its own if the issuer ran out of ops behind it.
          AtMost("records", counts[kRecord], kLanes * (n / kLanes * kLength / 16 + 1 + n / kLanes)),
          {"synchronizations", counts[kSynchronize], 0}};
}

std::vector<Counter> FourChains(Target& target) { return Chains(target, 4); }
// Two chains share a lane: their ops alternate there, and are in order without a wait.
std::vector<Counter> EightChains(Target& target) { return Chains(target, 8); }

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

}  // namespace engine::perf
