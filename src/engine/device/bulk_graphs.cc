#include "device/bulk_graphs.h"

#include <algorithm>

#include "core/core.h"
#include "order/op_chain.h"

namespace engine::detail {
namespace {

OpRecord* NextOf(OpRecord* head, OpRecord* op) {
  if (!op->extra.more_behind) return nullptr;
  return op == head ? op->chain()->first : op->extra.next;
}

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  return hash * 0xbf58476d1ce4e5b9;
}

}  // namespace

// What is known of the Var since CannotSplit began. Valid until the next call.
BulkGraphs::LastOnVar& BulkGraphs::Last(Protocol::Var* var) {
  const auto slot_of = [&](Protocol::Var* of) -> LastOnVar& {
    const size_t mask = seen_.size() - 1;
    // Without the low bits of the hash, which are those of addresses: much alike.
    size_t at = Mix(0, reinterpret_cast<uintptr_t>(of)) >> 32 & mask;
    while (seen_[at].pass == pass_ && seen_[at].var != of) at = (at + 1) & mask;
    return seen_[at];
  };
  if (2 * n_seen_ >= seen_.size()) {
    std::vector<LastOnVar> old(std::max<size_t>(16, 2 * seen_.size()));
    old.swap(seen_);
    for (const LastOnVar& v : old)
      if (v.pass == pass_) slot_of(v.var) = v;
  }
  LastOnVar& last = slot_of(var);
  if (last.pass != pass_) {
    ++n_seen_;
    last = {pass_, var, nullptr, nullptr, 0};
  }
  return last;
}

// Whether every grant that a member still misses comes from a member before it. The grants that the members give are
// counted, and compared with those that each member waits for.
bool BulkGraphs::CannotSplit(OpRecord* head) {
  ++pass_;
  n_seen_ = 0;
  for (OpRecord* op = head; op; op = NextOf(head, op)) {
    uint32_t from_run = 0;
    for (uint32_t i = 0; i < op->n_access; ++i) {
      Access& a = op->accesses()[i];
      LastOnVar& last = Last(a.var);
      // acquire: the block of the op that comes behind the write. Partner: the release exchange in Follow.
      const uintptr_t link = last.write ? last.write->link.load(std::memory_order_acquire) : 0;
      if (a.read()) {
        Protocol::Group* group = nullptr;
        if (last.write && last.write->version() == a.version() && (link & Protocol::kGroup)) {
          group = Protocol::GroupOf(link);  // the member waits in this group for that write
          ++from_run;
        } else if (!last.write) {  // if it has no grant, the count below differs
          group = Protocol::GroupOf(a.link.load(std::memory_order_relaxed));
        }
        last.readers = group && group == last.group ? last.readers + 1 : 1;
        last.group = group;
        continue;
      }
      if (last.group) {
        // The write gets one grant, from the last reader of the group. That is a member if all readers that are left
        // are members. acquire: the readers' number is known. Partner: the add of whoever closed the group.
        if (last.group->successor == op &&
            last.group->count.load(std::memory_order_acquire) == static_cast<int64_t>(last.readers))
          ++from_run;
      } else if (link == reinterpret_cast<uintptr_t>(op)) {
        ++from_run;
      }
      last = {pass_, a.var, &a, nullptr, 0};
    }
    // acquire: what the granting ops have done. All other grants were given, except for the start, which the chain
    // gives.
    if (op != head && op->wait.load(std::memory_order_acquire) != from_run + 1) return false;
  }
  return true;
}

bool BulkGraphs::Suits(OpRecord* head) try {
  if (!(head->extra.flags & kInChain) || !head->extra.more_behind) return false;
  for (OpRecord* op = head; op; op = NextOf(head, op)) {
    constexpr uint16_t kNeeded = kDeviceOp | kCapturable;
    if ((op->extra.flags & kNeeded) != kNeeded || op->extra.device != head->extra.device ||
        op->extra.asked_lane != head->extra.asked_lane || EngineCore::Cancelled(op))
      return false;
  }
  return CannotSplit(head);
} catch (const std::bad_alloc&) {  // it is launched member by member
  return false;
}

uint64_t BulkGraphs::KeyOf(OpRecord* head) {
  uint64_t key = 0;
  for (OpRecord* op = head; op; op = NextOf(head, op)) key = Mix(key, op->graph().kind);
  return key;
}

