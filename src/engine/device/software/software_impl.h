// SoftwareDeviceImpl: the host's side of a software device. It validates, counts, prices, injects faults, tells
// observers, notes captures, and hands the rest to an executor.
//
// Threads:   one lock for everything on this side; blocking calls drop it before they block.
// Locks:     mu_, then those of the executor.
// Errors:    a call fails before it has changed anything.
#pragma once

#include <map>

#include "device/software/handle_table.h"
#include "device/software/software_capture.h"
#include "device/software/software_memory.h"

namespace engine::detail {

// The device's lock. A kernel body that calls the device is refused here; otherwise it would wait for itself.
class SCOPED_CAPABILITY DeviceLock {
 public:
  explicit DeviceLock(Mutex& mu) ACQUIRE(mu) : mu_(mu) {
    if (InsideKernel()) {
      throw DeviceError(DeviceStatus::Fail(DeviceCode::kUnsupported, false, 0, "a kernel body called the device"));
    }
    mu_.Lock();
  }
  ~DeviceLock() RELEASE() { mu_.Unlock(); }
  DeviceLock(const DeviceLock&) = delete;

 private:
  Mutex& mu_;
};

class SoftwareDeviceImpl final : public SoftwareDevice {
 public:
  explicit SoftwareDeviceImpl(SoftwareDeviceOptions options);
  ~SoftwareDeviceImpl() override;

