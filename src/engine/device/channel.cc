// Channels, and the failure of single ops that were issued, on a device that goes on working.
//
// The ops that depend on a failed one are found by the versions of Vars that they see and make. Failed versions are
// kept until the error of their Var is cleared or the Var is gone, so that ops which are issued meanwhile find out when
// they settle (InheritFailure).
#include "device/channel.h"

#include <algorithm>
#include <string>
#include <thread>

#include "base/tuning.h"
#include "core/core.h"
#include "device/devices.h"

namespace engine::detail {
namespace {

// The version that the op reads. An update makes the next one.
uint64_t SeenVersion(const Access& a) { return a.mode() == AccessMode::kUpdate ? a.version() - 1 : a.version(); }

// Calls fn(access, mode) for each Var that the op uses; for a node, with the access of its run and the node's own mode.
template <class Fn>
void ForVersions(OpRecord* op, Fn&& fn) {
  for (uint32_t i = 0; i < op->n_access; ++i) fn(op->accesses()[i], op->accesses()[i].mode());
  ForOwnersVars(op, [&](VarCore* var, AccessMode mode) { fn(*EngineCore::FindAccess(op, var), mode); });
}

// The error of a version that the op reads, not counted, or null. A node reads what its run found, or what an earlier
// node of the run made.
ErrorRecord* FailedAmong(const FailedVersions& failed, OpRecord* op) {
  ErrorRecord* found = nullptr;
  ForVersions(op, [&](const Access& a, AccessMode mode) {
    if (found || mode == AccessMode::kWrite) return;
    auto at = failed.find({a.var, SeenVersion(a)});
    if (at == failed.end() && KindOf(op).for_vars) at = failed.find({a.var, a.version()});
    if (at != failed.end()) found = at->second;
  });
  return found;
}

// Lists the versions that the op makes as failed, each with a count of the error.
void AddTo(FailedVersions& failed, OpRecord* op, ErrorRecord* error) {
  ForVersions(op, [&](const Access& a, AccessMode mode) {
    if (mode != AccessMode::kRead && failed.emplace(std::pair(a.var, a.version()), error).second) error->Retain();
  });
}

}  // namespace

Channel& Devices::OpenChannel(uint32_t device_index, std::shared_ptr<ChannelOwner> owner,
                              std::chrono::nanoseconds timeout) {
  DeviceState& device = Get(device_index);
  if (timeout.count() != 0) StartWatch();
  MutexLock lock(channels_mu_);
  const uint32_t n = n_channels_.load(std::memory_order_relaxed);
  Channel* open = nullptr;
  for (uint32_t i = 0; i < n && !open; ++i)
    if (!channels_[i].owner && channels_[i].device == &device) open = &channels_[i];
  if (!open) {
    if (n == kMaxChannels)
      throw UsageError("the engine has " + std::to_string(kMaxChannels) +
                       " communicators, which is the most: end one first");
    open = &channels_[n];
    open->index = n;
    open->device = &device;
    // release: the channel. Partner: the acquire loads of those that look at all, or name one.
    n_channels_.store(n + 1, std::memory_order_release);
  }
  if (DeviceLane* lane = open->lane.load(std::memory_order_acquire)) {  // nothing of the owner before is on it
    MutexLock lane_lock(lane->mu);
    lane->ended = nullptr;
  }
  open->owner = std::move(owner);
  open->timeout = timeout;
  open->aborted = false;
  return *open;
}

std::shared_ptr<const Var> Devices::CollectiveOrder(uint32_t device_index, const std::function<Var()>& make) {
  DeviceState& device = Get(device_index);
  const auto known = [&]() EXCLUDES(channels_mu_) {
    MutexLock lock(channels_mu_);
    return device.collective_order.lock();
  };
  if (auto order = known()) return order;
  auto made = std::make_shared<const Var>(make());
  MutexLock lock(channels_mu_);
  if (auto order = device.collective_order.lock()) return order;
  device.collective_order = made;
  return made;
}

void Devices::CloseChannel(Channel& channel) {
  std::shared_ptr<ChannelOwner> last;  // destroyed after the lock is dropped
  MutexLock lock(channels_mu_);
  last.swap(channel.owner);
}

bool Devices::HasChannel(uint32_t index) const { return index < n_channels_.load(std::memory_order_acquire); }
bool Devices::HasChannelOn(const DeviceState& device) const {
  const auto end = channels_.begin() + n_channels_.load(std::memory_order_acquire);
  return std::any_of(channels_.begin(), end, [&](const Channel& c) { return c.device == &device; });
}
bool Devices::OfChannel(const DeviceLane& on) const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [&](const Channel& c) { return c.lane.load(std::memory_order_acquire) == &on; });
}
uint32_t Devices::ChannelDevice(uint32_t index) const { return channels_[index].device->index; }

