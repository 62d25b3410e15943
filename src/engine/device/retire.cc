// Retirement: the host learns what has ended on the device.
//
// One thread for all lanes. It sleeps without work (kAsleep); looks every now and then while something runs that nobody
// awaits, so that closures go and pins are dropped (kDozing); and looks often while a host waiter exists (kAwake): an op
// or wait parked behind a lane, WaitAll, a push without room. What settles a plan's nodes is parked as well, and counts once
// somebody asks for the run's end (Ask). It asks about awaited events only, or the oldest and the
// newest where nobody awaits a certain one. Host callbacks are not used: they cost tens of microseconds and never come
// once the context is in error.
//
// A wait that finds its Var's last write issued looks at the event itself for as long as it may spin (PollWrite), so that
// the common short wait needs no other thread.
#include <sys/prctl.h>

#include <algorithm>

#include "device/devices.h"

namespace engine::detail {

thread_local constinit bool t_retiring = false;

namespace {

struct CountScope {
  explicit CountScope(std::atomic<uint32_t>& count) : count_(count) { count_.fetch_add(1); }
  ~CountScope() { count_.fetch_sub(1); }
  CountScope(const CountScope&) = delete;
  std::atomic<uint32_t>& count_;
};

}  // namespace

// True: parked until the lane has retired `seq`.
bool Devices::AwaitRetired(DeviceLane& on, uint64_t seq, OpRecord* op) {
  if (on.Retired(seq)) return false;
  {
    MutexLock lock(on.mu);
    if (on.Retired(seq)) return false;
    // Whoever retires it may start and end it at once: nothing of it is touched after the unlock.
    op->extra.state.store(OpState::kBehindDevice, std::memory_order_relaxed);
    const auto* const asked =
        KindOf(op).asked_for ? KindOf(op).asked_for(op) : nullptr;  // mutant: run_nobody_waits_for
    on.awaiting.push_back({seq, op, asked});
    // seq_cst, behind the push. Partner: Ask, which says so first and then has the thread look.
    if (!on.awaiting.back().Asked()) return true;
    if (asked) {  // counted by Ask
      attention_.store(true);
    } else {
      host_waits_.fetch_add(1, std::memory_order_relaxed);
      awaiting_.fetch_add(1);
    }
  }
  PollFaster();  // behind seq_cst writes. Partner: the looks behind kDozing in ThreadMain
  return true;
}

bool Devices::MayRunOnHost(OpRecord* op) {
  const auto ordered_there = KindOf(op).ordered_there;
  for (uint32_t i = 0; i < op->n_access; ++i) {
    if (ordered_there && ordered_there(op, i)) continue;
    Access& a = op->accesses()[i];
    VarPoints* points = CoreOf(a.var)->completer.points.load(std::memory_order_acquire);
    if (!points) continue;
    OrderPoint open;
    {
      MutexLock lock(points->mu);
      const auto look = [&](const OrderPoint& p) {
        if (p.seq && !lane(p.lane).Retired(p.seq)) open = p;
      };
      look(points->write);
      if (!a.read())
        for (const OrderPoint& p : points->reads) look(p);
    }
    if (open.seq && AwaitRetired(lane(open.lane), open.seq, op)) return false;
  }
  if (any_lost_.load(std::memory_order_acquire)) PassLostToVars(op);
  for (uint32_t i = 0; i < op->n_access; ++i) {
    Access& a = op->accesses()[i];
    VarPoints* points = CoreOf(a.var)->completer.points.load(std::memory_order_acquire);
    if (!points || a.read() || (ordered_there && ordered_there(op, i))) continue;
    MutexLock lock(points->mu);  // all of it is over, and we are alone
    points->write = {};
    points->reads.clear();
  }
  return true;
}

bool Devices::PollWrite(VarPoints& points, std::chrono::nanoseconds most) {
  OrderPoint write;
  {
    MutexLock lock(points.mu);
    write = points.write;
  }
  if (write.seq == 0) return true;
  DeviceLane& on = lane(write.lane);
  Clock::time_point until{};
  const auto fine = [&] {
    if (write.seq > on.good.load(std::memory_order_acquire)) return false;
    ErrorRecord* const error = ErrorOf(on, write.seq);
    if (error) error->Release();
    return !error;
  };
  for (;;) {
    if (on.Retired(write.seq)) return fine();
    if (most.count() == 0) return false;
    // Asked without the lane's lock, which each op that is issued needs. Should the event stand for a later number of the lane by
    // then, "reached" is as true.
    const CountScope asking(on.asking);
    Event event;
    {
      MutexLock lock(on.mu);
      const LaneRecord* at = on.records.Covering(write.seq);
      if (!at) break;
      event = at->event;
    }
    queries_.fetch_add(1, std::memory_order_relaxed);
    const DeviceStatus status = on.device->device->Query(event);
    if (status.ok() && rescued_.load() == 0) return fine();  // the thread finds it, too, and does the rest
    if (status.failed()) return false;
    const auto now = Clock::now();
    if (until == Clock::time_point{}) until = now + most;
    if (now >= until) return false;
    Pause();
  }
  return on.Retired(write.seq) && fine();
}

// Detaches what has retired up to `seq`, then does what waited for it.
void Devices::RetireUpTo(DeviceLane& on, uint64_t seq) {
  OpRecord* list = nullptr;
  ThreadSlot& slot = core_.Slot();
  Pass started{&slot};
  {
    MutexLock lock(on.mu);
    uint64_t retired = on.retired.load(std::memory_order_relaxed);
    OpRecord* last = nullptr;
    uint32_t launches = 0;
    // acquire: the issuer has let go of the block. Partner: the release in Settle. One that has not yet is for later.
    for (OpRecord* op = on.first;
         op && retired < seq && op->extra.state.load(std::memory_order_acquire) == OpState::kIssued;
         op = op->extra.next) {
      if (!list) list = op;
      last = op;
      launches += !op->extra.replayed;
      ++retired;
    }
    on.queued.fetch_sub(launches, std::memory_order_relaxed);
    if (last) {
      on.first = last->extra.next;
      last->extra.next = nullptr;
    }
    while (!on.records.empty() && on.records.front().seq <= retired) {  // mutant: event_used_again_too_early
      on.spare_events.push_back(on.records.front().event);
      on.records.PopFront();
    }
    on.retired.store(retired, std::memory_order_release);
    uint32_t ended = 0;
    std::erase_if(on.awaiting, [&](const DeviceLane::Awaiting& w) {
      if (w.seq > retired) return false;
      ended += !w.asked;
      ProductionEnv::AddReady(started, w.op);
      return true;
    });
    awaiting_.fetch_sub(ended, std::memory_order_relaxed);
  }
  Pass pass{&slot};
  const bool outer = std::exchange(t_retiring, true);
  while (OpRecord* op = list) {
    list = op->extra.next;
    const uint8_t epoch = op->extra.epoch;
    const ClosureType* type = op->extra.closure;
    if (type->destroy && !(op->extra.flags & kAsyncOp)) type->destroy(op->closure());
    op->extra.state.store(OpState::kFree, std::memory_order_relaxed);
    Protocol::DropPins(pass, op, 1);
    core_.NoteCompleted(slot, epoch);
  }
  t_retiring = outer;
  core_.Dispatch(pass, nullptr);
  core_.Dispatch(started, nullptr);
}

Devices::Polled Devices::Poll(DeviceLane& on) {
  using Loss = DeviceState::Loss;
  const auto loss = on.device->loss.load(std::memory_order_acquire);
  return loss == Loss::kNone ? PollRecords(on) : PollLost(on, loss);
}

// Of a lost device: all has ended, or will have when the stream is empty.
Devices::Polled Devices::PollLost(DeviceLane& on, DeviceState::Loss loss) {
  const uint64_t issued = on.issued.load(std::memory_order_acquire);  // before the question
  if (issued == on.retired.load(std::memory_order_acquire)) return Polled::kNothing;
  if (loss == DeviceState::Loss::kEnds) {
    queries_.fetch_add(1, std::memory_order_relaxed);
    const DeviceStatus empty = on.device->device->Query(on.stream);
    if (!empty.ok() && (!empty.failed() || empty.of_capture())) {
      MutexLock lock(on.mu);
      const bool asked = std::ranges::any_of(on.awaiting, &DeviceLane::Awaiting::Asked);
      return core_.HostWaits() || asked ? Polled::kAwaited : Polled::kRunning;
    }
    if (empty.failed()) on.device->loss.store(DeviceState::Loss::kGone, std::memory_order_release);
  }
  RetireUpTo(on, issued);
  return Polled::kRetired;
}

Devices::Polled Devices::PollRecords(DeviceLane& on) {
  bool awaited = core_.HostWaits();
  DeviceStatus status;
  struct Question {
    uint64_t seq;
    Event event;
  };
  std::array<Question, 2> questions{};
  size_t n = 0;
  {
    MutexLock lock(on.mu);
    const uint64_t issued = on.issued.load(std::memory_order_relaxed);
    if (on.retired.load(std::memory_order_relaxed) == issued) return Polled::kNothing;
    uint64_t oldest = on.records.empty() ? 0 : on.records.front().seq;
    uint64_t newest = on.records.newest();
    bool asked = false;
    for (const DeviceLane::Awaiting& w : on.awaiting) {
      if (!w.Asked()) continue;
      oldest = asked ? std::min(oldest, w.seq) : w.seq;
      newest = asked ? std::max(newest, w.seq) : w.seq;
      asked = true;
    }
    awaited |= asked;
    // In the middle of a run its record is still to come, unless a member of it takes its time.
    const uint64_t recorded = on.records.newest();
    if (recorded < issued && (newest > recorded || on.records.empty())) {
      const auto now = Clock::now();
      if (on.unrecorded != issued) {
        on.unrecorded = issued;
        on.unrecorded_since = now;
      } else if (now - on.unrecorded_since > tuning::kRunPatience) {
        status = RecordLocked(on);
        if (!asked) oldest = newest = issued;
      }
    }
    if (oldest)
      for (const uint64_t seq : {oldest, newest})
        if (const LaneRecord* at = on.records.Covering(seq); at && (n == 0 || at->seq != questions[0].seq))
          questions[n++] = {at->seq, at->event};
  }
  // Without the lock, as in PollWrite.
  uint64_t ended = 0;
  for (size_t i = 0; i < n && status.ok(); ++i) {
    queries_.fetch_add(1, std::memory_order_relaxed);
    const DeviceStatus s = on.device->device->Query(questions[i].event);
    if (s.failed() && !s.of_capture()) status = s;  // a capture that is in the way ends, and it is asked again
    if (!s.ok()) break;
    ended = questions[i].seq;
  }
  if (!status.ok()) {
    Lose(*on.device, status);
    return Polled::kRetired;
  }
  // Behind the questions: what an abort has ended must fail first. Partner: Rescue.
  if (!ended || rescued_.load() != 0) return awaited ? Polled::kAwaited : Polled::kRunning;
  RetireUpTo(on, ended);
  return Polled::kRetired;
}

bool Devices::Busy() const {
  for (uint32_t i = 0; i < lanes(); ++i) {
    const DeviceLane& l = *lanes_[i].load(std::memory_order_acquire);
    if (l.issued.load(std::memory_order_seq_cst) != l.retired.load(std::memory_order_acquire)) return true;
  }
  return false;
}

void Devices::Ask(std::atomic<bool>& asked) {
  // seq_cst, then AskOwners. Partner: the look in AwaitRetired, behind what it has parked.
  if (asked.load(std::memory_order_relaxed) || asked.exchange(true)) return;
  host_waits_.fetch_add(1, std::memory_order_relaxed);
  AskOwners();
}

void Devices::PollFaster() {
  if (pace_.exchange(kAwake) != kAwake) FutexWake(pace_, 1);
}

void Devices::ThreadMain() {
  pthread_setname_np(pthread_self(), "engine/retire");
  prctl(PR_SET_TIMERSLACK, 1);  // its naps are shorter than the usual slack
  const auto spin = core_.options().spin;
  auto doze = tuning::kDozeShortest;
  bool dozed_on = false;  // nobody has ended the doze
  Clock::time_point awake_since{};
  bool entered = false;
  while (!stop_.load(std::memory_order_acquire)) {
    Polled best = Polled::kNothing;
    if (!entered && lanes() != 0) entered = lane(0).device->device->EnterThread().ok();
    attention_.store(false);                   // before the look. Partner: AskOwners
    if (rescued_.load() != 0) PollChannels();  // first: what they had issued fails before it retires
    for (uint32_t i = 0; i < lanes(); ++i) best = std::max(best, Poll(lane(i)));
    rounds_.fetch_add(1);
    PollChannels();  // behind the lanes: what has ended is not found too late
    if (std::exchange(dozed_on, false) && best == Polled::kAwaited) late_looks_.fetch_add(1, std::memory_order_relaxed);
    switch (best) {
      case Polled::kRetired:
        doze = tuning::kDozeShortest;
        awake_since = {};
        break;
      case Polled::kAwaited: {
        pace_.store(kAwake);
        const auto now = Clock::now();
        if (awake_since == Clock::time_point{}) awake_since = now;
        if (now - awake_since < spin) {
          for (uint32_t i = 0; i < tuning::kIdlePauses; ++i) Pause();
        } else {
          FutexWait(nap_, 0, now + tuning::kAwaitNap);
        }
        break;
      }
      case Polled::kRunning:
        awake_since = {};
        pace_.store(kDozing);
        if (core_.HostWaits() || awaiting_.load() || attention_.load())
          break;  // Partner: PollFaster, behind the announcement
        FutexWait(pace_, kDozing, Clock::now() + doze);
        dozed_on = pace_.load(std::memory_order_relaxed) == kDozing;
        doze = std::min(doze * 2, tuning::kDozeLongest);
        break;
      case Polled::kNothing:
        awake_since = {};
        // seq_cst, then a look. Partner: the fence in RecordLocked.
        pace_.store(kAsleep);
        if (!Busy() && !stop_.load(std::memory_order_acquire) && !attention_.load()) {
          // A push that waits for room saw a device at work. Partner: its announcement in WaitForRoom.
          std::atomic_thread_fence(std::memory_order_seq_cst);
          core_.NoteIdle();
          FutexWait(pace_, kAsleep);
        }
        break;
    }
  }
  GiveBack();
}

}  // namespace engine::detail
