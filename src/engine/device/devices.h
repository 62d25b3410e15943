// Devices: the device side of one engine: its devices, their lanes, and the thread that learns what has retired.
//
//   issue.cc    an op's way onto a lane: choose the lane, wait for other lanes, run the body, record
//   retire.cc   host ops and waits behind device work; polling; the retirement thread
//   lost.cc     a device that is lost: what had been issued fails, Vars are poisoned
//   timing.cc   how long the work of a body takes there, for those who measure
//   channel.cc  lanes with an owner, communicators; the failure of single ops that were issued
//   channel_watch.cc  their timeout, where a call of the device's is stuck
//
// Two milestones. Issued: the order of the op is on the device; the protocol releases its Vars then. Retired: the host
// knows that it ended; then its closure is destroyed, it counts as completed, and what waits on the host goes on.
//
// Threads:   any. Lock order: make_mu, then a lane's mu, then nothing of the core's.
// Errors:    DeviceError, in the ops concerned; see lost.cc.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "core/core.h"
#include "core/device_side.h"
#include "device/channel.h"
#include "device/lane.h"
#include "engine/engine.h"
#include "order/op_record.h"

namespace engine::detail {

class EngineCore;
struct Pass;
struct ThreadSlot;
struct VarCore;
// Set while this thread destroys the closures of ops that have retired.
extern thread_local constinit bool t_retiring;
struct Worker;

// Of what was issued and failed: the error, counted, by Var and the version that it made.
using FailedVersions = std::map<std::pair<const Protocol::Var*, uint64_t>, ErrorRecord*>;

class BulkGraphs;
class Devices;
class MemoryPool;

struct DeviceState {
  Devices* devices = nullptr;
  std::shared_ptr<Device> device;
  uint32_t index = 0;
  uint32_t streams = 1;              // lanes for compute, made on first use
  std::atomic<ErrorRecord*> lost{};  // counted; set once, before `good` of its lanes and `loss`
  // What of a lost device is still to come. release: `good` of its lanes. Partner: acquire loads
  enum class Loss : uint8_t {
    kNone,  // -> kEnds, kGone
    kEnds,  // lost by an error that left it working: what was issued still runs, and is waited for -> kGone
    kGone,  // asked for nothing more
  };
  std::atomic<Loss> loss{Loss::kNone};
  bool gone() const { return loss.load(std::memory_order_acquire) == Loss::kGone; }
  std::array<std::atomic<DeviceLane*>, kMaxLanes> compute{};  // release: the lane. Partner: acquire loads
  std::atomic<DeviceLane*> copy_in{}, copy_out{};
  std::unique_ptr<BulkGraphs> graphs;  // the compute issuer's
  std::shared_ptr<MemoryPool> memory, pinned;
  std::weak_ptr<const Var> collective_order;  // by channels_mu_
  Mutex timers_mu;                            // nothing is taken under it
  std::vector<DeviceTimer> spare_timers GUARDED_BY(timers_mu);
  DeviceState();
  ~DeviceState();
};

class Devices final : public DeviceSide {
 public:
  Devices(EngineCore& core, const EngineOptions& options, bool lost_by_fork = false);
  ~Devices() override;

  // The device of a placement, made on first use where the options gave none. Throws UsageError.
  DeviceState& Get(uint32_t index) EXCLUDES(make_mu_);

  bool Has(uint32_t index) const override;  // whether Get would find one
  void Close() override;  // nothing is pending any more: ends the thread, gives streams and events back

  // --- issue.cc
  OpRecord* Execute(ThreadSlot& slot, OpRecord* op, Worker* worker) override;
  void FinishAsync(ThreadSlot& slot, OpRecord* op, ErrorRecord* error) override;
  // The run of a chain ended, or was left.
  void EndDispatch(DeviceLane& lane);
  void EndDispatchOf(Worker& worker) override {
    if (worker.last_lane) EndDispatch(*worker.last_lane);
  }
  void NoteIdle(Worker& worker) override;
  void EndDispatchOf(OpRecord* op) override { EndDispatch(lane(op->extra.lane)); }

  // --- retire.cc
  // Whether a host op may run: all device work on its Vars that it must come behind has retired. If not, the op will
  // be started again when more has. Passes the error of lost lanes to the Vars.
  bool MayRunOnHost(OpRecord* op) override;
  // For a wait, before it sleeps: true if the Var's last write has retired, looking for at most `most`.
  bool PollWrite(VarPoints& points, std::chrono::nanoseconds most) override;
  bool Busy() const override;                   // something issued has not retired
  void PollFaster() override;                   // a host waiter came: polls at the pace of waiters from now on
  void Ask(std::atomic<bool>& asked) override;  // the same for what is parked, or will be, with this word
  bool Unretired(const VarPoints& points) const override NO_THREAD_SAFETY_ANALYSIS;  // in a fork's child, alone