bool BulkGraphs::Matches(const Entry& entry, OpRecord* head) {
  size_t i = 0;
  for (OpRecord* op = head; op; op = NextOf(head, op), ++i)
    if (i == entry.kinds.size() || entry.kinds[i] != op->graph().kind) return false;
  return i == entry.kinds.size();
}

// Whether the status says that something went wrong. If the error is sticky, the device is lost.
bool BulkGraphs::Failed(const DeviceStatus& status) {
  if (!status.failed()) return false;
  if (status.sticky()) devices_.Lose(device_, status);
  return true;
}

bool BulkGraphs::Busy(const Exec& exec, const DeviceLane& on) const {
  return exec.last.seq && exec.last.lane != on.id && !devices_.lane(exec.last.lane).Retired(exec.last.seq);
}

// Runs the body so that its work goes to the capture, or into its node. False: it threw, or the device refused a launch
// that the body did not check. The error is not kept: the body will fail in the same way when it runs eagerly.
bool BulkGraphs::RunBody(OpRecord* op, NodeUpdate* update) {
  BodyFrame frame{&devices_.core_, op, t_frame, update ? Stream{} : capture_, update};
  t_frame = &frame;
  op->extra.lane = lane_;
  RunContext ctx = EngineCore::MakeContext(&devices_.core_, op, 0);
  bool good = true;
  try {
    op->extra.closure->run(op->closure(), ctx, nullptr);
  } catch (...) {
    good = false;
  }
  t_frame = frame.outer;
  if (update) return good;  // ctx.Launch has said what its call did, and the body had no stream for another
  return !Failed(device_.device->TakeLastError()) && good;
}

bool BulkGraphs::CaptureOne(OpRecord* op, DeviceGraph* graph, DeviceGraphNode* node) {
  Device& device = *device_.device;
  if (Failed(device.BeginCapture(capture_))) return false;
  bool good = RunBody(op) && !Failed(device.LastNode(capture_, node));
  good &= !Failed(device.EndCapture(capture_, graph));
  if (!good) (void)device.TakeLastError();
  return good;
}

bool BulkGraphs::Capture(OpRecord* head, Exec* out) {
  Device& device = *device_.device;
  lane_local_ = false;
  size_t n = 0;
  for (OpRecord* op = head; op; op = NextOf(head, op)) ++n;
  out->members.reserve(n);  // before the capture, which nothing may leave open
  if (Failed(device.BeginCapture(capture_))) return false;
  bool good = true;
  DeviceGraphNode before;  // the last node of the member before; null: not known, and the device is asked
  try {
    for (OpRecord* op = head; op && good; op = NextOf(head, op)) {
      const bool one_call = op->graph().one_call;
      if (one_call && !before && op != head) (void)device.LastNode(capture_, &before);
      launches_ = 0;
      good = RunBody(op);
      Member member{op->graph().params, {}};
      if (good && one_call) good = !Failed(device.LastNode(capture_, &member.node));
      if (member.node == before) member.node = {};  // it made no call, and this node is another member's
      member.by_launch = member.node && launches_ == 1;
      before = member.node;
      out->members.push_back(member);
    }
  } catch (const std::bad_alloc&) {  // of the device
    good = false;
  }
  good &= !Failed(device.EndCapture(capture_, &out->graph));
  if (!good) {
    if (out->graph) (void)device.DestroyGraph(out->graph);
    out->graph = {};
    (void)device.TakeLastError();
  }
  ++devices_.graph_captures_;
  out->lane_bound = lane_local_;
  return good;
}

// Runs the body so that ctx.Launch gives its node the new arguments. False: the body did not make exactly one such
// launch; nothing was issued.
bool BulkGraphs::UpdateByLaunch(const Exec& exec, Member& member, OpRecord* op) {
  if (!member.by_launch) return false;
  NodeUpdate update{exec.exec, member.node};
  const bool good = RunBody(op, &update) && update.launches == 1;
  if (!good) {
    (void)Failed(update.status);
    (void)device_.device->TakeLastError();
    member.by_launch = false;  // not tried again
  }
  return good;
}

bool BulkGraphs::UpdateByCapture(const Exec& exec, Member& member, OpRecord* op) {
  Device& device = *device_.device;
  DeviceGraph graph;
  DeviceGraphNode from;
  bool good = CaptureOne(op, &graph, &from);
  if (good) good = !Failed(device.UpdateNode(exec.exec, member.node, from));
  if (graph) (void)device.DestroyGraph(graph);
  return good;
}

