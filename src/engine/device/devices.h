// Devices: the device side of one engine. It has the engine's devices, their lanes, and the retirement thread.
//
//   issue.cc          how an op gets onto a lane: the lane is chosen, and waits for others; the body runs
//   record.cc         when an event is recorded behind what was issued on a lane
//   retire.cc         how the host learns what has ended: ops and waits behind device work, polling, the retirement thread
//   lost.cc           a lost device: the ops that were issued fail, and Vars are poisoned
//   timing.cc         how long the work of a body takes on the device, for those who measure
//   channel.cc        lanes that belong to a communicator, and how single ops fail after they were issued
//   channel_watch.cc  the timeout of communicators while the retirement thread is stuck in a call
//
// An op on a device has two milestones. It is issued when its order is on the device: then the protocol releases its
// Vars. It is retired when the host knows that its work has ended: then its closure is destroyed, it counts as
// completed, and what waits for it on the host goes on.
//
// Threads:   any. Lock order: make_mu_, then a lane's mu. No lock of the core's is taken under these.
// Ownership: owns the devices' lanes, events, graphs and pools. Close gives them back.
// Order:     by lanes and points (lane.h, order_point.h).
// Errors:    DeviceError, in the ops concerned; lost.cc says when a device is lost. If memory is refused, the op at which it was
//            needed fails with bad_alloc; the bookkeeping of issued ops needs none.
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
class Devices;
// The devices whose retired ops this thread is retiring, closures destroyed included; null: it retires none.
extern thread_local constinit const Devices* t_retiring;
struct Worker;

std::string NameAndSite(const OpRecord* op);  // of an issued op, for messages

// The errors of ops that failed after they were issued: counted, by Var and by the version that the op would have made.
using FailedVersions = std::map<std::pair<const Protocol::Var*, uint64_t>, ErrorRecord*>;

class BulkGraphs;
class Devices;
class MemoryPool;

struct DeviceState {
  Devices* devices = nullptr;
  std::shared_ptr<Device> device;
  uint32_t index = 0;
  uint32_t streams = 1;  // how many lanes serve the ops that ask for none; each is made on first use
  // Why the device is lost: counted, or null. Set once, before `good` of its lanes and `loss`. seq_cst. Partner:
  // LaneOf.
  std::atomic<ErrorRecord*> lost{};
  // What the engine still does with a lost device. release: publishes `good` of its lanes. Partner: the acquire in gone
  // and Poll.
  enum class Loss : uint8_t {
    kNone,       // it is not lost -> kFinishing, kGone
    kFinishing,  // the error left it working: what was issued still runs, and is waited for -> kGone
    kGone,       // it is not called any more
  };
  std::atomic<Loss> loss{Loss::kNone};
  bool gone() const { return loss.load(std::memory_order_acquire) == Loss::kGone; }
  // Its lanes, null until first use. release: LaneOf has made the lane. Partner: the acquire loads of all others.
  std::array<std::atomic<DeviceLane*>, kMaxLanes> compute{};
  std::atomic<DeviceLane*> copy_in{}, copy_out{};
  std::unique_ptr<BulkGraphs> graphs;  // used only by the thread that issues to the compute lanes
  std::shared_ptr<MemoryPool> memory, pinned;
  std::weak_ptr<const Var> collective_order;  // guarded by channels_mu_
  Mutex timers_mu;                            // no other lock is taken under it
  std::vector<DeviceTimer> spare_timers GUARDED_BY(timers_mu);
  DeviceState();
  ~DeviceState();
};

class Devices final : public DeviceSide {
 public:
  Devices(EngineCore& core, const EngineOptions& options, bool lost_by_fork = false);
  ~Devices() override;

  // The device with this index. If the options name no devices, it is made on first use. Throws UsageError if there is
  // none.
  DeviceState& Get(uint32_t index) EXCLUDES(make_mu_);

  bool Has(uint32_t index) const override;  // whether Get would find one
  void Close() override;  // ends the thread, and gives streams and events back. Called when nothing is pending any more

  // --- issue.cc
  OpRecord* Execute(ThreadSlot& slot, OpRecord* op, Worker* worker) override;
  void FinishAsync(ThreadSlot& slot, OpRecord* op, ErrorRecord* error) override;
  // The chain that is being issued on the lane has ended, or the issuer has left it.
  void EndDispatch(DeviceLane& lane);
  void EndDispatchOf(Worker& worker) override {
    if (worker.last_lane) EndDispatch(*worker.last_lane);
  }
  void NoteIdle(Worker& worker) override;
  void EndDispatchOf(OpRecord* op) override { EndDispatch(lane(op->extra.lane)); }