  // --- memory.cc
  // The host waits for all that is issued, but by communicators. Where memory ran out.
  DeviceStatus Synchronize(DeviceState& device);
  DeviceStatus Synchronize(DeviceLane& lane);
  // Behind what work may still use something that is given back here and now.
  void PointsNow(const DeviceState& device, std::vector<OrderPoint>* points);

  // --- lost.cc
  void Lose(DeviceState& device, const DeviceStatus& why);
  void LoseBusy() override;             // at shutdown: those on which something never ends
  ErrorRecord* LostWith(VarCore* var);  // what the Var's last write was lost with, counted, or null

  // --- timing.cc
  // Notes the time on the stream in front of what is issued next, and behind it. What the device refuses is not timed.
  void BeginTimer(DeviceState& device, Stream stream, DeviceTimer* timer);
  void EndTimer(Stream stream, DeviceTimer* timer);
  // Once the work has retired: its time, or -1; the events go back to the pool.
  int64_t ReadTimer(DeviceTimer* timer);

  // --- channel.cc
  Channel& OpenChannel(uint32_t device, std::shared_ptr<ChannelOwner> owner, std::chrono::nanoseconds timeout)
      EXCLUDES(channels_mu_);
  void CloseChannel(Channel& channel) EXCLUDES(channels_mu_);
  // The Var that all collectives of the device overwrite, so that they run in push order, whatever their communicator.
  std::shared_ptr<const Var> CollectiveOrder(uint32_t device, const std::function<Var()>& make) EXCLUDES(channels_mu_);
  bool HasChannel(uint32_t index) const override;
  bool HasChannelOn(const DeviceState& device) const;  // or had
  uint32_t ChannelDevice(uint32_t index) const override;
  bool OfChannel(const DeviceLane& lane) const;
  // An owner has something to say, or somebody has a use for what has ended: the retirement thread looks at once.
  void AskOwners() override;
  void NoteSkipped(const OpRecord* op, const ErrorRecord& why) EXCLUDES(channels_mu_);  // nothing, unless of a channel
  bool AbortChannels(const std::string& why) EXCLUDES(channels_mu_);
  void ForgetVar(const VarCore* var) override EXCLUDES(lost_mu_);
  bool AnyLost() const { return any_lost_.load(std::memory_order_acquire); }

  DeviceStats stats() const override;
  void Make(uint32_t index) override { Get(index); }
  Stream StreamOf(const OpRecord* op) override { return lane(op->extra.lane).stream; }
  Device& DeviceOf(const OpRecord* op) override { return *lane(op->extra.lane).device->device; }
  Device& device(uint32_t index) override { return *Get(index).device; }
  DeviceLane& lane(uint32_t id) { return *lanes_[id].load(std::memory_order_acquire); }
  uint32_t lanes() const { return n_lanes_.load(std::memory_order_acquire); }

 private:
  friend class BulkGraphs;
  friend class MemoryPool;
  struct WaitPoints {  // of an op or a run: per lane, the number that it must come behind
    std::array<uint64_t, kMaxLanes> seq{};
    uint32_t lanes = 0;  // mask
    void Add(OrderPoint p) {
      if (p.seq == 0) return;
      lanes |= 1u << p.lane;
      seq[p.lane] = std::max(seq[p.lane], p.seq);
    }
  };
  DeviceLane& LaneOf(std::atomic<DeviceLane*>& place, DeviceState& device, const std::string& name, DeviceLane::Use use)
      EXCLUDES(make_mu_);
  DeviceLane& Choose(DeviceState& device, OpRecord* op);
  static void AddWaitPoints(OpRecord* op, WaitPoints* wait_for);
  DeviceStatus Order(DeviceLane& lane, const WaitPoints& wait_for);
  DeviceStatus RecordLocked(DeviceLane& lane) REQUIRES(lane.mu);
  DeviceStatus HaveRecord(DeviceLane& lane, uint64_t seq) REQUIRES(lane.mu);
  void Record(DeviceLane& lane, uint64_t seq) EXCLUDES(lane.mu);  // so that one covers it, now or at the end of the run
  void WakeRetirement(DeviceLane& lane, uint64_t seq);
  static bool IsDue(const DeviceLane& lane) REQUIRES(lane.mu);
  static bool NeedsRecord(const OpRecord* ready, const DeviceLane& on);
  OpRecord* Settle(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker);
  OpRecord* SettleReplayed(ThreadSlot& slot, OpRecord* op, Worker& worker);
  OpRecord* Refuse(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker);
  static VarPoints& PointsOf(VarCore* var);

  static void KeepTimer(DeviceTimer* timer);
  static void Untimed(DeviceTimer* timer);

