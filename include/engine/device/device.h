// Device: all that the engine knows of a GPU. Streams, events, copies, ordered memory, graph capture, the last error.
//
// Backends: `cuda` (MakeCudaDevice) and `software` (software_device.h), which is made of CPU threads or of a virtual
// clock and keeps the same contract; one conformance suite is run on both. Meanings are CUDA's where it has one:
//   stream   work on it runs in the order of the calls; work on two streams is unordered unless an event orders it;
//   event    Record overwrites it: later waits and queries see the newest record, earlier ones keep what they saw.
//            An event that was never recorded is ready, and waiting for it passes at once;
//   copy     asynchronous if the host memory is pinned; a pageable one blocks the host until it is over.
// No call but Synchronize, pageable copies, AllocatePinned and FreePinned blocks the host on device work.
//
// Threads:   every method may be called on any thread, at the same time. Calls that race on one stream are ordered
//            one way or the other. A capture belongs to the thread that began it.
// Ownership: held by std::shared_ptr. Handles are plain values, valid until they are destroyed; destroy them before
//            the device. Destroying a stream or an event with work pending is fine: the work still happens.
// Errors:    nothing throws. Each call returns a DeviceStatus, and the caller decides. A sticky one means that the
//            device is lost: every later call returns it as well. Null handles are refused, so stream 0 is never used.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/error.h"

namespace engine {

enum class DeviceCode : uint8_t {
  kOk,
  kNotReady,  // of Query: the work before the record has not ended; no error
  kInvalidValue,
  kInvalidHandle,  // null, destroyed, or of another device
  kWrongMemory,    // debug checks: a host pointer where a device pointer belongs, or the other way round
  kSyncInBody,     // debug checks: Synchronize in the body of an op on a device
  kWrongStream,    // debug checks, software only: a body's work on a stream that is not its op's, nor joined to that
  kOutOfMemory,
  kNoDevice,  // no such device, no driver, or a build without the backend
  kUnsupported,
  kLaunchFailed,    // sticky: a kernel failed while it ran
  kIllegalAddress,  // sticky
  kDeviceFault,     // sticky: any other error that ends the device
  // Capture. All but kCaptureWrongThread and kCaptureMode spoil the captures concerned: EndCapture then says
  // kCaptureInvalidated and gives no graph.
  kCaptureMode,         // a call that makes no sense now: begin twice, end without begin, pageable copy, allocation
  kCaptureUnsupported,  // the host looked at a stream that captures, or did what the thread may not while it captures
  kCaptureInvalidated,  // an earlier error spoilt the capture
  kCaptureMerge,        // a wait would join two captures
  kCaptureUnmatched,    // EndCapture on another stream than BeginCapture
  kCaptureUnjoined,     // EndCapture while a stream that joined has work that the first one did not wait for
  kCaptureIsolation,    // a capturing stream would wait for an event outside the capture
  kCaptureWrongThread,  // EndCapture on another thread than BeginCapture
  kCapturedEvent,       // the host looked at an event that was last recorded in a capture
  kGraphUpdateFailed,   // the graphs differ in more than parameters: instantiate again
  kUnknown,
};
const char* DeviceCodeName(DeviceCode code) noexcept;  // "kOk", ...

// What a call says. Good ones and NotReady cost no allocation.
class [[nodiscard]] DeviceStatus {
 public:
  DeviceStatus() noexcept = default;
  static DeviceStatus NotReady() noexcept { return DeviceStatus(DeviceCode::kNotReady, false, 0); }
  // `text` says what was asked for and what is wrong with it: "Record(event 3, stream 1): the event was destroyed".
  static DeviceStatus Fail(DeviceCode code, bool sticky, int native, std::string text) {
    DeviceStatus status(code, sticky, native);
    status.text_ = std::make_shared<const std::string>(std::move(text));
    return status;
  }

  bool ok() const noexcept { return code_ == DeviceCode::kOk; }
  bool failed() const noexcept { return code_ > DeviceCode::kNotReady; }
  bool sticky() const noexcept { return sticky_; }
  DeviceCode code() const noexcept { return code_; }
  int native_code() const noexcept { return native_; }  // a cudaError_t on cuda, else 0
  std::string text() const;                             // code and text; "ok" if nothing is wrong