  DeviceStatus MakeCurrent() override { return {}; }
  DeviceStatus TakeLastError() override;
  DeviceStatus CreateStream(int priority, engine::Stream* stream) override;
  DeviceStatus DestroyStream(engine::Stream stream) override;
  void* NativeStream(engine::Stream) const noexcept override { return nullptr; }
  DeviceStatus CreateEvent(engine::Event* event) override { return NewEvent(event, false); }
  DeviceStatus CreateTimedEvent(engine::Event* event) override { return NewEvent(event, true); }
  DeviceStatus DestroyEvent(engine::Event event) override;
  DeviceStatus Record(engine::Event event, engine::Stream stream) override;
  DeviceStatus Wait(engine::Stream stream, engine::Event event) override;
  DeviceStatus Query(engine::Event event) override;
  DeviceStatus Query(engine::Stream stream) override;
  DeviceStatus Elapsed(engine::Event from, engine::Event to, std::chrono::nanoseconds* took) override;
  DeviceStatus Synchronize(engine::Event event) override;
  DeviceStatus Synchronize(engine::Stream stream) override;
  DeviceStatus CopyIn(void* to, const void* from, size_t bytes, engine::Stream stream, MemoryKind memory) override;
  DeviceStatus CopyOut(void* to, const void* from, size_t bytes, engine::Stream stream, MemoryKind memory) override;
  DeviceStatus CopyWithin(void* to, const void* from, size_t bytes, engine::Stream stream) override;
  DeviceStatus Allocate(size_t bytes, engine::Stream stream, void** memory) override;
  DeviceStatus Free(void* memory, engine::Stream stream) override;
  DeviceStatus TrimPool(size_t keep) override;
  DeviceStatus AllocatePinned(size_t bytes, void** memory) override;
  DeviceStatus FreePinned(void* memory) override;
  DeviceStatus KindOf(const void* memory, MemoryKind* kind) override;
  DeviceStatus BeginCapture(engine::Stream stream) override;
  DeviceStatus EndCapture(engine::Stream stream, DeviceGraph* graph) override;
  DeviceStatus IsCapturing(engine::Stream stream, bool* capturing) override;
  DeviceStatus LastNode(engine::Stream stream, DeviceGraphNode* node) override;
  DeviceStatus DestroyGraph(DeviceGraph graph) override;
  DeviceStatus Instantiate(DeviceGraph graph, DeviceGraphExec* exec, size_t* bytes) override;
  DeviceStatus Update(DeviceGraphExec exec, DeviceGraph graph) override;
  DeviceStatus UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, DeviceGraphNode from) override;
  DeviceStatus UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, const KernelLaunch& launch) override;
  DeviceStatus LaunchKernel(const KernelLaunch& launch, engine::Stream stream) override;
  DeviceStatus Launch(DeviceGraphExec exec, engine::Stream stream) override;
  DeviceStatus DestroyGraphExec(DeviceGraphExec exec) override;
  DeviceStatus Launch(engine::Stream stream, SoftwareKernel kernel) override;
  DeviceStatus LaunchHeld(engine::Stream stream, std::string name, uint64_t* hold) override;
  void Release(uint64_t hold) override;
  void AtCall(DeviceCall call, uint64_t nth, std::function<void()> then) override;
  void FailCall(DeviceCall call, uint64_t nth, DeviceCode code, bool sticky) override;
  void FailKernel(uint64_t nth, DeviceCode code) override;
  uint64_t HangKernel(uint64_t nth) override;
  SoftwareDeviceOptions::Clock clock() const noexcept override { return options_.clock; }
  DeviceCounts counts() const override;
  std::chrono::nanoseconds now() const override { return executor_->Now(); }
  void Advance(std::chrono::nanoseconds by) override { executor_->Advance(by); }
  void RunUntilIdle() override;

 private:
  static SoftwareKernel KernelOf(const KernelLaunch& launch);
  struct StreamState {
    Lane* lane;
    CapturePoint point;
  };
  struct EventState {
    uint64_t id;  // for observers
    bool timed;
    Marker marker = {};
    CapturePoint point = {};
    std::shared_ptr<Nanoseconds> reached_at = {};  // timed: of the newest record
  };
  struct Fault {
    enum class Kind : uint8_t { kCall, kKernel, kHang } kind;
    DeviceCall call;
    uint64_t at;  // the count, of the call or of kernels, at which it strikes
    DeviceCode code;
    bool sticky;
    uint64_t hold;
  };

  struct Moment {
    DeviceCall call;
    uint64_t at;
    std::function<void()> then;
  };

  // Every call begins here: counts it, lets time pass, and finds out whether it has to fail.
  DeviceStatus Enter(DeviceCall call) REQUIRES(mu_);
  DeviceStatus Lost() REQUIRES(mu_);
  DeviceStatus Fail(DeviceCode code, std::string text) REQUIRES(mu_);
  uint64_t& Count(DeviceCall call) REQUIRES(mu_) { return counts_.calls[static_cast<size_t>(call)]; }
  DeviceStatus BadStream(const char* call, engine::Stream stream) REQUIRES(mu_);
  DeviceStatus BadEvent(const char* call, engine::Event event) REQUIRES(mu_);

  DeviceStatus NewEvent(engine::Event* event, bool timed);
  static uint16_t NextSerial();

  // The capture that the stream is in, or null.
  Capture* CaptureOf(StreamState& stream) REQUIRES(mu_);
  // Refuses what a thread may not do while it captures, and spoils its captures.
  DeviceStatus RefuseInCapture(const char* call) REQUIRES(mu_);
  DeviceStatus RefuseCaptured(const char* call, EventState& event) REQUIRES(mu_);
  DeviceStatus RefuseCapturing(const char* call, StreamState& stream) REQUIRES(mu_);
  DeviceStatus WaitInCapture(StreamState& stream, EventState& event) REQUIRES(mu_);
  void Forget(Capture& capture) REQUIRES(mu_);

  // Work on a stream: noted or run.
  DeviceStatus Enqueue(StreamState& stream, std::shared_ptr<const SoftwareKernel> work, bool copy) REQUIRES(mu_);
  enum class Direction : uint8_t { kIn, kOut, kWithin };
  DeviceStatus Copy(const char* name, void* to, const void* from, size_t bytes, engine::Stream stream,
                    Direction direction, MemoryKind host);
  DeviceStatus CheckCopy(const char* name, const void* device, const void* host, size_t bytes, MemoryKind* kind)
      REQUIRES(mu_);
  void NoteWork(const std::string& name, const StreamState& to) REQUIRES(mu_);
  Lane* TakeLane() REQUIRES(mu_);
  void Run(Lane* lane, std::shared_ptr<const SoftwareKernel> work, Nanoseconds gap, bool copy) REQUIRES(mu_);
  void Push(Lane* lane, Command command) REQUIRES(mu_);
  // Later work of the lane comes behind the marker; `event` is how observers know it.
  void Order(Lane* lane, const Marker& behind, uint64_t event) REQUIRES(mu_);
  Marker Mark(Lane* lane, uint64_t event) REQUIRES(mu_);
  // Blocks without the lock until the marker is reached, and tells observers.
  DeviceStatus Block(const Marker& until, uint64_t event) EXCLUDES(mu_);
  DeviceObserver* observer() const { return options_.observer.get(); }

  const SoftwareDeviceOptions options_;
  const uint16_t serial_ = NextSerial();  // in its handles, so that another device's are noticed
  mutable Mutex mu_;
  DeviceCounts counts_ GUARDED_BY(mu_);
  std::vector<Fault> faults_ GUARDED_BY(mu_);
  std::vector<Moment> moments_ GUARDED_BY(mu_);
  HandleTable<StreamState> streams_ GUARDED_BY(mu_){1, serial_};
  HandleTable<EventState> events_ GUARDED_BY(mu_){2, serial_};
  HandleTable<CapturedGraph> graphs_ GUARDED_BY(mu_){3, serial_};
  HandleTable<CapturedNode> nodes_ GUARDED_BY(mu_){4, serial_};
  HandleTable<GraphExec> execs_ GUARDED_BY(mu_){5, serial_};
  SoftwareMemory memory_ GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Capture>> captures_ GUARDED_BY(mu_);  // in progress
  std::vector<Lane*> idle_lanes_ GUARDED_BY(mu_);                   // of streams that are gone; may still have work
  uint32_t next_lane_ GUARDED_BY(mu_) = 1;
  uint64_t next_event_ GUARDED_BY(mu_) = 1;
  uint64_t next_hold_ GUARDED_BY(mu_) = 1;
  uint64_t kernels_ GUARDED_BY(mu_) = 0;  // given to the executor
  std::map<uint64_t, std::shared_ptr<Hold>> holds_ GUARDED_BY(mu_);
  std::map<std::thread::id, DeviceStatus> last_errors_ GUARDED_BY(mu_);
  std::unique_ptr<Executor> executor_;  // last: its threads end before anything else goes
};

}  // namespace engine::detail
