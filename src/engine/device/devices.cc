#include "device/devices.h"

#include <algorithm>

#include "base/make_thread.h"
#include "core/core.h"
#include "device/bulk_graphs.h"
#include "device/memory.h"
#include "engine/testing/late_looks.h"

namespace engine::detail {

namespace {

// Keeps the libraries' handles of a lost device until the process ends. Destroying one would call the device, and on
// CUDA such a call may wait for all that runs there (cublasDestroy does): if the device hangs, it would never return.
using LaneLocals = std::vector<std::pair<const void*, std::shared_ptr<void>>>;
void Abandon(LaneLocals& locals) {
  struct Abandoned {
    LaneLocals locals;
    Abandoned* before;
  };
  static constinit std::atomic<Abandoned*> all{nullptr};  // a list, so that leak checkers find the handles reachable
  auto* const abandoned = new Abandoned{std::exchange(locals, {}), nullptr};
  abandoned->before = all.exchange(abandoned, std::memory_order_relaxed);  // relaxed: nobody reads the list
}

}  // namespace

DeviceState::DeviceState() = default;
DeviceState::~DeviceState() = default;

Devices::Devices(EngineCore& core, const EngineOptions& options, bool lost_by_fork)
    : core_(core), options_(options), lost_by_fork_(lost_by_fork) {}

Devices::~Devices() {
  for (auto& d : devices_)
    if (ErrorRecord* lost = d->lost.load(std::memory_order_acquire)) lost->Release();
  for (auto& on : lanes_made_) {
    MutexLock lock(on->mu);
    for (const DeviceLane::FailedOp& f : on->failed) f.error->Release();
  }
  MutexLock lock(lost_mu_);
  for (auto& [version, error] : failed_versions_) error->Release();
}

void Devices::Close() {
  {
    MutexLock making(make_mu_);
    // Under make_mu_, because a push that is refused may still make a device: that gets no thread.
    stop_.store(true, std::memory_order_release);
  }
  EndWatch();
  if (thread_.joinable()) {
    PollFaster();
    thread_.join();  // GiveBack has run there
  } else {
    GiveBack();
  }
}

// Gives back to the devices all that was taken from them. It runs on the retirement thread, where it may change the
// current device: libraries' handles and communicators must be destroyed while their own device is current.
void Devices::GiveBack() {
  MutexLock making(make_mu_);
  for (auto& d : devices_) d->graphs->Close();
  CloseChannels();  // after the graphs, which must not outlive communicators, and before the streams
  for (auto& on : lanes_made_) {
    LaneLocals locals;
    {
      MutexLock lock(on->mu);
      locals.swap(on->locals);
    }
    if (on->device->gone()) {
      Abandon(locals);
    } else {
      (void)on->device->device->MakeCurrent();  // if this fails, the calls that need it fail, too
      locals.clear();                           // before the pools are closed: this may give memory back to them
    }
  }
  for (auto& d : devices_) {
    const auto own =
        std::find_if(lanes_made_.begin(), lanes_made_.end(), [&](auto& on) { return on->device == d.get(); });
    const Stream stream = own == lanes_made_.end() ? Stream{} : (*own)->stream;
    d->memory->Close(stream);
    d->pinned->Close(stream);
  }
  for (auto& on : lanes_made_) {
    // A device that is gone is not called any more; its streams and events stay until the process ends.
    if (on->device->gone()) continue;
    Device& device = *on->device->device;
    // A thread that asks needs the lock before it can leave. One that comes later finds that all has retired, or no record.
    on->mu.Lock();
    for (; on->asking.load() != 0; on->mu.Lock()) {
      on->mu.Unlock();
      std::this_thread::yield();
    }
    for (; !on->records.empty(); on->records.PopFront()) (void)device.DestroyEvent(on->records.front().event);
    for (const Event event : on->spare_events) (void)device.DestroyEvent(event);
    on->spare_events.clear();
    (void)device.DestroyStream(on->stream);
    on->mu.Unlock();
  }
  for (auto& d : devices_) {
    MutexLock lock(d->timers_mu);
    if (d->gone()) continue;
    for (const DeviceTimer& timer : d->spare_timers)
      for (const Event event : {timer.begin, timer.end})
        if (event) (void)d->device->DestroyEvent(event);
    d->spare_timers.clear();
  }
}

bool Devices::Has(uint32_t index) const {
  if (!options_.devices.empty()) return index < options_.devices.size();
  // An atomic, because the guard of a static could stay locked in the child of a fork. relaxed: all threads find the
  // same number.
  static constinit std::atomic<int> cuda{-1};
  int known = cuda.load(std::memory_order_relaxed);
  if (known < 0) cuda.store(known = CudaDeviceCount(), std::memory_order_relaxed);
  return static_cast<int>(index) < known;
}

DeviceState& Devices::Get(uint32_t index) {
  if (index < kMaxDevices)
    if (DeviceState* made = by_index_[index].load(std::memory_order_acquire)) return *made;
  MutexLock lock(make_mu_);
  if (index >= kMaxDevices)
    throw UsageError("device " + std::to_string(index) + "; the most is " + std::to_string(kMaxDevices - 1));
  if (DeviceState* made = by_index_[index].load(std::memory_order_relaxed)) return *made;
  if (lost_by_fork_) throw UsageError("the engine's devices are lost in a fork's child: make an engine there");
  auto state = std::make_unique<DeviceState>();
  if (!options_.devices.empty()) {
    if (index >= options_.devices.size())
      throw UsageError("no device " + std::to_string(index) + ": EngineOptions::devices has " +
                       std::to_string(options_.devices.size()));
    state->device = options_.devices[index];
  } else {
    try {
      state->device = MakeCudaDevice(static_cast<int>(index));
    } catch (const DeviceError& e) {
      throw UsageError("no device " + std::to_string(index) + ": " + e.what());
    }
  }
  state->index = index;
  state->streams = static_cast<uint32_t>(options_.streams_per_device);
  state->devices = this;
  state->graphs = std::make_unique<BulkGraphs>(*this, *state);
  state->memory = std::make_shared<MemoryPool>(*this, *state, false);
  state->pinned = std::make_shared<MemoryPool>(*this, *state, true);
  // The first device brings the retirement thread. If the thread cannot be made, there must be no device: nobody would
  // look at it.
  if (!stop_.load(std::memory_order_relaxed) && !thread_.joinable())  // mutant: device_thread_after_the_end
    thread_ = MakeThread("a thread that looks after devices", [this] { ThreadMain(); });
  devices_.push_back(std::move(state));
  DeviceState* made = devices_.back().get();
  by_index_[index].store(made, std::memory_order_release);
  return *made;
}

DeviceLane& Devices::LaneOf(std::atomic<DeviceLane*>& place, DeviceState& device, const std::string& name,
                            DeviceLane::Use use) {
  if (DeviceLane* made = place.load(std::memory_order_acquire)) return *made;
  MutexLock lock(make_mu_);
  if (DeviceLane* made = place.load(std::memory_order_relaxed)) return *made;
  const uint32_t id = n_lanes_.load(std::memory_order_relaxed);
  if (id == kMaxLanes)
    throw UsageError("this op needs a new lane, and the engine has " + std::to_string(kMaxLanes) +
                     ", the most: use lanes that are there, or lower streams_per_device");
  auto on = std::make_unique<DeviceLane>();
  on->device = &device;
  on->id = id;
  on->use = use;
  on->name = Name::Intern("gpu" + std::to_string(device.index) + "/" + name);
  {
    MutexLock lane_lock(on->mu);
    MakeRoomForRecords(*on);
  }
  lanes_made_.reserve(lanes_made_.size() + 1);
  const auto check = [](DeviceStatus s) {
    if (!s.ok()) throw DeviceError(std::move(s));
  };
  Event event;
  check(device.device->CreateEvent(&event));
  try {
    check(device.device->CreateStream(0, &on->stream));
  } catch (...) {
    (void)device.device->DestroyEvent(event);
    throw;
  }
  events_made_.fetch_add(1, std::memory_order_relaxed);
  {
    MutexLock lane_lock(on->mu);
    on->spare_events.push_back(event);
  }
  lanes_made_.push_back(std::move(on));
  DeviceLane* made = lanes_made_.back().get();
  lanes_[id].store(made, std::memory_order_release);
  n_lanes_.store(id + 1);  // seq_cst, before the look at `lost`. Partner: Lose sets `lost` before it looks at the lanes
  if (device.lost.load()) made->good.store(0, std::memory_order_release);  // mutant: lane_made_of_a_lost_device
  place.store(made, std::memory_order_release);
  return *made;
}

bool Devices::Unretired(const VarPoints& points) const {
  const auto open = [&](const OrderPoint& p) { return p.seq && !lanes_[p.lane].load()->Retired(p.seq); };
  return open(points.write) || std::any_of(points.reads.begin(), points.reads.end(), open);
}

DeviceStats Devices::stats() const {
  DeviceStats out;
  const auto read = [](const std::atomic<uint64_t>& n) { return n.load(std::memory_order_relaxed); };
  out.records = read(records_);
  out.waits = read(waits_);
  out.waits_elided = read(elided_);
  out.events = read(events_made_);
  out.queries = read(queries_);
  out.host_waits = read(host_waits_);
  out.graph_captures = read(graph_captures_);
  out.graph_instantiations = read(graph_instantiations_);
  out.graph_updates = read(graph_updates_);
  out.graph_launches = read(graph_launches_);
  for (uint32_t i = 0; i < lanes(); ++i) {
    const DeviceLane& on = *lanes_[i].load(std::memory_order_acquire);
    out.retired += on.retired.load(std::memory_order_acquire);
    out.issued += on.settled.load(std::memory_order_acquire);
  }
  out.host_syncs = read(host_syncs_);
  out.lanes = lanes();
  return out;
}

std::unique_ptr<DeviceSide> MakeDevices(EngineCore& core, const EngineOptions& options, bool lost_by_fork) {
  return std::make_unique<Devices>(core, options, lost_by_fork);
}

void FreePoints(VarPoints* points) noexcept { delete points; }

}  // namespace engine::detail

namespace engine {

uint64_t LateLooks(const Engine& engine) { return detail::DevicesOf(*engine.core_).late_looks(); }

}  // namespace engine
