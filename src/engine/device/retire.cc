// Retirement: the host learns what has ended on the device.
//
// One thread, the retirement thread, asks the devices. What it does depends on who wants to know:
//   kAwake    somebody waits: an op or a wait that is parked behind a lane, WaitAll, or a push without room. (The op that
//             settles a plan's nodes is parked as well; it counts as soon as somebody asks for the run's end, see Ask.)
//             The thread asks about the awaited events, or, if nobody awaits a certain event, about the oldest and the
//             newest.
//   one look  somebody may have a use for what has ended (AskOwners): a plan without a free frame, a pool without memory,
//             a reader of counters, a lane with another kLookEach ops. The thread retires all that has ended by then.
//   kDozing   nobody waits, but something may happen unasked: another rank makes a collective fail, or work ends on a lost
//             device. The thread looks now and then. It also takes note of what waiting threads have found by themselves.
//   kAsleep   nothing is issued that has not retired.
// While nobody wants to know, the closures of ops that have ended stay until the next look. Callbacks of the device on the
// host are not used: each costs tens of microseconds, during which the stream stands still, and after an error none comes.
//
// A wait for a Var whose last write is issued asks about the event itself, once at least, and for as long as it may spin
// (PollWrite). So the common short wait needs no other thread, and whoever only asks whether a Var has settled hears of it.
#include <sys/prctl.h>

#include <algorithm>

#include "device/devices.h"