  static uint64_t UntilRoom(const DeviceLane& lane, bool in_run);
  // kWatched: nobody awaits it, and nobody would come to tell how it ends.
  enum class Polled { kNothing, kRunning, kWatched, kAwaited, kRetired };
  // `looks`: at all that has ended, not only at what is awaited.
  Polled Poll(DeviceLane& lane, bool looks) EXCLUDES(lane.mu);
  Polled PollRecords(DeviceLane& lane, bool looks) EXCLUDES(lane.mu);
  Polled PollLost(DeviceLane& lane, DeviceState::Loss loss) EXCLUDES(lane.mu);
  bool AwaitRetired(DeviceLane& lane, uint64_t seq, OpRecord* op) EXCLUDES(lane.mu);
  std::string DescribeIssued(const DeviceState& device);
  void GiveUp(DeviceState& device);
  static bool MayGoOn(DeviceState& device, const DeviceLane& on, uint32_t asked);
  void PassLostToVars(OpRecord* op);
  ErrorRecord* ErrorOf(DeviceLane& lane, uint64_t seq) EXCLUDES(lane.mu);

  void PollChannels() EXCLUDES(channels_mu_);
  void CloseChannels() EXCLUDES(channels_mu_);
  void CheckTimeout(Channel& channel, DeviceLane& on, ChannelOwner& owner, std::chrono::nanoseconds timeout)
      EXCLUDES(on.mu);
  void RetireEnded(DeviceLane& on) EXCLUDES(on.mu);
  void FailIssued(DeviceLane& from, const std::exception_ptr& cause, bool look) EXCLUDES(lost_mu_);
  void FailNumber(DeviceLane& on, uint64_t seq, OpRecord* op, ErrorRecord* error) REQUIRES(lost_mu_);
  ErrorRecord* FailedInput(OpRecord* op) REQUIRES(lost_mu_);
  void InheritFailure(DeviceLane& on, uint64_t seq, OpRecord* op) EXCLUDES(lost_mu_);
  void RetireUpTo(DeviceLane& lane, uint64_t seq) EXCLUDES(lane.mu);
  static void NoteEnded(DeviceLane& lane, uint64_t seq);
  // --- channel_watch.cc
  void StartWatch() EXCLUDES(make_mu_);
  void EndWatch();
  void WatchMain();
  bool Overdue(Channel& channel, std::chrono::nanoseconds timeout);
  void Rescue(Channel& channel, ChannelOwner& owner, std::chrono::nanoseconds timeout);

  void ThreadMain();
  void GiveBack() EXCLUDES(make_mu_);

  EngineCore& core_;
  const EngineOptions& options_;
  const bool lost_by_fork_;
  Mutex make_mu_;
  std::vector<std::unique_ptr<DeviceState>> devices_ GUARDED_BY(make_mu_);
  std::vector<std::unique_ptr<DeviceLane>> lanes_made_ GUARDED_BY(make_mu_);
  std::array<std::atomic<DeviceState*>, kMaxDevices> by_index_{};
  std::array<std::atomic<DeviceLane*>, kMaxLanes> lanes_{};
  std::atomic<uint32_t> n_lanes_{0};

  // Futex word of the retirement thread: kAsleep without work, kDozing on a timer, kAwake while somebody waits.
  enum : uint32_t { kAsleep, kDozing, kAwake };
  std::atomic<uint32_t> pace_{kAsleep};
  std::atomic<uint32_t> nap_{0};  // futex word that nobody changes
  std::atomic<bool> stop_{false};
  Mutex lost_mu_;
  // The error of what an op would have made that failed after it was issued; counted. By Var and version.
  FailedVersions failed_versions_ GUARDED_BY(lost_mu_);
  Mutex channels_mu_;
  std::array<Channel, kMaxChannels> channels_;
  std::atomic<uint32_t> n_channels_{0};
  std::atomic<bool> attention_{false};  // see AskOwners
  std::atomic<bool> any_lost_{false};
  std::atomic<uint32_t> awaiting_{0};  // ops parked behind lanes
  std::thread thread_;
  std::thread watch_;                    // of the channels
  std::atomic<uint32_t> watch_ends_{0};  // futex word of it
  std::atomic<uint64_t> rounds_{0};      // of the retirement thread. Partner: Overdue
  std::atomic<uint32_t> rescued_{0};  // channels that the watch has aborted, and nobody has failed yet: nothing retires

  // relaxed: counters.
  std::atomic<uint64_t> records_{0}, waits_{0}, elided_{0}, events_made_{0}, queries_{0}, host_syncs_{0},
      host_waits_{0}, late_looks_{0};
  std::atomic<uint64_t> graph_captures_{0}, graph_instantiations_{0}, graph_updates_{0}, graph_launches_{0};
};

inline Devices& DevicesOf(const EngineCore& core) { return static_cast<Devices&>(core.devices()); }

}  // namespace engine::detail