  // --- retire.cc
  // Whether a host op may run now, because all device work that it must come behind has retired. If not, the op is
  // parked, and is started again when more has retired. Also poisons Vars whose last write was lost with a device.
  bool MayRunOnHost(OpRecord* op) override;
  // Called by a wait before it sleeps: asks, for at most `most`, whether the Var's last write has ended, and returns
  // whether it has ended well.
  bool PollWrite(VarPoints& points, std::chrono::nanoseconds most) override;
  bool LookInPassing() override;
  bool OnThisThread() const override;
  bool Busy() const override;  // whether something that was issued has not retired
  void PollFaster() override;  // somebody waits on the host: the retirement thread asks without pauses from now on
  // Somebody waits for the ops that are parked with this word, or will be.
  void Ask(std::atomic<bool>& asked) override;
  bool Unretired(const VarPoints& points) const override NO_THREAD_SAFETY_ANALYSIS;  // in a fork's child, alone

  // --- memory.cc
  // Blocks until all that is issued has ended, except on the lanes of communicators. Used when memory has run out.
  DeviceStatus Synchronize(DeviceState& device);
  DeviceStatus Synchronize(DeviceLane& lane);
  // Sets `points` to those of all work that may still use something that this thread gives back now.
  void PointsNow(const DeviceState& device, WaitPoints* points) noexcept;

  // --- lost.cc
  void Lose(DeviceState& device, const DeviceStatus& why);
  void LoseBusy() override;             // at shutdown: loses the devices that have not ended their work in time
  ErrorRecord* LostWith(VarCore* var);  // the error with which the Var's last write was lost: counted, or null

  // --- timing.cc
  // BeginTimer and EndTimer record a timed event in front of the work to be measured, and behind it. If the device
  // refuses, nothing is measured.
  void BeginTimer(DeviceState& device, Stream stream, DeviceTimer* timer);
  void EndTimer(Stream stream, DeviceTimer* timer);
  // Called when the work has retired: returns its time, or -1, and gives the events back to the pool.
  int64_t ReadTimer(DeviceTimer* timer);

  // --- channel.cc
  Channel& OpenChannel(uint32_t device, std::shared_ptr<ChannelOwner> owner, std::chrono::nanoseconds timeout)
      EXCLUDES(channels_mu_);
  void CloseChannel(Channel& channel) EXCLUDES(channels_mu_);
  // The Var that all collectives of the device overwrite, so that they run in push order, whatever their communicator.
  std::shared_ptr<const Var> CollectiveOrder(uint32_t device, const std::function<Var()>& make) EXCLUDES(channels_mu_);
  bool HasChannel(uint32_t index) const override;
  bool HasChannelOn(const DeviceState& device) const;  // whether the device has a channel, or had one
  uint32_t ChannelDevice(uint32_t index) const override;
  bool OfChannel(const DeviceLane& lane) const;
  // Has the retirement thread look once: an owner of a channel has news, or somebody has a use for what has ended.
  void AskOwners() override;
  // An op was skipped. If it is a collective, its communicator is aborted, because the other ranks would wait for it.
  void NoteSkipped(const OpRecord* op, const ErrorRecord& why) EXCLUDES(channels_mu_);
  bool AbortChannels(const std::string& why) EXCLUDES(channels_mu_);
  void ForgetVar(const VarCore* var) override EXCLUDES(lost_mu_);
  bool AnyLost() const { return any_lost_.load(std::memory_order_acquire); }

  DeviceStats stats() const override;
  uint64_t late_looks() const { return late_looks_.load(std::memory_order_relaxed); }  // relaxed: a counter
  void Make(uint32_t index) override { Get(index); }
  Stream StreamOf(const OpRecord* op) override { return lane(op->extra.lane).stream; }
  Device& DeviceOf(const OpRecord* op) override { return *lane(op->extra.lane).device->device; }
  Device& device(uint32_t index) override { return *Get(index).device; }
  DeviceLane& lane(uint32_t id) { return *lanes_[id].load(std::memory_order_acquire); }
  uint32_t lanes() const { return n_lanes_.load(std::memory_order_acquire); }

 private:
  friend class BulkGraphs;
  friend class MemoryPool;
  DeviceLane& LaneOf(std::atomic<DeviceLane*>& place, DeviceState& device, const std::string& name, DeviceLane::Use use)
      EXCLUDES(make_mu_);
  DeviceLane& Choose(DeviceState& device, OpRecord* op);
  void Check(DeviceState& device, DeviceStatus status);
  DeviceLane* PrepareLane(DeviceState& device, OpRecord* op, Worker* worker, WaitPoints& wait_for,
                          bool* graph_may_suit);
  OpRecord* IssueBody(ThreadSlot& slot, OpRecord* op, Worker* worker, DeviceLane& on);
  static void AddWaitPoints(OpRecord* op, WaitPoints* wait_for);
  DeviceStatus Order(DeviceLane& lane, const WaitPoints& wait_for);
  DeviceStatus RecordLocked(DeviceLane& lane) noexcept REQUIRES(lane.mu);
  static void MakeRoomForRecords(DeviceLane& lane) REQUIRES(lane.mu);
  DeviceStatus HaveRecord(DeviceLane& lane, uint64_t seq) REQUIRES(lane.mu);
  void Record(DeviceLane& lane, uint64_t seq) EXCLUDES(lane.mu);  // HaveRecord, and a failure loses the device
  void WakeRetirement(DeviceLane& lane, uint64_t seq);
  static bool IsDue(const DeviceLane& lane) REQUIRES(lane.mu);
  static bool NeedsRecord(const OpRecord* ready, const DeviceLane& on);
  OpRecord* Settle(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker);
  OpRecord* SettleReplayed(ThreadSlot& slot, OpRecord* op, Worker& worker);
  OpRecord* Refuse(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker);
  static VarPoints& PointsOf(VarCore* var);
  static void HavePoints(OpRecord* op);

