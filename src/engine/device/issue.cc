// How an op gets onto a device: its lane is chosen, the lane is made to wait for the work that must come first, the
// body runs and issues the op's work, and an event is recorded if somebody needs one (record.cc).
//
// If memory is refused before the body runs, the op fails with bad_alloc. After the body nothing may fail: the memory that
// Settle needs was taken before, or Settle manages without.
//
// What must come first is read off the points of the op's Vars. The first op of a chain also reads those of the later
// members, as far as they are known, so that a bulk waits once for each lane. Three kinds of waits are left out: for
// work that the lane has waited for already, for work that has retired, and for work that another one of the waits is
// behind. The rest are as few as can order the op.
#include <algorithm>

#include "core/completion_state.h"
#include "core/traced_body.h"
#include "device/body_scope.h"
#include "device/bulk_graphs.h"
#include "order/op_chain.h"
#include "sched/pool.h"

namespace engine::detail {
namespace {

void Raise(LaneClock& to, const LaneClock& by) {
  for (uint32_t i = 0; i < kMaxLanes; ++i) to[i] = std::max(to[i], by[i]);
}

}  // namespace

VarPoints& Devices::PointsOf(VarCore* var) {
  std::atomic<VarPoints*>& place = var->completer.points;
  VarPoints* points = place.load(std::memory_order_acquire);
  if (points) return *points;
  auto made = std::make_unique<VarPoints>();
  // Several readers of one Var may come first at the same time. release: the points. Partner: the acquire loads of this
  // field.
  if (place.compare_exchange_strong(points, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *points;
}

// Takes the memory that Settle needs, as long as the op can still be refused.
void Devices::HavePoints(OpRecord* op) {
  ForOrderedVars(op, [](VarCore* var, AccessMode) { PointsOf(var); });
}

void Devices::AddWaitPoints(OpRecord* op, WaitPoints* wait_for) {
  ForOrderedVars(op, [&](VarCore* var, AccessMode mode) {
    VarPoints* points = var->completer.points.load(std::memory_order_acquire);
    if (!points) return;
    MutexLock lock(points->mu);
    wait_for->Add(points->write);
    if (mode == AccessMode::kRead) return;
    for (const OrderPoint& p : points->reads) wait_for->Add(p);
  });
}

// Whether an op that asks for the lane `asked` may be issued on `on`, the lane of the member before it.
bool Devices::MayGoOn(DeviceState& device, const DeviceLane& on, uint32_t asked) {
  if (asked == Placement::kAnyLane || asked == kCopyInLane || asked == kCopyOutLane || asked >= kFirstChannelLane)
    return true;  // it asks for no lane, or for the only lane that its issuer has
  return device.compute[asked].load(std::memory_order_acquire) == &on;
}

// Chooses the lane: the one that the op asks for. Else the lane whose newest op has made one of its inputs, so that no
// wait is needed; else the lane on which an input was made, unless much more is open there than elsewhere; else the
// lane with the least open work.
DeviceLane& Devices::Choose(DeviceState& device, OpRecord* op) {
  using Use = DeviceLane::Use;
  const uint32_t asked = op->extra.asked_lane;
  if (asked == kCopyInLane) return LaneOf(device.copy_in, device, "copy_in", Use::kCopies);
  if (asked == kCopyOutLane) return LaneOf(device.copy_out, device, "copy_out", Use::kCopies);
  if (asked >= kFirstChannelLane && asked != Placement::kAnyLane)
    return LaneOf(channels_[asked - kFirstChannelLane].lane, device, "comm" + std::to_string(asked - kFirstChannelLane),
                  Use::kChannel);
  if (asked != Placement::kAnyLane)
    return LaneOf(device.compute[asked], device, std::to_string(asked),
                  asked < device.streams ? Use::kShared : Use::kAsked);
  // follows: preferably a lane with open work, because what has retired needs no wait anyway.
  DeviceLane *follows = nullptr, *stays = nullptr;
  ForOrderedVars(op, [&](VarCore* var, AccessMode) {
    VarPoints* points = var->completer.points.load(std::memory_order_acquire);
    if (!points) return;
    MutexLock lock(points->mu);
    if (points->write.seq == 0) return;
    DeviceLane& producer = lane(points->write.lane);
    if (producer.device != &device || producer.use != Use::kShared) return;
    if (producer.issued.load(std::memory_order_relaxed) == points->write.seq) {
      if (!follows || follows->Retired(follows->issued.load(std::memory_order_relaxed))) follows = &producer;
    } else if (points->reads.empty() && !producer.Retired(points->write.seq)) {
      // Other ops came behind the producer; still its lane needs no wait. A Var that another op reads already is left
      // out, so that the readers of one Var spread over the lanes.
      stays = &producer;
    }
  });
  if (follows) return *follows;
  const auto load = [](const DeviceLane* l) {
    return l ? l->issued.load(std::memory_order_relaxed) - l->retired.load(std::memory_order_relaxed) : 0;
  };
  uint32_t best = 0;
  uint64_t least = ~uint64_t{0};
  for (uint32_t i = 0; i < device.streams; ++i) {
    const uint64_t on_it = load(device.compute[i].load(std::memory_order_acquire));
    if (on_it < least) {
      least = on_it;
      best = i;
    }
  }
  if (stays && load(stays) <= 2 * least + tuning::kLaneSlack) return *stays;
  return LaneOf(device.compute[best], device, std::to_string(best), Use::kShared);
}

// The number that must retire before the lane takes another op; 0: it takes one now. A bulk that has begun may pass the
// bound by one half, so that it is not cut.
uint64_t Devices::UntilRoom(const DeviceLane& on, bool in_dispatch) {
  const uint32_t most = tuning::kLaunchesOfALane + (in_dispatch ? tuning::kLaunchesOfALane / 2 : 0);
  if (on.queued.load(std::memory_order_relaxed) < most) return 0;
  const uint64_t retired = on.retired.load(std::memory_order_acquire);
  return retired + (on.issued.load(std::memory_order_relaxed) - retired + 1) / 2;
}

// Makes later work of `to` wait for `wait_for`. If this fails, the op has not run, and no work is lost.
DeviceStatus Devices::Order(DeviceLane& to, const WaitPoints& wait_for) {
  uint32_t open = wait_for.lanes & ~(1u << to.id);
  if (!open) return {};
  {
    MutexLock lock(to.mu);
    for (uint32_t m = open; m; m &= m - 1) {
      const auto i = static_cast<uint32_t>(__builtin_ctz(m));
      if (to.clock[i] >= wait_for.seq[i]) open &= ~(1u << i);
    }
  }
  const auto asked = static_cast<uint32_t>(__builtin_popcount(wait_for.lanes & ~(1u << to.id)));
  struct Found {
    uint64_t seq;
    LaneClock clock;
  };
  std::array<Found, kMaxLanes> found;
  for (uint32_t m = open; m; m &= m - 1) {
    const auto i = static_cast<uint32_t>(__builtin_ctz(m));
    DeviceLane& from = lane(i);
    DeviceStatus status;
    {
      MutexLock lock(from.mu);
      if (from.Retired(wait_for.seq[i])) {
        open &= ~(1u << i);
        continue;
      }
      const LaneRecord* at = from.records.Covering(wait_for.seq[i]);
      if (!at) {
        status = RecordLocked(from);  // another thread may be in the middle of a chain there
        if (status.ok()) at = &from.records.back();
      }
      if (status.ok()) found[i] = {at->seq, at->clock};
    }
    if (!status.ok()) {
      Lose(*from.device, status);
      return status;
    }
  }
  // A lane is left out if the record of another one, for which we wait, is behind that lane's work.
  for (uint32_t m = open; m; m &= m - 1) {
    const auto i = static_cast<uint32_t>(__builtin_ctz(m));
    for (uint32_t k = open & ~(1u << i); k; k &= k - 1) {
      if (found[static_cast<uint32_t>(__builtin_ctz(k))].clock[i] < wait_for.seq[i]) continue;
      open &= ~(1u << i);
      break;
    }
  }
  LaneClock behind{};
  for (uint32_t m = open; m; m &= m - 1) {
    const auto i = static_cast<uint32_t>(__builtin_ctz(m));
    DeviceLane& from = lane(i);
    DeviceStatus status;
    {
      MutexLock lock(from.mu);  // so that nobody records the event anew meanwhile
      const LaneRecord* at = from.records.Covering(found[i].seq);
      if (!at || from.Retired(found[i].seq)) continue;
      status = to.device->device->Wait(to.stream, at->event);
    }
    if (!status.ok()) return status;
    waits_.fetch_add(1, std::memory_order_relaxed);
    Raise(behind, found[i].clock);
    behind[i] = std::max(behind[i], found[i].seq);
  }
  elided_.fetch_add(asked - static_cast<uint32_t>(__builtin_popcount(open)), std::memory_order_relaxed);
  MutexLock lock(to.mu);
  Raise(to.clock, behind);
  return {};
}

// Throws the error of a call of the device, which is lost if the error is sticky.
void Devices::Check(DeviceState& device, DeviceStatus status) {
  if (status.ok()) return;
  if (status.sticky()) Lose(device, status);
  throw DeviceError(std::move(status));
}

OpRecord* Devices::Execute(ThreadSlot& slot, OpRecord* op, Worker* worker) {
  DeviceState& device = *by_index_[op->extra.device].load(std::memory_order_acquire);
  ErrorRecord* error = nullptr;
  if (any_lost_.load(std::memory_order_acquire)) {
    PassLostToVars(op);
    if (ErrorRecord* lost = device.lost.load(std::memory_order_acquire))
      if (!(error = core_.BeforeRun(op))) error = lost->Hop(op->extra.name, op->site());
  }
  if (!error) error = core_.BeforeRun(op);
  if (error) {
    slot.skipped.Add();
    return Refuse(slot, op, error, worker);
  }
  if ((op->extra.flags & kInChain) && op->extra.replayed) return SettleReplayed(slot, op, *worker);

  WaitPoints wait_for;
  AddWaitPoints(op, &wait_for);
  for (uint32_t m = wait_for.lanes; m; m &= m - 1) {
    const auto i = static_cast<uint32_t>(__builtin_ctz(m));
    // Another device: the op is started again when the host knows that the work has ended there.
    if (lane(i).device == &device) continue;
    if (worker && worker->last_lane) EndDispatch(*worker->last_lane);
    if (AwaitRetired(lane(i), wait_for.seq[i], op)) return nullptr;
  }
  DeviceLane* on = nullptr;
  bool graph_may_suit = false;
  try {
    on = PrepareLane(device, op, worker, wait_for, &graph_may_suit);
  } catch (...) {
    return Refuse(slot, op, ErrorRecord::NewRoot(op->extra.name, op->site(), std::current_exception()), worker);
  }
  if (!on) return nullptr;
  if (worker) {
    worker->last_lane = on;
    worker->lanes |= 1u << on->id;
  }
  const bool in_bulk = (op->extra.flags & kInChain) && (op->extra.merged || op->extra.more_behind);
  if (!in_bulk || !op->extra.merged) on->bulk = in_bulk ? op->extra.name : nullptr;
  if (graph_may_suit && device.graphs->Launch(*on, op)) return SettleReplayed(slot, op, *worker);
  op->extra.lane = static_cast<uint8_t>(on->id);
  if (const auto kept_graph = KindOf(op).kept_graph; kept_graph && worker) {
    if (KeptGraph* const graph = kept_graph(core_, op)) {
      if (device.graphs->LaunchAgain(*on, *graph)) return SettleReplayed(slot, op, *worker);
      *graph = {};
    }
  }
  return IssueBody(slot, op, worker, *on);
}

// Chooses the op's lane and makes it wait for all that the op, and the members behind it in its chain, must come behind.
// Null: the lane has no room, and the op is started again when it has. Throws what keeps the op from being issued.
DeviceLane* Devices::PrepareLane(DeviceState& device, OpRecord* op, Worker* worker, WaitPoints& wait_for,
                                 bool* graph_may_suit) {
  HavePoints(op);  // mutant: points_taken_behind_the_body
  bool in_dispatch = (op->extra.flags & kInChain) && op->extra.merged && worker && worker->last_lane;
  if (in_dispatch && !MayGoOn(device, *worker->last_lane, op->extra.asked_lane)) {
    EndDispatch(*worker->last_lane);  // the chain goes on as another dispatch
    in_dispatch = false;
  }
  DeviceLane& on = in_dispatch ? *worker->last_lane : Choose(device, op);
  if (const uint64_t room = UntilRoom(on, in_dispatch)) {
    if (worker && worker->last_lane) EndDispatch(*worker->last_lane);
    if (AwaitRetired(on, room, op)) return nullptr;
  }
  // This comes before the look at the members' points: if the bulk cannot split, nobody outside can add points any more.
  *graph_may_suit =
      !in_dispatch && (op->extra.flags & kCapturable) && worker && !core_.poisoned() && device.graphs->Suits(op);
  if (!in_dispatch && (op->extra.flags & kInChain) && op->extra.more_behind)
    for (OpRecord* member = op->chain()->first; member;
         member = member->extra.more_behind ? member->extra.next : nullptr)
      if (member->extra.device == op->extra.device) {
        AddWaitPoints(member, &wait_for);
        HavePoints(member);
      }
  for (uint32_t m = wait_for.lanes; m; m &= m - 1) {
    const auto i = static_cast<uint32_t>(__builtin_ctz(m));
    if (lane(i).device == &device) continue;
    wait_for.lanes &= ~(1u << i);  // on another device: the later member waits for it when its turn comes
    *graph_may_suit &= lane(i).Retired(wait_for.seq[i]);
  }
  // For every op, because the body before it may have made another device current.
  Check(device, worker ? device.device->EnterThread() : device.device->MakeCurrent());
  Check(device, Order(on, wait_for));
  return &on;
}

// Runs the op's body, which issues the work, and settles the op.
OpRecord* Devices::IssueBody(ThreadSlot& slot, OpRecord* op, Worker* worker, DeviceLane& on) {
  DeviceState& device = *on.device;
  ErrorRecord* error = nullptr;
  const bool async = op->extra.flags & kAsyncOp;
  Completion ours;
  try {
    if (async) ours = core_.StartAsync(slot, op);
  } catch (...) {
    return Refuse(slot, op, ErrorRecord::NewRoot(op->extra.name, op->site(), std::current_exception()), worker);
  }
  const ClosureType* type = op->extra.closure;
  const char* const name = op->extra.name;
  BodyFrame frame{&core_, op, t_frame};
  t_frame = &frame;
  TracedBody traced(core_);
  if (traced.on() && !KindOf(op).trace) {  // ops of a kind with its own trace do this in their bodies
    traced.About(op);
    traced.Begin(on.name.c_str());
  }
  RunContext ctx = EngineCore::MakeContext(&core_, op, worker ? worker->index : -1);
  // Whether the body forked, and this is the child: the device and its locks are the parent's.
  const auto in_child = [op] { return (op->extra.flags & kForgotten) != 0; };
  const KeptError kept(async && (op->extra.flags & kRunAlways) ? op : nullptr);
  try {
    const BodyScope body(name, op->site(), on.bulk, async ? Stream{} : on.stream);
    if (async) {
      Completion theirs = ours;
      type->run(op->closure(), ctx, &theirs);
    } else {
      type->run(op->closure(), ctx, nullptr);
    }
    if (!in_child()) {
      // The error of a launch that the body did not check.
      Check(device, device.device->TakeLastError());
      if (DeviceStatus s = body.Verdict(); !s.ok()) throw DeviceError(std::move(s));
    }
  } catch (...) {
    // The last error is this op's, whether or not the body threw because of it. The next op must not find it.
    if (!in_child())
      if (DeviceStatus s = device.device->TakeLastError(); s.sticky()) Lose(device, s);
    if (async) {
      ours.Fail(std::current_exception());
    } else {
      error = ErrorRecord::NewRoot(name, op->site(), std::current_exception());
    }
  }
  t_frame = frame.outer;
  if (in_child()) [[unlikely]]
    return nullptr;
  traced.End();
  if (!async) return Settle(t_role_lent ? core_.Slot() : slot, op, error, t_role_lent ? nullptr : worker);
  EngineCore::NoteReturned(ours);
  ours = Completion();
  core_.DestroyClosure(op);  // the Completion, not the closure, says when its work is over
  ThreadSlot& now = t_role_lent ? core_.Slot() : slot;
  EngineCore::LeaveBody(now, op);
  return nullptr;
}

// Settles an op in place of whose body a graph was launched.
OpRecord* Devices::SettleReplayed(ThreadSlot& slot, OpRecord* op, Worker& worker) {
  op->extra.lane = static_cast<uint8_t>(worker.last_lane->id);
  if (core_.tracing()) {
    const char* const lane_name = worker.last_lane->name.c_str();
    if (const auto trace = KindOf(op).trace) {
      trace(core_, op, lane_name);
    } else {
      TracedBody traced(core_);
      if (traced.on()) traced.About(op);
      traced.Begin(lane_name);
    }
  }
  return Settle(slot, op, nullptr, &worker);
}

void Devices::FinishAsync(ThreadSlot& slot, OpRecord* op, ErrorRecord* error) {
  if (const auto failed = KindOf(op).failed; error && failed)  // the error is the run's, not that of the task Var
    failed(core_, slot, op, std::exchange(error, nullptr));
  Settle(slot, op, error, nullptr);
}

// Ends an op that is not issued.
OpRecord* Devices::Refuse(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker) {
  NoteSkipped(op, *error);
  if (TracedBody traced(core_); traced.on()) {
    traced.About(op);
    traced.Skip(worker ? worker->name.c_str() : nullptr);
  }
  if ((op->extra.flags & kInChain) && op->extra.merged && worker && worker->last_lane) EndDispatch(*worker->last_lane);
  core_.DestroyClosure(op);  // mutant: device_closure_kept
  // If a destructor waited, a stand-in has our role and slot.
  ThreadSlot& now = t_role_lent ? core_.Slot() : slot;
  if (const auto refused = KindOf(op).refused) refused(core_, now, op, std::exchange(error, nullptr));
  if (op->extra.flags & kAsyncOp) EngineCore::DropScope(op);
  Pass pass{&now};
  Protocol::DropPins(pass, op, op->extra.flags & kAsyncOp ? 2 : 1);
  return core_.Finish(now, op, error, t_role_lent ? nullptr : worker);
}

// Called when an op's work has been issued: gives the op its number, and its point to the Vars; then releases the Vars.
// The op's block stays until the op retires.
OpRecord* Devices::Settle(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker) {
  DeviceLane& on = lane(op->extra.lane);
  const bool in_chain = op->extra.flags & kInChain;
  OpChain* const chain = in_chain && op->extra.more_behind ? op->chain() : nullptr;
  uint64_t seq;
  DeviceStatus recorded;
  {
    MutexLock lock(on.mu);
    seq = on.issued.load(std::memory_order_relaxed) + 1;
    on.clock[on.id] = seq;
    op->extra.next = nullptr;
    (on.first ? on.last->extra.next : on.first) = op;
    on.last = op;
    on.issued.store(seq, std::memory_order_release);
    if (!op->extra.replayed) on.queued.fetch_add(1, std::memory_order_relaxed);
    on.in_chain = chain;
    on.all_launched = chain && chain->first->extra.replayed;
    if (!chain && IsDue(on)) recorded = RecordLocked(on);
  }
  if (!recorded.ok()) Lose(*on.device, recorded);
  WakeRetirement(on, seq);
  ForOrderedVars(op, [&](VarCore* var, AccessMode mode) {
    VarPoints& points = PointsOf(var);
    MutexLock lock(points.mu);
    if (mode != AccessMode::kRead) {
      points.write = {seq, on.id};
      points.reads.clear();
      return;
    }
    const auto at =
        std::find_if(points.reads.begin(), points.reads.end(), [&](const OrderPoint& p) { return p.lane == on.id; });
    if (at != points.reads.end()) {
      at->seq = seq;
    } else {
      try {
        points.reads.push_back({seq, on.id});
      } catch (const std::bad_alloc&) {  // whoever reads next waits for us, as for a write: we are behind the last one
        points.write = {seq, on.id};
      }
    }
  });
  // Partner: FailIssued. Either it finds this op among the issued ones, or we see here that something was lost.
  if (!error && any_lost_.load(std::memory_order_acquire)) InheritFailure(on, seq, op);
  if (const auto issued = KindOf(op).issued) issued(core_, slot, op);  // before Complete, until which its owner lives
  if (error || core_.poisoned()) core_.SettlePoison(op, error);
  if (!(op->extra.flags & kAsyncOp)) EngineCore::DropScope(op);
  Pass pass{&slot};
  core_.Complete(pass, op);
  // Before those that became ready start. Without a worker nobody calls NoteIdle, so the record is made here.
  if (!worker || NeedsRecord(pass.ready, on)) Record(on, seq);
  const OpRecord* const chained = chain ? core_.chains().StartNext(pass, *chain) : nullptr;
  OpRecord* const next = pass.ready ? core_.Dispatch(pass, worker, chained) : nullptr;
  // release: we do not touch the block any more. Partner: the acquire in RetireUpTo, which goes no further than to the
  // first op that is not in this state.
  op->extra.state.store(OpState::kIssued, std::memory_order_release);
  if (chain && next != chained) EndDispatch(on);
  // release: publishes what the op has done to whoever reads the stats (acquire there). Two threads add at once only if
  // a stand-in issues, too.
  on.settled.fetch_add(1, std::memory_order_release);
  return next;
}

// An op was issued: wakes the retirement thread if it has to know.
void Devices::WakeRetirement(DeviceLane& on, uint64_t seq) {
  // Partner: the HeavyFence of the retirement thread, which first says that it sleeps and then looks at `issued` once
  // more. A thread that waits for everything need not be considered here: if it found open ops it has woken the
  // retirement thread itself, and if it found none, the retirement thread sleeps and is woken now.
  LightFence();
  if (seq % tuning::kLookEach == 0 && seq - on.retired.load(std::memory_order_relaxed) >= tuning::kLookEach)
    return AskOwners();
  uint32_t asleep = kAsleep;
  if (pace_.load(std::memory_order_relaxed) == kAsleep && pace_.compare_exchange_strong(asleep, kDozing))
    FutexWake(pace_, 1);
}

}  // namespace engine::detail
