// What ops, bulks and waits cost in calls of the device.
#include <cstring>

#include "engine/bulk.h"
#include "rig.h"
#include "scenarios.h"

namespace engine::perf {

using enum DeviceCall;

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

}  // namespace engine::perf