// Gives the executable the parameters of this bulk. False: the bulk is to be eager.
bool BulkGraphs::Adapt(Entry& entry, Exec& exec, OpRecord* head) {
  Device& device = *device_.device;
  bool changed = false, by_node = true;
  size_t i = 0;
  for (OpRecord* op = head; op; op = NextOf(head, op), ++i) {
    if (exec.members[i].params == op->graph().params) continue;
    changed = true;
    by_node &= static_cast<bool>(exec.members[i].node) && op->graph().one_call;
  }
  if (!changed) return true;
  if (++entry.changes > tuning::kGraphTrials && entry.changes * 4 > entry.starts * 3 && !by_node) return false;
  if (by_node) {
    i = 0;
    for (OpRecord* op = head; op; op = NextOf(head, op), ++i) {
      if (exec.members[i].params == op->graph().params) continue;
      Member& member = exec.members[i];
      if (!UpdateByLaunch(exec, member, op) && !UpdateByCapture(exec, member, op)) {
        member.node = {};  // the device refused: not tried again
        break;             // the whole bulk is captured instead
      }
      member.params = op->graph().params;
      ++devices_.graph_updates_;
    }
    if (i == exec.members.size()) return true;
    if (device_.lost.load(std::memory_order_acquire)) return false;
    (void)device.TakeLastError();
  }
  Exec anew;
  if (!Capture(head, &anew)) return false;
  const DeviceStatus updated = device.Update(exec.exec, anew.graph);
  if (updated.ok()) {
    ++devices_.graph_updates_;
    // The executable is still updated by the nodes of the graph that it was made of, so that graph is kept.
    for (size_t k = 0; k < exec.members.size(); ++k) exec.members[k].params = anew.members[k].params;
    exec.lane_bound |= anew.lane_bound;
    (void)device.DestroyGraph(anew.graph);
    return true;
  }
  (void)device.TakeLastError();
  if (updated.code() != DeviceCode::kGraphUpdateFailed && Failed(updated)) {
    (void)device.DestroyGraph(anew.graph);
    return false;
  }
  if (Failed(device.Instantiate(anew.graph, &anew.exec, &anew.bytes))) {
    (void)device.DestroyGraph(anew.graph);
    return false;
  }
  ++devices_.graph_instantiations_;
  bytes_ += anew.bytes;
  anew.last = exec.last;
  for (size_t k = 0; k < exec.members.size(); ++k)
    if (!exec.members[k].node) anew.members[k].node = {};
  Destroy(exec);
  exec = std::move(anew);
  return true;
}

// The entry of the key, made if there is none yet. If it throws, nothing has changed.
BulkGraphs::Entry& BulkGraphs::EntryOf(uint64_t key, OpRecord* head) {
  if (const auto found = entries_.find(key); found != entries_.end()) return found->second;
  Entry made;
  for (OpRecord* op = head; op; op = NextOf(head, op)) made.kinds.push_back(op->graph().kind);
  std::list<uint64_t> newest{key};
  made.used = newest.begin();
  made.made = made_ + 1;
  Entry& entry = entries_.emplace(key, std::move(made)).first->second;
  by_use_.splice(by_use_.begin(), newest);
  ++made_;
  return entry;
}

