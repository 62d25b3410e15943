// SoftwareDevice: a device without a GPU. It keeps the contract of device.h, errors included, so that everything that
// drives a GPU can be tested, counted and made to fail on any machine.
//
// Two clocks (SoftwareDeviceOptions::clock):
//   kThreads   each stream is a thread; kernels really run at the same time. Their costs take no time.
//   kVirtual   no threads: the device runs inside the host's calls, as far as its clock has come. Each call moves the
//              clock on by its price in the cost table; Advance advances it, and a synchronization as far as it needs.
//              One host thread and one seed always give the same run. A seed other than 0 delays each kernel and copy
//              by chance, from nothing up to far behind the host: other seeds, other interleavings.
//
// Kernels are C++ callables that run when the device reaches them. They must not call the device, and with a virtual
// clock must not block. An exception of a kernel's body is a sticky error of the device: a DeviceError keeps its code,
// anything else becomes kLaunchFailed.
// Device memory is ordinary memory that the host must not touch. With check_pointers the device checks copies and
// declared uses, and overwrites freed memory when the stream reaches the Free.
//
// Threads:   as Device. Observers are called one at a time and in the order of the calls, except OnRan.
// Ownership: destroying the device drops work that has not started and kernels that never end, and waits for bodies
//            that run.
// Errors:    as Device.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/device/device.h"

namespace engine {

// The calls that are counted, priced and made to fail.
enum class DeviceCall : uint8_t {
  kLaunch,  // of a kernel
  kRecord,
  kWait,
  kQuery,         // of an event or a stream
  kSynchronize,   // of an event or a stream
  kCopy,          // of any kind
  kPageableCopy,  // of these, the copies that blocked the host
  kCreateStream,
  kDestroyStream,
  kCreateEvent,
  kDestroyEvent,
  kAllocate,
  kFree,
  kDriverAllocate,  // of these, the allocations for which the pool had no block
  kAllocatePinned,
  kFreePinned,
  kBeginCapture,
  kEndCapture,
  kInstantiate,
  kUpdate,
  kUpdateNode,
  kLaunchGraph,
  kElapsed,
  // Records of an event whose earlier record had not been reached, though somebody may still want that one.
  kRecordPending,
  kCount,
};
const char* DeviceCallName(DeviceCall call) noexcept;  // "kLaunch", ...

// How often each call was made; refused and failed calls count too.
struct DeviceCounts {
  std::array<uint64_t, static_cast<size_t>(DeviceCall::kCount)> calls{};
  uint64_t operator[](DeviceCall call) const { return calls[static_cast<size_t>(call)]; }
  DeviceCounts operator-(const DeviceCounts& before) const;
};

// The memory that a kernel or a copy touches. For debug checks and observers; the device works without it.
struct BufferUse {
  const void* memory;
  size_t bytes;
  bool writes;
};

struct SoftwareKernel {
  std::string name;
  std::chrono::nanoseconds cost{0};
  std::function<void()> body;  // may be empty
  std::vector<BufferUse> uses;
};

// Prices of a virtual clock. The defaults are like those of a GPU of 2023, so that overlap looks as it does there.
struct SoftwareCosts {
  // How long a host call takes, by DeviceCall.
  std::array<std::chrono::nanoseconds, static_cast<size_t>(DeviceCall::kCount)> host;
  std::chrono::nanoseconds kernel_gap{1000};     // between two kernels of one stream
  std::chrono::nanoseconds graph_node_gap{500};  // the same inside a graph
  std::chrono::nanoseconds copy_latency{2000};
  double copy_bytes_per_ns = 25;      // between host and device
  double within_bytes_per_ns = 1500;  // within the device
  SoftwareCosts();
  static SoftwareCosts Free();  // everything takes 1 ns, so that time still passes
};

// DeviceObserver: sees the device's work as it is ordered, for a checker beside the device. A lane is a stream, or a
// branch of a graph; ids of lanes and events are never reused. It is called under a lock, so it must not call the
// device.
class DeviceObserver {
 public:
  virtual ~DeviceObserver() = default;
  // A kernel, or a copy as one; it comes behind all earlier work of the lane.
  virtual void OnWork(uint32_t lane, const SoftwareKernel& work) = 0;
  virtual void OnRecord(uint64_t event, uint32_t lane) = 0;
  // Later work of the lane comes behind the event's newest record.
  virtual void OnWait(uint32_t lane, uint64_t event) = 0;
  virtual void OnHostSync(uint64_t event) = 0;  // the host knows that the work before the newest record has ended
  virtual void OnForget(uint64_t event) = 0;    // the event is never named again
  virtual void OnAllocate(uint32_t lane, const void* memory, size_t bytes) = 0;
  virtual void OnFree(uint32_t lane, const void* memory, size_t bytes) = 0;
  // The device ran a kernel or a copy; the times are those of now(). With kThreads the streams' threads call it,
  // several at a time.
  virtual void OnRan(uint32_t lane, const SoftwareKernel& work, std::chrono::nanoseconds start,
                     std::chrono::nanoseconds end) {
    (void)lane, (void)work, (void)start, (void)end;
  }
};

struct SoftwareDeviceOptions {
  enum class Clock : uint8_t { kThreads, kVirtual };
  Clock clock = Clock::kThreads;
  uint64_t seed = 0;  // virtual clock: 0: exact; others: delays by chance
  SoftwareCosts costs = {};
  size_t memory_bytes = size_t{1} << 30;  // device memory; an allocation beyond it is kOutOfMemory
  size_t graph_node_bytes = 256;          // how many bytes Instantiate reports for each node; nothing else uses it
  bool check_pointers = true;
  int ordinal = 0;
  std::shared_ptr<DeviceObserver> observer = nullptr;
};

class SoftwareDevice : public Device {
 public:
  using Device::Launch;
  virtual DeviceStatus Launch(Stream stream, SoftwareKernel kernel) = 0;
  DeviceStatus Launch(Stream stream, std::string name, std::chrono::nanoseconds cost, std::function<void()> body) {
    return Launch(stream, SoftwareKernel{std::move(name), cost, std::move(body), {}});
  }
  // A kernel that ends when Release is called, for tests that need the device to stand still. It cannot be captured.
  virtual DeviceStatus LaunchHeld(Stream stream, std::string name, uint64_t* hold) = 0;
  virtual void Release(uint64_t hold) = 0;

