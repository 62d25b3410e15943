// Device: all that the engine knows of a GPU: streams, events, copies, ordered memory, graph capture, the last error.
//
// Backends: `cuda` (MakeCudaDevice) and `software` (software_device.h), which consists of CPU threads or of a virtual
// clock and keeps the same contract; one conformance suite runs on both. Words mean what they mean in CUDA:
//   stream   work on it runs in the order of the calls; work on two streams is unordered unless an event orders it;
//   event    Record overwrites it: later waits and queries see the newest record, earlier ones keep the one they saw.
//            An event that was never recorded is ready, and a wait for it passes at once;
//   copy     asynchronous if the host memory is pinned; a copy of pageable memory blocks the host until it is over.
// Only Synchronize, pageable copies, AllocatePinned and FreePinned block the host on device work.
//
// Threads:   every method may be called on any thread, at the same time. Calls that race on one stream are ordered one
//            way or the other. A capture belongs to the thread that began it.
// Ownership: held by std::shared_ptr. Handles are plain values, valid until they are destroyed; destroy them before the
//            device. A stream or an event may be destroyed with work pending: the work still happens.
// Errors:    no method throws. Each call returns a DeviceStatus, and the caller decides. A sticky status means that the
//            device is lost: every later call returns it too. Null handles are refused, so stream 0 is never used.
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
  kNotReady,  // of Query: the work before the record has not ended; this is no error
  kInvalidValue,
  kInvalidHandle,  // null, destroyed, or of another device
  kWrongMemory,    // debug checks: a host pointer where a device pointer belongs, or the other way round
  kSyncInBody,     // debug checks: Synchronize in the body of an op on a device
  kWrongStream,    // debug checks, software only: a body's work on a stream that is neither its op's nor joined to that
  kOutOfMemory,
  kNoDevice,  // no such device, no driver, or a build without the backend
  kUnsupported,
  kLaunchFailed,    // sticky: a kernel failed while it ran
  kIllegalAddress,  // sticky
  kDeviceFault,     // sticky: any other error that ends the device
  // Capture. All but kCaptureWrongThread and kCaptureMode spoil the captures concerned: their EndCapture returns
  // kCaptureInvalidated and no graph.
  kCaptureMode,         // a call that makes no sense now: begin twice, end without begin, pageable copy, allocation
  kCaptureUnsupported,  // the host looked at a capturing stream, or did what a capturing thread must not do
  kCaptureInvalidated,  // an earlier error spoilt the capture
  kCaptureMerge,        // a wait would join two captures
  kCaptureUnmatched,    // EndCapture on another stream than BeginCapture
  kCaptureUnjoined,     // EndCapture while a stream that joined has work for which the first stream did not wait
  kCaptureIsolation,    // a capturing stream would wait for an event outside the capture
  kCaptureWrongThread,  // EndCapture on another thread than BeginCapture
  kCapturedEvent,       // the host looked at an event that was last recorded in a capture
  kGraphUpdateFailed,   // the graphs differ in more than parameters: instantiate again
  kUnknown,
};
const char* DeviceCodeName(DeviceCode code) noexcept;  // "kOk", ...

// DeviceStatus: what a call returns. ok and kNotReady need no allocation.
class [[nodiscard]] DeviceStatus {
 public:
  DeviceStatus() noexcept = default;
  static DeviceStatus NotReady() noexcept { return DeviceStatus(DeviceCode::kNotReady, false, 0); }
  // `text` says what was asked for and what is wrong with it, such as "Record(event 3, stream 1): the event was
  // destroyed".
  static DeviceStatus Fail(DeviceCode code, bool sticky, int native, std::string text) {
    DeviceStatus status(code, sticky, native);
    status.text_ = std::make_shared<const std::string>(std::move(text));
    return status;
  }

  bool ok() const noexcept { return code_ == DeviceCode::kOk; }
  bool failed() const noexcept { return code_ > DeviceCode::kNotReady; }
  bool sticky() const noexcept { return sticky_; }
  DeviceCode code() const noexcept { return code_; }
  // Somebody's capture is in the way, and nothing is wrong with the device.
  bool of_capture() const noexcept { return code_ >= DeviceCode::kCaptureMode && code_ <= DeviceCode::kCapturedEvent; }
  int native_code() const noexcept { return native_; }  // a cudaError_t on cuda, else 0
  std::string text() const;                             // code and text; "ok" if nothing is wrong

 private:
  DeviceStatus(DeviceCode code, bool sticky, int native) noexcept : code_(code), sticky_(sticky), native_(native) {}
  DeviceCode code_ = DeviceCode::kOk;
  bool sticky_ = false;
  int32_t native_ = 0;
  std::shared_ptr<const std::string> text_;
};

