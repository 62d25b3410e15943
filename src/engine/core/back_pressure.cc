// Back-pressure: bounds on pending ops.
//
// Soft: a push from outside waits while max_pending ops are pending, but only while some op is ready or running:
// what waits for completions of its own pusher must not stop it. Checked when a thread's block cache is empty, so a
// bound may be exceeded by a magazine a thread. Hard: any push beyond throws.
#include <sched.h>

#include <utility>

#include "core/core.h"
#include "core/hook_frame.h"

namespace engine::detail {

// Exact when nobody pushes or completes: completed counts are read first, so the difference is never too small.
uint64_t EngineCore::Pending() {
  MutexLock lock(slots_mu_);
  uint64_t done = 0, pushed = 0;
  for (const auto& s : slots_) done += s->completed[0].Read() + s->completed[1].Read();
  for (const auto& s : slots_) pushed += s->pushed[0].Read() + s->pushed[1].Read();
  return pushed - done;
}

uint64_t EngineCore::ProgressMark() {
  MutexLock lock(slots_mu_);
  uint64_t mark = 0;
  for (const auto& s : slots_) mark += s->completed[0].Read() + s->completed[1].Read();
  return mark;
}

bool EngineCore::MakeRoom(ThreadSlot& slot, bool may_wait) {
  if (ops_.outstanding() >= options_.hard_max_pending && Pending() >= options_.hard_max_pending)
    throw BackPressureError("the hard bound of " + std::to_string(options_.hard_max_pending) +
                            " pending ops is reached (EngineOptions::hard_max_pending)");
  // Inside an op, or a hook that keeps its worker: waiting here could be waiting for itself.
  if (t_frame || HookFrame::Inside(this, HookFrame::Kind::kWorker)) return true;
  if (ops_.outstanding() + ops_.magazine() <= options_.max_pending || Pending() < options_.max_pending) return true;
  if (!may_wait) return false;
  WaitForRoom(slot);  // mutant: unbounded_pending
  return true;
}

void EngineCore::WaitForRoom(ThreadSlot& slot) {
  slot.backpressure_waits.Add();
  const uint64_t enough = options_.max_pending - (options_.max_pending + 1) / tuning::kRefillDivisor;
  // seq_cst, then a look at the workers and devices. Partners: NoteIdle, after a worker or the retirement thread has announced
  // its sleep; and the LightFence in Finish, behind its count.
  room_waiters_.fetch_add(1, std::memory_order_seq_cst);
  HeavyFence();
  chains_.ReleaseAll();  // one that is appended to later sees room_waiters_
  uint64_t left = 0;
  Clock::time_point patience{};
  for (;;) {
    const uint32_t seq = room_seq_.load(std::memory_order_acquire);
    const uint64_t pending = Pending();
    if (pending <= enough) break;
    const bool device_busy = has_devices_.load(std::memory_order_relaxed) && devices_->Busy();
    if (device_busy) devices_->Kick();
    if (!Stopped() && DriveOne()) continue;  // mutant: push_drives_while_stopped
    if (HostMayProgress()) {
      FutexWait(room_seq_, seq);
    } else if (device_busy) {
      // A collective waits for its peers, which may be waiting for what this push would bring. So a device alone is waited for
      // only as long as ops end there from time to time.
      const auto now = Clock::now();
      if (std::exchange(left, pending) != pending) patience = now + tuning::kRoomOnDevice;
      if (now >= patience) break;
      FutexWait(room_seq_, seq, patience);
    } else if (PushInProgress()) {
      sched_yield();  // it may be about to post the op that all others wait for; nobody will wake us if it is not
    } else {
      break;
    }
  }
  room_waiters_.fetch_sub(1, std::memory_order_relaxed);
}

bool EngineCore::HostMayProgress() {
  bool possible = false;
  ForEachPool([&](class Pool& p) { possible |= p.index() != kCallerPool && !p.Quiet(); });
  return possible;
}

bool EngineCore::PushInProgress() {
  MutexLock lock(slots_mu_);
  for (const auto& s : slots_)
    if (s->pushing.load(std::memory_order_acquire)) return true;
  return false;
}

void EngineCore::NoteRoom(ThreadSlot& slot, Worker* worker) {
  // A sum over the slots now and then; every time where a worker's rhythm doesn't tell.
  const uint64_t done = slot.completed[0].Read() + slot.completed[1].Read();
  if (worker && options_.max_pending >= 8 * tuning::kMagazine && done % tuning::kMagazine) return;
  if (Pending() <= options_.max_pending - (options_.max_pending + 1) / tuning::kRefillDivisor) WakeRoom();
}

void EngineCore::WakeRoom() {
  room_seq_.fetch_add(1, std::memory_order_release);
  FutexWake(room_seq_, kEveryone);
}

void EngineCore::NoteIdle() {
  if (room_waiters_.load(std::memory_order_relaxed)) WakeRoom();
  if (draining_.load(std::memory_order_relaxed)) NoteDrain();
}

}  // namespace engine::detail