 private:
  DeviceStatus(DeviceCode code, bool sticky, int native) noexcept : code_(code), sticky_(sticky), native_(native) {}
  DeviceCode code_ = DeviceCode::kOk;
  bool sticky_ = false;
  int32_t native_ = 0;
  std::shared_ptr<const std::string> text_;
};

// For those who do throw.
class DeviceError : public Error {
 public:
  explicit DeviceError(DeviceStatus status) : Error(status.text()), status_(std::move(status)) {}
  const DeviceStatus& status() const noexcept { return status_; }

 private:
  DeviceStatus status_;
};

// A handle of a device: a pointer of the backend's, of a type of its own. Null when default.
template <class Tag>
struct DeviceHandle {
  void* raw = nullptr;
  explicit operator bool() const noexcept { return raw != nullptr; }
  friend bool operator==(DeviceHandle, DeviceHandle) noexcept = default;
};
using Stream = DeviceHandle<struct StreamTag>;
using Event = DeviceHandle<struct EventTag>;
using DeviceGraph = DeviceHandle<struct DeviceGraphTag>;          // what a capture gave
using DeviceGraphNode = DeviceHandle<struct DeviceGraphNodeTag>;  // one call in it; lives as long as its graph
using DeviceGraphExec = DeviceHandle<struct DeviceGraphExecTag>;  // a graph made ready to be launched

// Whose memory a pointer is. As an argument kUnknown has the device find out, which costs a look-up.
enum class MemoryKind : uint8_t { kUnknown, kDevice, kPinned, kPageable };

struct DeviceInfo {
  std::string kind;  // "cuda", "software"
  int ordinal = 0;
  std::string description;     // for people: "NVIDIA H200, 132 SMs, driver 13.0", "software, 8 threads"
  int least_priority = 0;      // of streams; smaller numbers go first
  int greatest_priority = 0;   // <= least_priority
  std::string unchecked = {};  // debug checks that were asked for and cannot be made here, and why; else empty
};

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const noexcept { return info_; }
  // Makes this the current device of the calling thread, which code that launches kernels by itself needs.
  virtual DeviceStatus MakeCurrent() = 0;
  // The sticky error, if the device is lost; else the last error of the calling thread, which is forgotten by this.
  // How a launch that returns nothing (<<<>>>) is asked whether it failed.
  virtual DeviceStatus TakeLastError() = 0;

  // Streams are non-blocking: they never wait for stream 0. A priority out of range is refused.
  virtual DeviceStatus CreateStream(int priority, Stream* stream) = 0;
  virtual DeviceStatus DestroyStream(Stream stream) = 0;
  virtual void* NativeStream(Stream stream) const noexcept = 0;  // a cudaStream_t on cuda, else null
  // Events have no timing. Creating and destroying them is slow: keep them.
  virtual DeviceStatus CreateEvent(Event* event) = 0;
  // One that notes when it is reached, for Elapsed; else like any other.
  virtual DeviceStatus CreateTimedEvent(Event* event) = 0;
  virtual DeviceStatus DestroyEvent(Event event) = 0;

  virtual DeviceStatus Record(Event event, Stream stream) = 0;
  virtual DeviceStatus Wait(Stream stream, Event event) = 0;  // on the device: later work of the stream waits
  virtual DeviceStatus Query(Event event) = 0;                // ok, kNotReady or an error
  virtual DeviceStatus Query(Stream stream) = 0;              // the same, of all that is on the stream by now
  // The device's time between the newest records of two timed events. Waits for nothing: kNotReady until both have been
  // reached, kInvalidHandle if one was never recorded or has no timing.
  virtual DeviceStatus Elapsed(Event from, Event to, std::chrono::nanoseconds* took) = 0;
  virtual DeviceStatus Synchronize(Event event) = 0;  // blocks; sleeps rather than spins
  virtual DeviceStatus Synchronize(Stream stream) = 0;