bool BulkGraphs::Launch(DeviceLane& on, OpRecord* head) try {
  Device& device = *device_.device;
  lane_ = static_cast<uint8_t>(on.id);
  const uint64_t key = KeyOf(head);
  Entry& entry = EntryOf(key, head);
  if (!Matches(entry, head)) return false;  // another bulk, whose kinds have the same hash
  by_use_.splice(by_use_.begin(), by_use_, entry.used);
  ++entry.starts;
  if (entry.starts == 1) entry.warm_ups = tuning::kGraphWarmUps;
  if (entry.eager || entry.warm_ups != 0) {
    if (entry.warm_ups != 0) --entry.warm_ups;
    return false;
  }
  if (!capture_ && Failed(device.CreateStream(0, &capture_))) return false;

  // Preferred: an executable that is free and has the same parameters; then one that is free; then a new one; then any.
  Exec* exec = nullptr;
  for (Exec& e : entry.execs) {
    if (!Fits(e, on) || Busy(e, on)) continue;
    size_t i = 0;
    bool same = true;
    for (OpRecord* op = head; op && same; op = NextOf(head, op), ++i) same = e.members[i].params == op->graph().params;
    if (!exec || same) exec = &e;
    if (same) break;
  }
  bool ready;
  lane_is_cold_ = false;
  if (!exec && entry.execs.size() == tuning::kGraphExecs) {
    const auto victim = entry.execs.begin() + static_cast<ptrdiff_t>(entry.starts % entry.execs.size());
    if (Fits(*victim, on)) {
      exec = &*victim;
    } else {
      Destroy(*victim);
      entry.execs.erase(victim);
    }
  }
  if (exec) {
    ready = Adapt(entry, *exec, head);
  } else {
    Exec made;
    entry.execs.reserve(entry.execs.size() + 1);  // what the device has made is not lost for want of a place
    try {
      ready = Capture(head, &made) && !Failed(device.Instantiate(made.graph, &made.exec, &made.bytes));
    } catch (const std::bad_alloc&) {
      ready = false;
    }
    if (ready) {
      ++devices_.graph_instantiations_;
      bytes_ += made.bytes;
      entry.execs.push_back(std::move(made));
      exec = &entry.execs.back();
    } else if (made.graph) {
      (void)device.DestroyGraph(made.graph);
    }
  }
  if (!ready || Failed(device.Launch(exec->exec, on.stream))) {
    (void)device.TakeLastError();
    if (lane_is_cold_) {  // run eagerly on this lane, the bodies make what they keep with it; the next bulk is captured
      entry.warm_ups = tuning::kGraphWarmUps - 1;
      return false;
    }
    MakeEager(entry);
    return false;
  }
  ++devices_.graph_launches_;
  uint64_t members = 0;
  for (OpRecord* op = head; op; op = NextOf(head, op)) {
    op->extra.replayed = op != head;
    ++members;
  }
  exec->last = {on.issued.load(std::memory_order_relaxed) + members, on.id};
  if (const auto launched = KindOf(head).launched) launched(head, members, {key, entry.made});
  Evict();
  return true;
} catch (const std::bad_alloc&) {  // nothing was launched; a later bulk tries again
  return false;
}

bool BulkGraphs::LaunchAgain(DeviceLane& on, const KeptGraph& graph) try {
  const auto found = entries_.find(graph.key);
  if (found == entries_.end() || found->second.made != graph.made) return false;
  Entry& entry = found->second;
  const auto exec = std::ranges::find_if(entry.execs, [&](const Exec& e) { return Fits(e, on) && !Busy(e, on); });
  if (exec == entry.execs.end()) return false;
  by_use_.splice(by_use_.begin(), by_use_, entry.used);
  ++entry.starts;
  if (Failed(device_.device->Launch(exec->exec, on.stream))) {
    (void)device_.device->TakeLastError();
    MakeEager(entry);
    return false;
  }
  ++devices_.graph_launches_;
  exec->last = {on.issued.load(std::memory_order_relaxed) + 1, on.id};
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void BulkGraphs::MakeEager(Entry& entry) {
  entry.eager = true;
  for (Exec& e : entry.execs) Destroy(e);
  entry.execs.clear();
}

void BulkGraphs::Destroy(Exec& exec) {
  bytes_ -= exec.bytes;
  if (exec.exec) (void)device_.device->DestroyGraphExec(exec.exec);
  if (exec.graph) (void)device_.device->DestroyGraph(exec.graph);
}

// Forgets the bulks that were unused longest, until the others keep to both limits: the bytes of executables, and their
// number.
void BulkGraphs::Evict() {
  while (by_use_.size() > 1 && (bytes_ > tuning::kGraphBytes || entries_.size() > tuning::kGraphKeys)) {
    const auto oldest = entries_.find(by_use_.back());
    for (Exec& e : oldest->second.execs) Destroy(e);
    entries_.erase(oldest);
    by_use_.pop_back();
  }
}

void BulkGraphs::Close() {
  if (device_.gone()) return;
  for (auto& [key, entry] : entries_)
    for (Exec& e : entry.execs) Destroy(e);
  entries_.clear();
  by_use_.clear();
  if (capture_) (void)device_.device->DestroyStream(capture_);
}

}  // namespace engine::detail