// Closes the owners in rounds, because they may wait for each other.
void Devices::CloseChannels() {
  std::array<std::shared_ptr<ChannelOwner>, kMaxChannels> open;
  {
    MutexLock lock(channels_mu_);
    for (size_t i = 0; i < kMaxChannels; ++i) open[i] = std::move(channels_[i].owner);
  }
  for (;;) {
    bool all_closed = true;
    for (auto& owner : open) {
      if (owner && owner->Close()) owner.reset();
      all_closed &= !owner;
    }
    if (all_closed) return;
    std::this_thread::sleep_for(tuning::kLeaveNap);
  }
}

std::shared_ptr<ChannelOwner> Devices::OwnerOf(const Channel& channel, std::chrono::nanoseconds* timeout) {
  MutexLock lock(channels_mu_);
  if (timeout) *timeout = channel.timeout;
  return channel.aborted ? nullptr : channel.owner;
}

void Devices::AskOwners() {
  asked_.store(true);  // seq_cst, before the look at the pace. Partner: the looks in ThreadMain
  PollFaster();        // mutant: waiters_that_nobody_tells_of
}

void Devices::NoteSkipped(const OpRecord* op, const ErrorRecord& why) {
  const uint32_t index = op->extra.asked_lane - kFirstChannelLane;
  if (op->extra.asked_lane < kFirstChannelLane || index >= n_channels_.load(std::memory_order_acquire)) return;
  const std::shared_ptr<ChannelOwner> owner = OwnerOf(channels_[index]);
  if (!owner) return;
  owner->Fail(NameAndSite(op) +
              " did not run, so the other ranks would wait for it: " + DescribeException(why.root->cause));
  AskOwners();
}

// At shutdown: aborts all channels with pending work. False: all of them had been aborted before.
bool Devices::AbortChannels(const std::string& why) {
  bool any = false;
  for (uint32_t i = 0; i < n_channels_.load(std::memory_order_acquire); ++i) {
    const std::shared_ptr<ChannelOwner> owner = OwnerOf(channels_[i]);
    if (!owner) continue;
    owner->Fail(why);
    any = true;
  }
  if (any) AskOwners();
  return any;
}

void Devices::PollChannels() {
  for (uint32_t i = 0; i < n_channels_.load(std::memory_order_acquire); ++i) {
    Channel& channel = channels_[i];
    std::chrono::nanoseconds timeout{0};
    const std::shared_ptr<ChannelOwner> owner = OwnerOf(channel, &timeout);
    if (!owner) continue;
    DeviceLane* on = channel.lane.load(std::memory_order_acquire);
    const bool rescued = channel.rescued.load();
    if (on && timeout.count() != 0 && !rescued) CheckTimeout(channel, *on, *owner, timeout);
    const std::exception_ptr cause = owner->Failure();
    if (!cause) continue;
    // Read again: an op that was being issued when the owner failed may have made the lane.
    on = channel.lane.load(std::memory_order_acquire);
    // If there is no memory to tell which of the issued ops need a failed one, all of them fail, with their device.
    try {
      if (on) FailIssued(*on, cause, !rescued);  // mutant: collectives_fail_in_silence
    } catch (const std::bad_alloc&) {
      Lose(*on->device, no_memory_);
    }
    owner->Abort();
    if (rescued) {
      channel.rescued.store(false);
      rescued_.fetch_sub(1);
    }
    MutexLock lock(channels_mu_);
    if (channel.owner == owner) channel.aborted = true;
  }
}

void Devices::CheckTimeout(Channel& channel, DeviceLane& on, ChannelOwner& owner, std::chrono::nanoseconds timeout) {
  for (bool looked = false;; looked = true) {
    {
      MutexLock lock(on.mu);
      const uint64_t retired = on.retired.load(std::memory_order_relaxed);
      const auto now = Clock::now();
      if (channel.oldest != retired + 1) {
        channel.oldest = retired + 1;
        channel.oldest_since = now;
      }
      if (!on.first || now - channel.oldest_since < timeout) {
        if (!on.first) channel.oldest = 0;
        return;
      }
      if (looked)
        return owner.Fail(NameAndSite(on.first) + " has not ended within the timeout of " +
                          std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) +
                          " ms");
    }
    RetireEnded(on);
  }
}

// Retires what has ended, also work that nobody awaits, whose events are not polled otherwise.
void Devices::RetireEnded(DeviceLane& on) {
  uint64_t ended = on.retired.load(std::memory_order_acquire);
  while (!on.device->lost.load(std::memory_order_acquire)) {
    LaneRecord at;
    {
      MutexLock lock(on.mu);
      const LaneRecord* const next = on.records.Covering(ended + 1);
      if (!next) break;
      at = *next;
    }
    if (!on.device->device->Query(at.event).ok() || rescued_.load() != 0) break;
    ended = at.seq;
  }
  RetireUpTo(on, ended);
}

