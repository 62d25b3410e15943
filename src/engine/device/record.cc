// Records: where the host, or another lane, needs an event behind what was issued on a lane (lane.h says when one is made).
#include <algorithm>

#include "device/devices.h"

namespace engine::detail {

// Sees to it that there is a record behind number `seq`: one that exists, a new one, or that at the end of the chain
// that is being issued.
DeviceStatus Devices::HaveRecord(DeviceLane& on, uint64_t seq) {
  if (on.records.newest() >= seq || on.Retired(seq) || on.device->lost.load(std::memory_order_acquire)) return {};
  if (!on.in_chain) return RecordLocked(on);
  on.wanted = true;
  return {};
}

// Whether the op asks for this lane by its number.
static bool IsFor(const OpRecord* op, const DeviceLane& on) {
  const uint32_t asked = op->extra.asked_lane;
  return asked < kMaxLanes && on.device->compute[asked].load(std::memory_order_acquire) == &on;
}

// Whether one of the ops that became ready will wait, on the host or on another lane, for what was issued on `on`.
bool Devices::NeedsRecord(const OpRecord* ready, const DeviceLane& on) {
  for (; ready; ready = ready->extra.next) {
    if (!(ready->extra.flags & kDeviceOp)) {
      // A deletion does not wait for devices, and a run of a plan rarely does.
      if (ready->extra.kind != OpKindId::kDelete && !KindOf(ready).ordered_there) return true;
      continue;
    }
    if (ready->extra.device != on.device->index) return true;
    if (ready->extra.asked_lane != Placement::kAnyLane && !IsFor(ready, on)) return true;
  }
  return false;
}

// An event is in a record or spare, so there is room for all that come back.
void Devices::MakeRoomForRecords(DeviceLane& lane) {
  lane.spare_events.reserve(2 * lane.records.most() + 9);
  lane.records.Grow();
}

// Records an event behind all that is issued on the lane. If there is no memory for one more record, or for its event,
// the newest goes on to the end: whoever waits for it waits for more than necessary. There is a record or a spare
// event, because a lane has one event from the beginning. (A device in software may run out of memory, too.)
DeviceStatus Devices::RecordLocked(DeviceLane& lane) noexcept {
  Device& device = *lane.device->device;
  const uint64_t issued = lane.issued.load(std::memory_order_relaxed);
  try {
    if (lane.records.full()) MakeRoomForRecords(lane);
  } catch (const std::bad_alloc&) {
  }
  bool anew = lane.records.full();
  Event event;
  DeviceStatus status;
  if (!anew && lane.spare_events.empty()) try {
      if (DeviceStatus s = device.CreateEvent(&event); !s.ok()) return s;
      events_made_.fetch_add(1, std::memory_order_relaxed);
    } catch (const std::bad_alloc&) {
      anew = true;
    }
  if (anew) {
    event = lane.records.back().event;
  } else if (!event) {
    event = lane.spare_events.back();
    lane.spare_events.pop_back();
  }
  try {
    status = device.Record(event, lane.stream);
  } catch (const std::bad_alloc&) {
    status = no_memory_;
  }
  if (!status.ok()) {
    if (!anew) lane.spare_events.push_back(event);
    return status;
  }
  records_.fetch_add(1, std::memory_order_relaxed);
  lane.wanted = false;
  if (anew) {
    lane.records.Extend(issued, lane.clock);
  } else {
    lane.records.PushBack({issued, event, lane.clock});
  }
  return {};
}

void Devices::Record(DeviceLane& on, uint64_t seq) {
  DeviceStatus status;
  {
    MutexLock lock(on.mu);
    status = HaveRecord(on, seq);
  }
  if (!status.ok()) Lose(*on.device, status);
}

void Devices::EndDispatch(DeviceLane& on) {
  DeviceStatus status;
  {
    MutexLock lock(on.mu);
    on.in_chain = false;
    if (IsDue(on)) status = RecordLocked(on);
  }
  if (!status.ok()) Lose(*on.device, status);
}

// Whether the end of a chain gets a record: because somebody needs it, or because enough ops have none.
bool Devices::IsDue(const DeviceLane& on) {
  const uint64_t recorded = std::max(on.retired.load(std::memory_order_relaxed), on.records.newest());
  const uint64_t open = on.issued.load(std::memory_order_relaxed) - recorded;
  return open != 0 && (on.wanted || on.use >= DeviceLane::Use::kCopies || open >= tuning::kOpsARecord);
}

// The issuer has run out of ops. A record delays nobody now, and whoever comes later waits for no more than necessary.
void Devices::NoteIdle(Worker& worker) {
  for (uint32_t m = std::exchange(worker.lanes, 0); m; m &= m - 1) {
    DeviceLane& on = lane(static_cast<uint32_t>(__builtin_ctz(m)));
    Record(on, on.issued.load(std::memory_order_relaxed));
  }
}

}  // namespace engine::detail
