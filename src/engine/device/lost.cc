// Lost devices. Nothing is issued to a lost device any more. The ops that were issued and had not retired fail, all
// with one error that names them. A Var is poisoned when the next op or wait comes to it and its point lies beyond the
// last good number of its lane. Ops that are pushed to the device later are skipped with the same error.
//
// A sticky error ends the work on the device, so the ops end at once, and the device is not called any more. After any
// other error its kernels may still run: then ops fail only when their stream is empty, so that whoever sees the
// failure may free what the kernels used. The retirement thread asks each stream, without blocking. The watchdog names
// a kernel that never ends, as on any device; a shutdown gives it up after drain_timeout.
#include <string>

#include "core/core.h"
#include "device/devices.h"

namespace engine::detail {

// "'first' (a.cc:1)"
std::string NameAndSite(const OpRecord* op) {
  return "'" + std::string(*op->extra.name ? op->extra.name : "an unnamed op") + "' (" + At(op->site()) + ")";
}

// "2 ops were issued and had not ended: gpu0/1: 'first' (a.cc:1) to 'last' (a.cc:2)"
std::string Devices::DescribeIssued(const DeviceState& state) {
  std::string text;
  uint64_t count = 0;
  for (uint32_t i = 0; i < lanes(); ++i) {
    DeviceLane& on = lane(i);
    if (on.device != &state) continue;
    MutexLock lock(on.mu);
    if (!on.first) continue;
    const uint64_t n = on.issued.load(std::memory_order_relaxed) - on.retired.load(std::memory_order_relaxed);
    count += n;
    text += std::string(text.empty() ? "" : "; ") + on.name.c_str() + ": " + NameAndSite(on.first);
    if (n > 1) text += " to " + NameAndSite(on.last);
  }
  return std::to_string(count) + " ops were issued and had not ended" + (text.empty() ? "" : ": " + text);
}

void Devices::Lose(DeviceState& state, const DeviceStatus& why) {
  if (why.of_capture()) return;  // another thread's capture was in the way; the next poll records what is missing
  using Loss = DeviceState::Loss;
  std::exception_ptr cause;
  try {
    const std::string text = "device " + std::to_string(state.index) + " (" + state.device->info().kind +
                             ") was lost: " + why.text() + "; " + DescribeIssued(state);
    cause = std::make_exception_ptr(DeviceError(DeviceStatus::Fail(why.code(), true, why.native_code(), text)));
  } catch (...) {  // there is no memory to say more
    cause = std::current_exception();
  }
  ErrorRecord* error = ErrorRecord::NewRoot("", {}, cause);
  {
    MutexLock lock(lost_mu_);
    if (state.lost.load(std::memory_order_relaxed)) {
      error->Release();  // another thread was first
      if (why.sticky()) state.loss.store(Loss::kGone, std::memory_order_release);
      return;
    }
    // seq_cst, then a look at the lanes. Partner: LaneOf, which publishes a lane before it looks at this.
    state.lost.store(error);
    any_lost_.store(true, std::memory_order_release);
    for (uint32_t i = 0; i < n_lanes_.load(); ++i) {
      DeviceLane& on = lane(i);
      if (on.device != &state) continue;
      MutexLock lane_lock(on.mu);
      on.good.store(on.retired.load(std::memory_order_relaxed), std::memory_order_release);
    }
    const Loss loss = why.sticky() ? Loss::kGone : Loss::kFinishing;  // mutant: lost_device_not_drained
    // From here on numbers that have failed may retire. Partner: Poll.
    state.loss.store(loss, std::memory_order_release);
  }
  core_.NoteError(error);
  PollFaster();  // the thread retires what is left
}

// At shutdown: the work that was to end on a lost device did not.
void Devices::GiveUp(DeviceState& state) {
  const std::string text = "device " + std::to_string(state.index) + " (" + state.device->info().kind +
                           "), which was lost, was not done within drain_timeout: " + DescribeIssued(state) +
                           "; what they use may still be written";
  auto cause = std::make_exception_ptr(DeviceError(DeviceStatus::Fail(DeviceCode::kUnknown, true, 0, text)));
  ErrorRecord* const error = ErrorRecord::NewRoot("", {}, cause);
  core_.NoteError(error);
  error->Release();
  state.loss.store(DeviceState::Loss::kGone, std::memory_order_release);
  PollFaster();
}

// Work that waits for other ranks is aborted first, which need not lose its device; a later round looks again. What was aborted
// has a while to end, because on a busy machine the next round comes before the retirement thread has had a turn.
void Devices::LoseBusy() {
  const char* const kWhy = "the engine was shut down, and it was not done within drain_timeout";
  constexpr std::chrono::milliseconds kAbortedWorkEnds{250};
  if (AbortChannels(kWhy)) {
    channels_aborted_ = Clock::now();
    return;
  }
  if (Clock::now() - channels_aborted_ < kAbortedWorkEnds) return;
  for (uint32_t i = 0; i < lanes(); ++i) {
    DeviceLane& on = lane(i);
    if (on.issued.load(std::memory_order_acquire) == on.retired.load(std::memory_order_acquire)) continue;
    switch (on.device->loss.load(std::memory_order_acquire)) {
      case DeviceState::Loss::kNone: Lose(*on.device, DeviceStatus::Fail(DeviceCode::kUnknown, true, 0, kWhy)); break;
      case DeviceState::Loss::kFinishing: GiveUp(*on.device); break;
      case DeviceState::Loss::kGone: break;
    }
  }
}

// If the last device work on a Var of the op was lost, poisons the Var, so that all that follows goes as usual.
void Devices::PassLostToVars(OpRecord* op) {
  for (uint32_t i = 0; i < op->n_access; ++i) {
    VarCore* const var = CoreOf(op->accesses()[i].var);
    VarPoints* points = var->completer.points.load(std::memory_order_acquire);
    if (!points) continue;
    const OrderPoint write = points->LastWrite();
    if (write.seq == 0) continue;
    ErrorRecord* const error = ErrorOf(lane(write.lane), write.seq);
    if (!error) continue;
    {
      MutexLock lock(points->mu);
      // Else another reader was first.
      const bool first = points->write.seq == write.seq && points->write.lane == write.lane;
      if (first) {
        // A collective's failure leaves the work behind it on its way: until that is over, the next op must come behind it.
        const bool over = lane(write.lane).Retired(write.seq);  // mutant: failed_work_overtaken
        if (over) points->write = {};
        // An error that is there already stays: other readers may be looking at it.
        const bool has_one = var->completer.poison.load(std::memory_order_relaxed);  // mutant: lost_replaces_error
        if (!has_one) core_.SetPoison(var, error);
      }
    }
    error->Release();
  }
}

ErrorRecord* Devices::LostWith(VarCore* var) {
  VarPoints* points = var->completer.points.load(std::memory_order_acquire);
  if (!any_lost_.load(std::memory_order_acquire) || !points) return nullptr;
  const OrderPoint write = points->LastWrite();
  return write.seq == 0 ? nullptr : ErrorOf(lane(write.lane), write.seq);
}

}  // namespace engine::detail