// DeviceError: a DeviceStatus as an exception, for code that throws.
class DeviceError : public Error {
 public:
  explicit DeviceError(DeviceStatus status) : Error(status.text()), status_(std::move(status)) {}
  const DeviceStatus& status() const noexcept { return status_; }

 private:
  DeviceStatus status_;
};

// DeviceHandle: a pointer of the backend's, as a type of its own for each kind of object. Null when default-made.
template <class Tag>
struct DeviceHandle {
  void* raw = nullptr;
  explicit operator bool() const noexcept { return raw != nullptr; }
  friend bool operator==(DeviceHandle, DeviceHandle) noexcept = default;
};
using Stream = DeviceHandle<struct StreamTag>;
using Event = DeviceHandle<struct EventTag>;
using DeviceGraph = DeviceHandle<struct DeviceGraphTag>;          // what a capture returned
using DeviceGraphNode = DeviceHandle<struct DeviceGraphNodeTag>;  // one call in it; lives as long as its graph
using DeviceGraphExec = DeviceHandle<struct DeviceGraphExecTag>;  // a graph made ready to be launched

// Whose memory a pointer points to. As an argument, kUnknown makes the device look it up, which costs time.
enum class MemoryKind : uint8_t { kUnknown, kDevice, kPinned, kPageable };

struct KernelLaunch;
// The CUDA runtime of a binary, of which a process may have several: each launches its own kernels only. These return a
// cudaError_t.
struct KernelRuntime {
  int (*launch)(const KernelLaunch& launch, void* stream);
  int (*set)(const KernelLaunch& launch, void* exec, void* node);
};
// A kernel's launch. Made by ctx.Launch (launch.h), and valid during a call.
struct KernelLaunch {
  const void* kernel;  // the host's function
  uint32_t grid[3];
  uint32_t block[3];
  size_t shared_bytes;
  void** args;          // a pointer to each argument
  const size_t* sizes;  // of the arguments
  size_t count;
  void (*call)(const void* kernel, void* const* args);  // on the host
  const KernelRuntime* runtime = nullptr;               // null: the one that the engine has loaded
};