// Called on the retirement thread, so that nothing retires meanwhile and no op's block goes. `look`: ops that have
// ended do not fail. It is false after an abort, when nobody can tell which work ended by itself.
void Devices::FailIssued(DeviceLane& from, const std::exception_ptr& cause, bool look) {
  struct Issued {
    DeviceLane* on;
    uint64_t seq;
    OpRecord* op;
  };
  if (look) RetireEnded(from);
  MutexLock lock(lost_mu_);
  // Set before the walk: an op that gets its number later sees it. Partner: the load in Settle, behind the lane's mu.
  any_lost_.store(true);
  {
    MutexLock lane_lock(from.mu);
    from.ended = cause;
  }
  std::vector<Issued> open;
  for (uint32_t i = 0; i < lanes(); ++i) {
    DeviceLane& on = lane(i);
    if (on.device != from.device) continue;  // other devices issue only behind work that has retired
    MutexLock lane_lock(on.mu);
    uint64_t seq = on.retired.load(std::memory_order_relaxed);
    for (OpRecord* op = on.first; op; op = op->extra.next) open.push_back({&on, ++seq, op});
  }
  ErrorRecord* root = nullptr;
  std::erase_if(open, [&](const Issued& i) REQUIRES(lost_mu_) {
    if (i.on != &from) return false;
    ErrorRecord* error =
        root ? root->Hop(i.op->extra.name, i.op->site()) : ErrorRecord::NewRoot(i.op->extra.name, i.op->site(), cause);
    if (!root) root = error;
    FailNumber(*i.on, i.seq, i.op, error);
    return true;
  });
  if (!root) return;
  for (bool more = true; more;) {
    more = std::erase_if(open, [&](const Issued& i) REQUIRES(lost_mu_) {
             ErrorRecord* const failed = FailedInput(i.op);
             if (failed) FailNumber(*i.on, i.seq, i.op, failed->Hop(i.op->extra.name, i.op->site()));
             return failed != nullptr;
           }) != 0;
  }
  core_.NoteError(root);
}

ErrorRecord* Devices::FailedInput(OpRecord* op) { return FailedAmong(failed_versions_, op); }

// Marks the op with this number as failed. Takes over the count of `error`, also if there is no memory for that.
void Devices::FailNumber(DeviceLane& on, uint64_t seq, OpRecord* op, ErrorRecord* error) {
  try {
    AddTo(failed_versions_, op, error);
    MutexLock lock(on.mu);
    on.failed.push_back({seq, error});
    on.any_failed.store(true, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    error->Release();
    throw;
  }
}

void Devices::InheritFailure(DeviceLane& on, uint64_t seq, OpRecord* op) try {
  MutexLock lock(lost_mu_);
  if (ErrorRecord* failed = FailedInput(op)) return FailNumber(on, seq, op, failed->Hop(op->extra.name, op->site()));
  std::exception_ptr ended;
  {
    MutexLock lane_lock(on.mu);
    ended = on.ended;
  }
  if (!ended) return;
  ErrorRecord* const root = ErrorRecord::NewRoot(op->extra.name, op->site(), ended);
  core_.NoteError(root);
  FailNumber(on, seq, op, root);
} catch (const std::bad_alloc&) {  // as in PollChannels
  Lose(*on.device, no_memory_);
}

// The error of an issued op, counted; null: the op has not failed.
ErrorRecord* Devices::ErrorOf(DeviceLane& on, uint64_t seq) {
  if (seq > on.good.load(std::memory_order_acquire)) return on.device->lost.load(std::memory_order_acquire)->Retain();
  if (!on.any_failed.load(std::memory_order_acquire)) return nullptr;
  MutexLock lock(on.mu);
  for (const DeviceLane::FailedOp& f : on.failed)
    if (f.seq == seq) return f.error->Retain();
  return nullptr;
}

// Called when the Var's error was cleared, or when the Var is gone and its block may become another Var.
void Devices::ForgetVar(const VarCore* var) {
  if (!AnyLost()) return;
  for (;;) {
    decltype(failed_versions_)::node_type forgotten;
    {
      MutexLock lock(lost_mu_);
      const auto at = failed_versions_.lower_bound({var, 0});
      if (at == failed_versions_.end() || at->first.first != var) return;
      forgotten = failed_versions_.extract(at);
    }
    forgotten.mapped()->Release();  // without the lock: with the record may end the program's exception
  }
}

}  // namespace engine::detail
