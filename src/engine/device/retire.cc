// Retirement: the host learns what has ended on the device.
//
// One thread for all lanes. It asks a device only while somebody wants to know (kAwake): an op or wait parked behind a lane,
// WaitAll, a push without room. What settles a plan's nodes is parked as well, and counts once somebody asks for the run's
// end (Ask). It then asks about awaited events only, or the oldest and the newest where nobody awaits a certain one. And it
// looks once, at all that has ended by then, where somebody might use that (AskOwners): a plan without a free frame, a pool
// without memory, whoever reads counters or asks what is pending, a lane with another kLookEach ops. Otherwise nobody
// waits, and it asks nothing: closures of ops that have ended wait for the next look. Host callbacks are not used: they cost
// tens of microseconds, during which the stream stands still, and never come once the context is in error.
//
// Two things have no waiter, and are looked at now and then (kDozing): collectives, which other ranks may make fail, and
// what still runs on a device that is lost. By the same clock it takes note of what waits have found by themselves.
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
  DeviceStatus recorded;
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
    recorded = HaveRecord(on, seq);
    if (asked) {  // counted by Ask
      attention_.store(true);
    } else {
      host_waits_.fetch_add(1, std::memory_order_relaxed);
      awaiting_.fetch_add(1);
    }
  }
  if (!recorded.ok()) Lose(*on.device, recorded);
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
    DeviceStatus recorded;
    {
      MutexLock lock(on.mu);
      recorded = HaveRecord(on, write.seq);
      const LaneRecord* at = on.records.Covering(write.seq);
      if (at) event = at->event;
    }
    if (!recorded.ok()) Lose(*on.device, recorded);
    if (!event) break;
    queries_.fetch_add(1, std::memory_order_relaxed);
    const DeviceStatus status = on.device->device->Query(event);
    if (status.ok() && rescued_.load() == 0) {
      NoteEnded(on, write.seq);
      return fine();
    }
    if (status.failed()) return false;
    const auto now = Clock::now();
    if (until == Clock::time_point{}) until = now + most;
    if (now >= until) return false;
    Pause();
  }
  return on.Retired(write.seq) && fine();
}

// A wait has seen that all up to `seq` has ended. The retirement thread takes it from here, in its own time: a wake would cost the
// waiter more than all else.
void Devices::NoteEnded(DeviceLane& on, uint64_t seq) {
  // relaxed, and the most of what is said: the thread acquires by the device what the work has done.
  uint64_t known = on.ended_at.load(std::memory_order_relaxed);
  while (known < seq &&
         !on.ended_at.compare_exchange_weak(known, seq, std::memory_order_release, std::memory_order_relaxed)) {
  }
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

Devices::Polled Devices::Poll(DeviceLane& on, bool looks) {
  using Loss = DeviceState::Loss;
  const auto loss = on.device->loss.load(std::memory_order_acquire);
  return loss == Loss::kNone ? PollRecords(on, looks) : PollLost(on, loss);
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
      return core_.HostWaits() || asked ? Polled::kAwaited : Polled::kWatched;
    }
    if (empty.failed()) on.device->loss.store(DeviceState::Loss::kGone, std::memory_order_release);
  }
  RetireUpTo(on, issued);
  return Polled::kRetired;
}

Devices::Polled Devices::PollRecords(DeviceLane& on, bool looks) {
  bool awaited = core_.HostWaits();
  looks |= on.use == DeviceLane::Use::kChannel;
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
    if (!awaited && !looks) oldest = newest = 0;
    if (asked || (awaited && on.records.empty())) status = HaveRecord(on, asked ? newest : issued);
    // In the middle of a run its record is still to come, unless a member of it takes its time.
    const uint64_t recorded = on.records.newest();
    if (status.ok() && (awaited || looks) && recorded < issued && (newest > recorded || on.records.empty())) {
      const auto now = Clock::now();
      if (on.unrecorded != issued) {
        on.unrecorded = issued;
        on.unrecorded_since = now;
      } else if (!(on.in_run && on.all_launched) && now - on.unrecorded_since > tuning::kRunPatience) {
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
  uint64_t ended = on.ended_at.load(std::memory_order_acquire);
  if (ended <= on.retired.load(std::memory_order_relaxed)) ended = 0;
  for (size_t i = 0; i < n && status.ok(); ++i) {
    queries_.fetch_add(1, std::memory_order_relaxed);
    const DeviceStatus s = on.device->device->Query(questions[i].event);
    if (s.failed() && !s.of_capture()) status = s;  // a capture that is in the way ends, and it is asked again
    if (!s.ok()) break;
    ended = std::max(ended, questions[i].seq);
  }
  if (!status.ok()) {
    Lose(*on.device, status);
    return Polled::kRetired;
  }
  // Behind the questions: what an abort has ended must fail first. Partner: Rescue.
  if (!ended || rescued_.load() != 0)
    return awaited ? Polled::kAwaited : on.use == DeviceLane::Use::kChannel ? Polled::kWatched : Polled::kRunning;
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
  bool looks = false;
  while (!stop_.load(std::memory_order_acquire)) {
    Polled best = Polled::kNothing;
    if (!entered && lanes() != 0) entered = lane(0).device->device->EnterThread().ok();
    looks |= attention_.exchange(false);       // before the look. Partner: AskOwners
    if (rescued_.load() != 0) PollChannels();  // first: what they had issued fails before it retires
    for (uint32_t i = 0; i < lanes(); ++i) best = std::max(best, Poll(lane(i), looks));
    looks &= best == Polled::kRetired;  // there may be more
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
      case Polled::kWatched:
      case Polled::kRunning:
        awake_since = {};
        pace_.store(kDozing);
        if (core_.HostWaits() || awaiting_.load() || attention_.load() || stop_.load())
          break;  // Partner: PollFaster, behind the announcement
        FutexWait(pace_, kDozing, Clock::now() + doze);
        dozed_on = pace_.load(std::memory_order_relaxed) == kDozing;
        doze = std::min(doze * 2, best == Polled::kWatched ? tuning::kDozeLongest : tuning::kDozeLongestUnasked);
        break;
      case Polled::kNothing:
        awake_since = {};
        // Then a look. Partner: the LightFence in WakeRetirement.
        pace_.store(kAsleep);
        HeavyFence();
        if (!Busy() && !stop_.load(std::memory_order_acquire) && !attention_.load()) {
          // A push that waits for room saw a device at work. Partner: its announcement in WaitForRoom.
          core_.NoteIdle();
          FutexWait(pace_, kAsleep);
        }
        break;
    }
  }
  GiveBack();
}

}  // namespace engine::detail
