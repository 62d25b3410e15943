#include "core/admission.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "core/core.h"
#include "core/hook_frame.h"
#include "engine/room_watch.h"

namespace engine {
namespace {

thread_local constinit RoomWatch* t_room_watch = nullptr;

}  // namespace

RoomWatch::RoomWatch(std::chrono::nanoseconds period, std::function<void()> look)
    : period_(period), look_(std::move(look)), outer_(std::exchange(t_room_watch, this)) {}

RoomWatch::~RoomWatch() { t_room_watch = outer_; }

namespace detail {

void Admission::Refuse(const std::string& what) {
  throw UsageError("push after shutdown: " + what +
                   ", and the engine takes no more; push before its end, or to another engine");
}

bool Admission::MayPushLate(const EngineCore& core) {
  return t_frame && t_frame->core == &core && core.phase() == Phase::kDraining;
}

bool Admission::MakeRoom(ThreadSlot& slot, bool may_wait) {
  const EngineOptions& options = core_.options();
  const Arena& ops = core_.ops();
  if (ops.outstanding() >= options.hard_max_pending && core_.slots().Pending() >= options.hard_max_pending)
    throw BackPressureError("the hard bound of " + std::to_string(options.hard_max_pending) +
                            " pending ops is reached: wait for some of them, or raise the option hard_max_pending");
  // Inside an op, or inside a hook that occupies a worker, a wait for room could be a wait for itself.
  if (t_frame || HookFrame::Inside(&core_, HookFrame::Kind::kWorker)) return true;
  if (ops.outstanding() + ops.magazine() <= options.max_pending || core_.slots().Pending() < options.max_pending)
    return true;
  if (!may_wait) return false;
  WaitForRoom(slot);  // mutant: unbounded_pending
  return true;
}

// Pushes that wait go on when no more ops than this are pending.
static uint64_t Enough(size_t max_pending) { return max_pending - (max_pending + 1) / tuning::kRefillDivisor; }

// Announced: a push that waits for room. In a fork's child, whose Admission is a new one, it is nobody's.
class Admission::Announced {
 public:
  // The announcement comes first, then the look at workers and devices. Partners: NoteIdle, which a worker or the retirement
  // thread calls after it has announced its sleep; and the LightFence of a completer, behind its count.
  explicit Announced(Admission& admission) : admission_(admission) {
    admission_.waiters_.fetch_add(1, std::memory_order_seq_cst);
    HeavyFence();
  }
  ~Announced() {
    if (InChild()) return;
    admission_.waiters_.fetch_sub(1, std::memory_order_relaxed);
    admission_.core_.caller_pool().PassOn();
  }
  Announced(const Announced&) = delete;
  bool InChild() const { return Forks() != forks_; }

 private:
  Admission& admission_;
  const uint32_t forks_ = Forks();
};

void Admission::WaitForRoom(ThreadSlot& slot) {
  const TracedWait traced(WaitCause::kRoom);
  slot.backpressure_waits.Add();
  const uint64_t enough = Enough(core_.options().max_pending);
  const Announced announced(*this);
  core_.chains().ReleaseAll();  // a push into a chain after this sees Waiters() and releases the chain itself
  uint64_t left = 0;
  Clock::time_point patience{};
  const RoomWatch* const watch = t_room_watch;
  Clock::time_point look = watch ? Clock::now() + watch->period_ : kNever;
  for (;;) {
    if (watch && Clock::now() >= look) {
      watch->look_();
      if (announced.InChild()) [[unlikely]]
        throw ForkedWhilePending(
            "a push that waited for room was looked after by code that forked; what it pushes happens in the parent");
      look = Clock::now() + watch->period_;
    }
    const uint32_t seq = changes_.load(std::memory_order_acquire);
    const uint64_t pending = core_.slots().Pending();
    if (pending <= enough) break;
    const bool device_busy = core_.PollBusyFaster();
    const bool stopped = core_.Stopped();  // mutant: push_drives_while_stopped
    // Looks first, because a run that ends wakes the pushes that wait, and this one is among them.
    if (!stopped && core_.pool(kCallerPool).HasReady() && core_.DriveOne()) {
      if (announced.InChild()) [[unlikely]]
        throw ForkedWhilePending(
            "an op that a push ran while it waited for room has forked; what it pushes happens in the parent");
      continue;
    }
    core_.EndOwnRun(slot);
    const auto sleep = [&](Clock::time_point until) {
      core_.caller_pool().Sleep({&changes_, true}, seq, std::min(until, look), !stopped);
    };
    if (HostMayProgress() || (!stopped && OthersRun())) {  // mutant: driven_ops_are_overlooked
      sleep(kNever);
    } else if (device_busy) {
      // The device may run a collective that waits for its peers, and they may wait for what this push would bring. So
      // we wait for a device only as long as ops end there from time to time.
      const auto now = Clock::now();
      if (std::exchange(left, pending) != pending) patience = now + tuning::kRoomOnDevice;
      if (now >= patience) break;
      sleep(patience);
    } else if (core_.slots().PushInProgress()) {
      sched_yield();  // that push may queue the op that all others wait for; if it does not, nobody wakes us
    } else {
      break;
    }
  }
}

bool Admission::HostMayProgress() {
  bool possible = false;
  core_.pools().ForEach([&](const Pool& p) { possible |= p.index() != kCallerPool && !p.Quiet(); });
  return possible;
}

// What is even, and unchanged at the second look, was so at the look between them.
bool Admission::OthersRun() {
  const Slots::Runs runs = core_.slots().OwnRuns();
  return runs.under_way || core_.pool(kCallerPool).HasReady() || core_.slots().OwnRuns().count != runs.count;
}

void Admission::NoteEnd(ThreadSlot& slot, const Worker* worker) {
  // The sum over all slots is taken once in kMagazine ops of a worker; always for other threads, and where the bound is
  // small.
  const uint64_t done = slot.completed[0].Read() + slot.completed[1].Read();
  const size_t most = core_.options().max_pending;
  if (worker && most >= 8 * tuning::kMagazine && done % tuning::kMagazine) return;
  if (core_.slots().Pending() <= Enough(most)) Wake();
}

void Admission::Wake() {
  changes_.fetch_add(1, std::memory_order_release);
  FutexWake(changes_, kEveryone);
}

}  // namespace detail
}  // namespace engine