  static void KeepTimer(DeviceTimer* timer);
  static void Untimed(DeviceTimer* timer);

  static uint64_t UntilRoom(const DeviceLane& lane, bool in_dispatch);
  // What a look at a lane has found. kWatched: something runs that nobody awaits, and whose end nobody else would
  // notice.
  enum class Polled { kNothing, kRunning, kWatched, kAwaited, kRetired };
  // `looks`: asks about all that was issued, and not only about what is awaited.
  Polled Poll(DeviceLane& lane, bool looks) EXCLUDES(lane.mu);
  Polled PollRecords(DeviceLane& lane, bool looks) EXCLUDES(lane.mu);
  Polled PollLost(DeviceLane& lane, DeviceState::Loss loss) EXCLUDES(lane.mu);
  bool AwaitRetired(DeviceLane& lane, uint64_t seq, OpRecord* op) EXCLUDES(lane.mu);
  std::string DescribeIssued(const DeviceState& device);
  void GiveUp(DeviceState& device);
  static bool MayGoOn(DeviceState& device, const DeviceLane& on, uint32_t asked);
  void PassLostToVars(OpRecord* op);
  ErrorRecord* ErrorOf(DeviceLane& lane, uint64_t seq) EXCLUDES(lane.mu);

  // The owner, and its timeout; null: the channel is free, or has been aborted.
  std::shared_ptr<ChannelOwner> OwnerOf(const Channel& channel, std::chrono::nanoseconds* timeout = nullptr)
      EXCLUDES(channels_mu_);
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
  // Made here, because it is returned where there is no memory.
  const DeviceStatus no_memory_ =
      DeviceStatus::Fail(DeviceCode::kOutOfMemory, false, 0, "there was no memory for a call");
  Mutex make_mu_;
  std::vector<std::unique_ptr<DeviceState>> devices_ GUARDED_BY(make_mu_);
  std::vector<std::unique_ptr<DeviceLane>> lanes_made_ GUARDED_BY(make_mu_);
  std::array<std::atomic<DeviceState*>, kMaxDevices> by_index_{};
  std::array<std::atomic<DeviceLane*>, kMaxLanes> lanes_{};
  std::atomic<uint32_t> n_lanes_{0};

  // The futex word of the retirement thread. It sleeps without work, dozes by a timer, and is awake while somebody
  // waits (retire.cc).
  enum : uint32_t { kAsleep, kDozing, kAwake };
  std::atomic<uint32_t> pace_{kAsleep};
  std::atomic<uint32_t> nap_{0};  // a futex word that nobody changes: waiting on it is a sleep of a given time
  std::atomic<bool> stop_{false};
  Mutex lost_mu_;
  // Errors of ops that failed after they were issued; counted.
  FailedVersions failed_versions_ GUARDED_BY(lost_mu_);
  Mutex channels_mu_;
  std::array<Channel, kMaxChannels> channels_;
  std::atomic<uint32_t> n_channels_{0};
  // The retirement thread shall look once. seq_cst: AskOwners. Partner: ThreadMain
  std::atomic<bool> asked_{false};
  Clock::time_point channels_aborted_{};  // by LoseBusy, whose thread alone uses it
  std::atomic<bool> any_lost_{false};  // release: `lost` of a device, or `failed` of a lane. Partner: the acquire loads
  std::atomic<uint32_t> awaiting_{0};  // how many ops are parked behind lanes. seq_cst. Partner: kDozing in ThreadMain
  std::thread thread_;
  std::thread watch_;                    // channel_watch.cc
  std::atomic<uint32_t> watch_ends_{0};  // its futex word
  // How often the retirement thread has asked all lanes: while it stands still, that thread is stuck in a call.
  // Partner: Overdue.
  std::atomic<uint64_t> rounds_{0};
  // How many channels the watch has aborted whose ops have not failed yet. Meanwhile nothing may retire. seq_cst.
  // Partner: Rescue.
  std::atomic<uint32_t> rescued_{0};

  // relaxed: counters.
  std::atomic<uint64_t> records_{0}, waits_{0}, elided_{0}, events_made_{0}, queries_{0}, host_syncs_{0},
      host_waits_{0}, late_looks_{0};
  std::atomic<uint64_t> graph_captures_{0}, graph_instantiations_{0}, graph_updates_{0}, graph_launches_{0};
};

inline Devices& DevicesOf(const EngineCore& core) { return static_cast<Devices&>(core.devices()); }

}  // namespace engine::detail