  // `memory` is of the host side. A pageable copy blocks the host until it is over, and is refused during capture.
  virtual DeviceStatus CopyIn(void* to_device, const void* from_host, size_t bytes, Stream stream,
                              MemoryKind memory = MemoryKind::kUnknown) = 0;
  virtual DeviceStatus CopyOut(void* to_host, const void* from_device, size_t bytes, Stream stream,
                               MemoryKind memory = MemoryKind::kUnknown) = 0;
  virtual DeviceStatus CopyWithin(void* to_device, const void* from_device, size_t bytes, Stream stream) = 0;

  // Ordered memory: usable by work on `stream` behind Allocate, and by other streams that wait for that point. Free
  // takes it back behind the work that is on `stream` by then. From a pool that keeps what it got; refused during
  // capture. `bytes` 0 gives null, and freeing null does nothing.
  virtual DeviceStatus Allocate(size_t bytes, Stream stream, void** memory) = 0;
  virtual DeviceStatus Free(void* memory, Stream stream) = 0;
  // Gives back to the driver what the pool holds beyond `keep` bytes and nobody uses.
  virtual DeviceStatus TrimPool(size_t keep) = 0;
  // Host memory that the device reaches by itself. Slow, may wait for the whole device: keep it.
  virtual DeviceStatus AllocatePinned(size_t bytes, void** memory) = 0;
  virtual DeviceStatus FreePinned(void* memory) = 0;
  virtual DeviceStatus KindOf(const void* memory, MemoryKind* kind) = 0;  // memory unknown to the device: kPageable

  // Capture, in thread-local mode: until EndCapture, work on `stream` is noted instead of run, and so is work on
  // streams that wait for an event recorded in the capture; these join back by an event that `stream` waits for.
  // Meanwhile this thread may not synchronize, query or touch pinned allocations; others may. EndCapture ends the capture
  // whatever it returns, except kCaptureWrongThread and kCaptureUnmatched. Without success there is no graph.
  virtual DeviceStatus BeginCapture(Stream stream) = 0;
  virtual DeviceStatus EndCapture(Stream stream, DeviceGraph* graph) = 0;
  virtual DeviceStatus IsCapturing(Stream stream, bool* capturing) = 0;  // true also for a spoilt capture
  // The node that the newest captured call on this stream made. kInvalidValue if there is not exactly one.
  virtual DeviceStatus LastNode(Stream stream, DeviceGraphNode* node) = 0;
  virtual DeviceStatus DestroyGraph(DeviceGraph graph) = 0;

  // `bytes` (may be null): device memory that the executable took, as measured around the call; 0 if unknown.
  // The graph may be destroyed afterwards, but not if nodes of it are to be updated.
  virtual DeviceStatus Instantiate(DeviceGraph graph, DeviceGraphExec* exec, size_t* bytes) = 0;
  // Gives `exec` all the parameters of `graph`. kGraphUpdateFailed, and an unchanged `exec`, if their structures differ.
  virtual DeviceStatus Update(DeviceGraphExec exec, DeviceGraph graph) = 0;
  // Gives one node (of the graph that `exec` was made of) the parameters of `from`, a node of the same kind in any
  // graph: capture the op alone, then take its node over. Launches that were made before keep what they had.
  virtual DeviceStatus UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, DeviceGraphNode from) = 0;
  // One executable never overlaps itself: a launch waits on the device for the launch before.
  virtual DeviceStatus Launch(DeviceGraphExec exec, Stream stream) = 0;
  virtual DeviceStatus DestroyGraphExec(DeviceGraphExec exec) = 0;

 protected:
  explicit Device(DeviceInfo info) : info_(std::move(info)) {}
  DeviceInfo info_;
};

// The CUDA devices of this machine; 0 without a driver or without the backend, and then `why` (may be null) says so.
int CudaDeviceCount(std::string* why = nullptr);
// Throws DeviceError (kNoDevice) that says what is missing. `debug_checks`: kWrongMemory and kSyncInBody are looked for, the
// latter by CUPTI in the whole process (DeviceInfo::unchecked says if it cannot).
std::shared_ptr<Device> MakeCudaDevice(int ordinal, bool debug_checks = false);
// By name, for those who cannot hold one: "cuda", "cuda:1", "software". UsageError for any other.
std::shared_ptr<Device> MakeDevice(std::string_view name);

}  // namespace engine