  // Before its nth call of this kind, the calling thread runs `then`, for tests of what may happen at that moment.
  virtual void AtCall(DeviceCall call, uint64_t nth, std::function<void()> then) = 0;
  // Faults. `nth` counts from the next call, which is 1; each fault strikes once. A call that fails has done nothing.
  virtual void FailCall(DeviceCall call, uint64_t nth, DeviceCode code, bool sticky) = 0;
  // The nth kernel, those of graphs included, fails while it runs, which is sticky.
  virtual void FailKernel(uint64_t nth, DeviceCode code) = 0;
  // The nth kernel never ends, unless the returned hold is released.
  virtual uint64_t HangKernel(uint64_t nth) = 0;

  virtual SoftwareDeviceOptions::Clock clock() const noexcept = 0;
  virtual DeviceCounts counts() const = 0;
  // The virtual clock, or real time since the device was made.
  virtual std::chrono::nanoseconds now() const = 0;
  // Virtual clock: lets time pass, and the device works meanwhile. With kThreads it does nothing, because time passes
  // by itself.
  virtual void Advance(std::chrono::nanoseconds by) = 0;
  // The device does all that it can do. With kThreads: waits until the device has done everything.
  virtual void RunUntilIdle() = 0;

 protected:
  using Device::Device;
};

std::shared_ptr<SoftwareDevice> MakeSoftwareDevice(SoftwareDeviceOptions options = {});

}  // namespace engine