struct DeviceInfo {
  std::string kind;  // "cuda", "software"
  int ordinal = 0;
  std::string description;    // for people: "NVIDIA H200, 132 SMs, driver 13.0", "software, 8 threads"
  int least_priority = 0;     // of streams; smaller numbers go first
  int greatest_priority = 0;  // <= least_priority
  // Debug checks that were asked for and that this machine cannot make, and why; else empty.
  std::string unchecked = {};
};

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const noexcept { return info_; }
  // Makes this the calling thread's current device. Code that launches kernels by itself needs that.
  virtual DeviceStatus MakeCurrent() = 0;
  // For a thread of the engine's own, before it works on this device: MakeCurrent. From then on
  // captures of other threads do not restrict this thread, and its calls do not invalidate them.
  virtual DeviceStatus EnterThread() { return MakeCurrent(); }
  // The sticky error, if the device is lost; else the calling thread's last error, which the call also clears. A launch
  // that returns no status (<<<>>>) is checked with it.
  virtual DeviceStatus TakeLastError() = 0;

  // Streams are non-blocking: they never wait for stream 0. A priority out of range is refused.
  virtual DeviceStatus CreateStream(int priority, Stream* stream) = 0;
  virtual DeviceStatus DestroyStream(Stream stream) = 0;
  virtual void* NativeStream(Stream stream) const noexcept = 0;  // a cudaStream_t on cuda, else null
  // Events have no timing. Creating and destroying them is slow, so keep them.
  virtual DeviceStatus CreateEvent(Event* event) = 0;
  // An event that notes when it is reached, for Elapsed; else like any other.
  virtual DeviceStatus CreateTimedEvent(Event* event) = 0;
  virtual DeviceStatus DestroyEvent(Event event) = 0;

  virtual DeviceStatus Record(Event event, Stream stream) = 0;
  virtual DeviceStatus Wait(Stream stream, Event event) = 0;  // on the device: later work of `stream` waits
  virtual DeviceStatus Query(Event event) = 0;                // ok, kNotReady or an error
  virtual DeviceStatus Query(Stream stream) = 0;              // the same, for all work that is on the stream by now
  // The time on the device between the newest records of two timed events. Does not wait: kNotReady until both have
  // been reached, kInvalidHandle if one was never recorded or has no timing.
  virtual DeviceStatus Elapsed(Event from, Event to, std::chrono::nanoseconds* took) = 0;
  virtual DeviceStatus Synchronize(Event event) = 0;  // blocks, and may spin
  virtual DeviceStatus Synchronize(Stream stream) = 0;

  // Most kernels are launched past the device, by CUDA's own means on NativeStream.
  virtual DeviceStatus LaunchKernel(const KernelLaunch& launch, Stream stream) = 0;

  // `memory` is the kind of the host's memory. A pageable copy blocks the host until it is over, and is refused during
  // capture.
  virtual DeviceStatus CopyIn(void* to_device, const void* from_host, size_t bytes, Stream stream,
                              MemoryKind memory = MemoryKind::kUnknown) = 0;
  virtual DeviceStatus CopyOut(void* to_host, const void* from_device, size_t bytes, Stream stream,
                               MemoryKind memory = MemoryKind::kUnknown) = 0;
  virtual DeviceStatus CopyWithin(void* to_device, const void* from_device, size_t bytes, Stream stream) = 0;

  // Ordered memory: work on `stream` behind Allocate may use it, and so may other streams that wait for that point.
  // Free takes it back behind the work that is on `stream` by then. It comes from a pool that keeps what it got from
  // the driver. Refused during capture. 0 bytes give null, and freeing null does nothing.
  virtual DeviceStatus Allocate(size_t bytes, Stream stream, void** memory) = 0;
  virtual DeviceStatus Free(void* memory, Stream stream) = 0;
  // Gives memory that nobody uses back to the driver, until the pool has `keep` bytes.
  virtual DeviceStatus TrimPool(size_t keep) = 0;
  // Host memory that the device reaches by itself. The call is slow and may wait for the whole device, so keep the
  // memory.
  virtual DeviceStatus AllocatePinned(size_t bytes, void** memory) = 0;
  virtual DeviceStatus FreePinned(void* memory) = 0;
  // Of memory that the device does not know: kPageable.
  virtual DeviceStatus KindOf(const void* memory, MemoryKind* kind) = 0;

  // Capture, in thread-local mode: until EndCapture, work on `stream` is recorded instead of run, and so is work on
  // streams that wait for an event that was recorded in the capture; these must join back by an event for which
  // `stream` waits. Meanwhile this thread must not synchronize, query a stream or touch pinned allocations; other threads
  // may.
  // EndCapture ends the capture whatever it returns, except kCaptureWrongThread and kCaptureUnmatched. Unless it
  // returns ok there is no graph.
  virtual DeviceStatus BeginCapture(Stream stream) = 0;
  virtual DeviceStatus EndCapture(Stream stream, DeviceGraph* graph) = 0;
  virtual DeviceStatus IsCapturing(Stream stream, bool* capturing) = 0;  // also true of a spoilt capture
  // The node of the newest captured call on this stream. kInvalidValue if that call made none, or several.
  virtual DeviceStatus LastNode(Stream stream, DeviceGraphNode* node) = 0;
  virtual DeviceStatus DestroyGraph(DeviceGraph graph) = 0;

  // `bytes` (may be null): about how much device memory the executable takes. The graph may be destroyed afterwards, unless
  // nodes of it will be updated.
  virtual DeviceStatus Instantiate(DeviceGraph graph, DeviceGraphExec* exec, size_t* bytes) = 0;
  // Gives `exec` all the parameters of `graph`. If their structures differ: kGraphUpdateFailed, and `exec` is
  // unchanged.
  virtual DeviceStatus Update(DeviceGraphExec exec, DeviceGraph graph) = 0;
  // Gives `node`, of the graph from which `exec` was made, the parameters of `from`, a node of the same kind in any
  // graph: capture one op alone, then copy its node's parameters. Launches that were made earlier keep the old ones.
  virtual DeviceStatus UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, DeviceGraphNode from) = 0;
  // Gives `node`, a kernel's, another launch.
  virtual DeviceStatus UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, const KernelLaunch& launch) = 0;
  // An executable never overlaps itself: a launch waits, on the device, for the launch before.
  virtual DeviceStatus Launch(DeviceGraphExec exec, Stream stream) = 0;
  virtual DeviceStatus DestroyGraphExec(DeviceGraphExec exec) = 0;

 protected:
  explicit Device(DeviceInfo info) : info_(std::move(info)) {}
  DeviceInfo info_;
};

// How many CUDA devices this machine has. 0 without a driver or without the backend; `why` (may be null) then gets the
// reason.
int CudaDeviceCount(std::string* why = nullptr);
// Throws DeviceError (kNoDevice), which says what is missing. `debug_checks`: the device reports kWrongMemory and
// kSyncInBody; the latter needs CUPTI, which watches the whole process (DeviceInfo::unchecked says if it cannot).
std::shared_ptr<Device> MakeCudaDevice(int ordinal, bool debug_checks = false);
// Makes a device by its name, for callers that cannot hold one: "cuda" or "software", with ":" and an ordinal if it is not
// the first, as "cuda:1". UsageError for any other name.
std::shared_ptr<Device> MakeDevice(std::string_view name);

}  // namespace engine