namespace engine::detail {

thread_local constinit const Devices* t_retiring = nullptr;

// The devices whose retirement thread this is; null: of none.
static thread_local constinit const Devices* t_looks_after = nullptr;

namespace {

struct CountScope {
  explicit CountScope(std::atomic<uint32_t>& count) : count_(count) { count_.fetch_add(1); }
  ~CountScope() { count_.fetch_sub(1); }
  CountScope(const CountScope&) = delete;
  std::atomic<uint32_t>& count_;
};

}  // namespace

// Parks the op until the lane has retired `seq`. False: it has already, and the op may go on.
bool Devices::AwaitRetired(DeviceLane& on, uint64_t seq, OpRecord* op) {
  if (on.Retired(seq)) return false;
  DeviceStatus recorded;
  {
    MutexLock lock(on.mu);
    if (on.Retired(seq)) return false;
    // After the unlock the op is not touched any more: whoever retires `seq` may start it, and it may end, at once.
    op->extra.state.store(OpState::kBehindDevice, std::memory_order_relaxed);
    const auto asked_for = KindOf(op).asked_for;
    const auto* const asked = asked_for ? asked_for(op) : nullptr;  // mutant: run_nobody_waits_for
    bool listed = true;
    try {
      on.awaiting.push_back({seq, op, asked});
    } catch (const std::bad_alloc&) {
      listed = false;
      op->extra.next = std::exchange(on.awaiting_any, op);
    }
    // seq_cst, after the op is in the list. Partner: Ask sets the word first, and then has the retirement thread look
    // at the list.
    if (listed && !on.awaiting.back().Asked()) return true;
    recorded = HaveRecord(on, seq);
    if (listed && asked) {  // counted by Ask
      asked_.store(true);
    } else {
      host_waits_.fetch_add(1, std::memory_order_relaxed);
      awaiting_.fetch_add(1);
    }
  }
  if (!recorded.ok()) Lose(*on.device, recorded);
  PollFaster();  // after the seq_cst writes above. Partner: the looks that follow kDozing in ThreadMain
  return true;
}

bool Devices::MayRunOnHost(OpRecord* op) {
  const auto ordered_there = KindOf(op).ordered_there;
  for (uint32_t i = 0; i < op->n_access; ++i) {
    if (ordered_there && ordered_there(op, i)) continue;
    Access& a = op->accesses()[i];
    VarPoints* points = CoreOf(a.var)->completer.points.load(std::memory_order_acquire);
    if (!points) continue;
    // Again, if what was found open has just retired: another lane may still be open.
    for (;;) {
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
      if (open.seq == 0) break;
      if (AwaitRetired(lane(open.lane), open.seq, op)) return false;  // mutant: awaits_one_lane_only
    }
  }
  if (any_lost_.load(std::memory_order_acquire)) PassLostToVars(op);
  for (uint32_t i = 0; i < op->n_access; ++i) {
    Access& a = op->accesses()[i];
    VarPoints* points = CoreOf(a.var)->completer.points.load(std::memory_order_acquire);
    if (!points || a.read() || (ordered_there && ordered_there(op, i))) continue;
    MutexLock lock(points->mu);  // all work on the Var is over, and no other op has it
    points->write = {};
    points->reads.clear();
  }
  return true;
}

bool Devices::PollWrite(VarPoints& points, std::chrono::nanoseconds most) {
  const OrderPoint write = points.LastWrite();
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
    // The query is made without the lane's lock, which every op that is issued needs. If the event has been recorded
    // anew by then, for a later number of the lane, the answer "reached" is still true of ours.
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

// A waiting thread has seen that all up to `seq` has ended. The retirement thread finds this at its next look; it is
// not woken, because that would cost the waiting thread more than all else.
void Devices::NoteEnded(DeviceLane& on, uint64_t seq) {
  // release: the look at the device. Partner: the acquire in PollRecords. relaxed load: only the greatest number
  // counts.
  uint64_t known = on.ended_at.load(std::memory_order_relaxed);
  while (known < seq &&
         !on.ended_at.compare_exchange_weak(known, seq, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

// Retires the ops up to `seq`, and starts the ops that waited for them.
void Devices::RetireUpTo(DeviceLane& on, uint64_t seq) {
  OpRecord* list = nullptr;
  ThreadSlot& slot = core_.Slot();
  Pass started{&slot};
  {
    MutexLock lock(on.mu);
    uint64_t retired = on.retired.load(std::memory_order_relaxed);
    OpRecord* last = nullptr;
    uint32_t launches = 0;
    // acquire: the issuer does not touch the block any more. Partner: the release in Settle. An op that is not there
    // yet, and those behind it, retire at the next look.
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
    while (!on.records.empty()) {
      if (on.records.front().seq > retired) break;  // mutant: event_used_again_too_early
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
    while (OpRecord* op = on.awaiting_any) {
      on.awaiting_any = op->extra.next;
      ++ended;
      ProductionEnv::AddReady(started, op);
    }
    awaiting_.fetch_sub(ended, std::memory_order_relaxed);
  }
  core_.Dispatch(started, nullptr);  // before the closures, whose destructors may wait for these ops
  Pass pass{&slot};
  const Devices* const outer = std::exchange(t_retiring, this);
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
}

bool Devices::OnThisThread() const { return t_looks_after == this || t_retiring == this; }

bool Devices::LookInPassing() {
  if (!OnThisThread()) return false;
  for (uint32_t i = 0; i < lanes(); ++i) Poll(lane(i), true);
  return true;
}

Devices::Polled Devices::Poll(DeviceLane& on, bool looks) {
  using Loss = DeviceState::Loss;
  const auto loss = on.device->loss.load(std::memory_order_acquire);
  return loss == Loss::kNone ? PollRecords(on, looks) : PollLost(on, loss);
}

// Of a lost device: its ops end when the stream is empty, or at once if the device is not asked any more.
Devices::Polled Devices::PollLost(DeviceLane& on, DeviceState::Loss loss) {
  const uint64_t issued = on.issued.load(std::memory_order_acquire);  // before the question: the answer is about these
  if (issued == on.retired.load(std::memory_order_acquire)) return Polled::kNothing;
  if (loss == DeviceState::Loss::kFinishing) {
    queries_.fetch_add(1, std::memory_order_relaxed);
    const DeviceStatus empty = on.device->device->Query(on.stream);
    if (!empty.ok() && (!empty.failed() || empty.of_capture())) {
      MutexLock lock(on.mu);
      const bool asked = on.awaiting_any || std::ranges::any_of(on.awaiting, &DeviceLane::Awaiting::Asked);
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
    if (on.awaiting_any) {
      newest = issued;
      asked = true;
    }
    awaited |= asked;
    if (!awaited && !looks) oldest = newest = 0;
    if (asked || (awaited && on.records.empty())) status = HaveRecord(on, asked ? newest : issued);
    // In the middle of a chain no record is made here, because the chain's end makes one. But a body of the chain may
    // block; so after kChainPatience it is made here. If the whole chain was launched as a graph, no body can block,
    // and the issuer only waits for a processor.
    const uint64_t recorded = on.records.newest();
    if (status.ok() && (awaited || looks) && recorded < issued && (newest > recorded || on.records.empty())) {
      const auto now = Clock::now();
      if (on.unrecorded != issued) {
        on.unrecorded = issued;
        on.unrecorded_since = now;
      } else if (!(on.in_chain && on.all_launched) && now - on.unrecorded_since > tuning::kChainPatience) {
        status = RecordLocked(on);
        if (!asked) oldest = newest = issued;
      }
    }
    if (oldest)
      for (const uint64_t seq : {oldest, newest})
        if (const LaneRecord* at = on.records.Covering(seq); at && (n == 0 || at->seq != questions[0].seq))
          questions[n++] = {at->seq, at->event};
  }
  // The queries are made without the lock, as in PollWrite.
  uint64_t ended = on.ended_at.load(std::memory_order_acquire);
  if (ended <= on.retired.load(std::memory_order_relaxed)) ended = 0;
  for (size_t i = 0; i < n && status.ok(); ++i) {
    queries_.fetch_add(1, std::memory_order_relaxed);
    const DeviceStatus s = on.device->device->Query(questions[i].event);
    if (s.failed() && !s.of_capture()) status = s;  // if another thread's capture is in the way, the next look asks
    if (!s.ok()) break;
    ended = std::max(ended, questions[i].seq);
  }
  if (!status.ok()) {
    Lose(*on.device, status);
    return Polled::kRetired;
  }
  // After the queries. Partner: Rescue sets rescued_ before it aborts, so that what an abort has ended fails before it
  // can retire.
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
  // seq_cst, before AskOwners. Partner: AwaitRetired looks at the word after it has parked its op.
  if (asked.load(std::memory_order_relaxed) || asked.exchange(true)) return;
  host_waits_.fetch_add(1, std::memory_order_relaxed);
  AskOwners();
}

void Devices::PollFaster() {
  if (pace_.exchange(kAwake) != kAwake) FutexWake(pace_, 1);
}

void Devices::ThreadMain() {
  t_looks_after = this;
  pthread_setname_np(pthread_self(), "engine/retire");
  prctl(PR_SET_TIMERSLACK, 1);  // the usual slack, 50 us, is longer than its naps
  const auto spin = core_.options().spin;
  auto doze = tuning::kDozeShortest;
  bool dozed_on = false;  // the last doze ran its whole time: nobody woke us
  Clock::time_point awake_since{};
  bool entered = false;
  bool looks = false;
  while (!stop_.load(std::memory_order_acquire)) {
    Polled best = Polled::kNothing;
    if (!entered && lanes() != 0) entered = lane(0).device->device->EnterThread().ok();
    looks |= asked_.exchange(false);  // seq_cst, before the look. Partner: AskOwners
    // Before the lanes: what an aborted channel had issued fails before it can retire.
    if (rescued_.load() != 0) PollChannels();
    for (uint32_t i = 0; i < lanes(); ++i) best = std::max(best, Poll(lane(i), looks));
    looks &= best == Polled::kRetired;  // there may be more
    rounds_.fetch_add(1);
    PollChannels();  // after the lanes, so that a collective that has ended is not taken for overdue
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
        if (core_.HostWaits() || awaiting_.load() || asked_.load() || stop_.load())
          break;  // Partner: those who want to know announce it first, and then call PollFaster
        FutexWait(pace_, kDozing, Clock::now() + doze);
        dozed_on = pace_.load(std::memory_order_relaxed) == kDozing;
        doze = std::min(doze * 2, best == Polled::kWatched ? tuning::kDozeLongest : tuning::kDozeLongestUnasked);
        break;
      case Polled::kNothing:
        awake_since = {};
        // First it says that it sleeps, then it looks once more. Partner: the LightFence in WakeRetirement.
        pace_.store(kAsleep);
        HeavyFence();
        if (!Busy() && !stop_.load(std::memory_order_acquire) && !asked_.load()) {
          // A push that waits for room may have seen a device at work, and is told that there is none. Partner:
          // WaitForRoom, which announces itself before it looks.
          core_.NoteIdle();
          FutexWait(pace_, kAsleep);
        }
        break;
    }
  }
  GiveBack();
}

}  // namespace engine::detail
