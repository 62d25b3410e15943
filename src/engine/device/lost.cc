// A device that is lost: no further call is made on it. What was issued and had not retired fails with it, all by one
// error that names the ops; its Vars are poisoned when somebody looks at them: a point beyond the last good number of its
// lane says so. What is pushed to the device later is skipped with the same error.
#include <string>

#include "core.h"
#include "device/devices.h"

namespace engine::detail {

void Devices::Lose(DeviceState& state, const DeviceStatus& why) {
  std::string text;
  uint64_t count = 0;
  std::vector<DeviceLane*> of_device;
  for (uint32_t i = 0; i < lanes(); ++i)
    if (lane(i).device == &state) of_device.push_back(&lane(i));
  for (DeviceLane* on : of_device) {
    MutexLock lock(on->mu);
    if (!on->first) continue;
    const auto describe = [&](const OpRecord* op) {
      return "'" + std::string(*op->extra.name ? op->extra.name : "an unnamed op") + "' (" + op->extra.file + ":" +
             std::to_string(op->extra.line) + ")";
    };
    const uint64_t n = on->issued.load(std::memory_order_relaxed) - on->retired.load(std::memory_order_relaxed);
    count += n;
    text += (text.empty() ? "" : "; ") + on->name + ": " + describe(on->first);
    if (n > 1) text += " to " + describe(on->last);
  }
  const DeviceInfo& info = state.device->info();
  text = "device " + std::to_string(state.index) + " (" + info.kind + ") was lost: " + why.text() + "; " +
         std::to_string(count) + " ops were issued and had not ended" + (text.empty() ? "" : ": " + text);
  auto cause = std::make_exception_ptr(DeviceError(DeviceStatus::Fail(why.code(), true, why.native_code(), text)));
  ErrorRecord* error = ErrorRecord::NewRoot("", {}, cause);
  {
    MutexLock lock(lost_mu_);
    if (state.lost.load(std::memory_order_relaxed)) {
      error->Release();  // others saw it, too
      return;
    }
    for (DeviceLane* on : of_device) {
      MutexLock lane_lock(on->mu);
      on->good.store(on->retired.load(std::memory_order_relaxed), std::memory_order_release);
    }
    // release: `good` of its lanes. A lane that is made later has `good` 0 from the start.
    state.lost.store(error, std::memory_order_release);
    any_lost_.store(true, std::memory_order_release);
  }
  core_.errors_.Add(error);
  Kick();  // the thread retires what is left
}

// What waits for other ranks need not lose its device: it is aborted first, and looked at again in the next round.
void Devices::LoseBusy() {
  const char* const kWhy = "the engine was shut down, and it was not done within drain_timeout";
  if (AbortChannels(kWhy)) return;
  for (uint32_t i = 0; i < lanes(); ++i) {
    DeviceLane& on = lane(i);
    if (on.issued.load(std::memory_order_acquire) == on.retired.load(std::memory_order_acquire)) continue;
    if (on.device->lost.load(std::memory_order_acquire)) continue;
    Lose(*on.device, DeviceStatus::Fail(DeviceCode::kUnknown, true, 0, kWhy));
  }
}

// Turns the loss of a lane into the poison of the Vars that the op names, so that all that follows is as usual.
void Devices::PassLostToVars(OpRecord* op) {
  for (uint32_t i = 0; i < op->n_access; ++i) {
    VarCore* const var = CoreOf(op->accesses()[i].var);
    VarPoints* points = var->completer.points.load(std::memory_order_acquire);
    if (!points) continue;
    OrderPoint write;
    {
      MutexLock lock(points->mu);
      write = points->write;
    }
    if (write.seq == 0) continue;
    ErrorRecord* const error = ErrorOf(lane(write.lane), write.seq);
    if (!error) continue;
    {
      MutexLock lock(points->mu);
      const bool first = points->write.seq == write.seq && points->write.lane == write.lane;  // of several readers
      if (first) {
        points->write = {};
        core_.SetPoison(var, error);
      }
    }
    error->Release();
  }
}

ErrorRecord* Devices::LostWith(VarCore* var) {
  VarPoints* points = var->completer.points.load(std::memory_order_acquire);
  if (!any_lost_.load(std::memory_order_acquire) || !points) return nullptr;
  OrderPoint write;
  {
    MutexLock lock(points->mu);
    write = points->write;
  }
  return write.seq == 0 ? nullptr : ErrorOf(lane(write.lane), write.seq);
}

}  // namespace engine::detail
