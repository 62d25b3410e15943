// SoftwareDevice: a device without a GPU. It keeps the contract of device.h, errors included, so that everything that
// drives a GPU can be tested, counted and broken on purpose on any machine.
//
// Two clocks (SoftwareDeviceOptions::clock):
//   kThreads   each stream is a thread; kernels really run at the same time. Costs are not spent.
//   kVirtual   no threads: the device runs inside the host's calls, as far as its clock has come. Each call moves the
//              clock by its price in the cost table; Advance moves it, and a synchronization moves it as far as it needs.
//              One host thread and one seed give one run, always the same. A seed other than 0 delays each
//              kernel and copy by chance, from nothing up to far behind the host: other seeds, other interleavings.
//
// Kernels are C++ callables that run when the device gets there. They may not call the device, and with a virtual clock
// must not block. What a body throws is a sticky error of the device: a DeviceError keeps its code, anything else is
// kLaunchFailed.
// Device memory is ordinary memory that the host must not touch; with check_pointers copies and declared uses are
// checked, and freed memory is overwritten when the stream gets there.
//
// Threads:   as Device. Observers are called one at a time and in the order of the calls, except OnRan.
// Ownership: destroying the device drops work that has not started, kernels that never end included, and waits for
//            bodies that run.
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

// What is counted, priced and made to fail.
enum class DeviceCall : uint8_t {
  kLaunch,  // of a kernel
  kRecord,
  kWait,
  kQuery,         // of an event or a stream
  kSynchronize,   // of an event or a stream
  kCopy,          // of any kind
  kPageableCopy,  // of these, the ones that blocked the host
  kCreateStream,
  kDestroyStream,
  kCreateEvent,
  kDestroyEvent,
  kAllocate,
  kFree,
  kDriverAllocate,  // of these allocations, the ones that the pool had no block for
  kAllocatePinned,
  kFreePinned,
  kBeginCapture,
  kEndCapture,
  kInstantiate,
  kUpdate,
  kUpdateNode,
  kLaunchGraph,
  kElapsed,
  kRecordPending,  // records of an event whose record before had not been reached yet: someone may still want that one
  kCount,
};
const char* DeviceCallName(DeviceCall call) noexcept;  // "kLaunch", ...

// How often each call was made, refused and failed ones included.
struct DeviceCounts {
  std::array<uint64_t, static_cast<size_t>(DeviceCall::kCount)> calls{};
  uint64_t operator[](DeviceCall call) const { return calls[static_cast<size_t>(call)]; }
  DeviceCounts operator-(const DeviceCounts& before) const;
};

// What a kernel or a copy touches. For the debug checks and for observers; the device does not need it.
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

// Prices of a virtual clock. The defaults are of the order of a GPU of 2023, so that overlap looks like overlap.
struct SoftwareCosts {
  // What a host call takes, by DeviceCall.
  std::array<std::chrono::nanoseconds, static_cast<size_t>(DeviceCall::kCount)> host;
  std::chrono::nanoseconds kernel_gap{1000};     // between two kernels of one stream
  std::chrono::nanoseconds graph_node_gap{500};  // the same inside a graph
  std::chrono::nanoseconds copy_latency{2000};
  double copy_bytes_per_ns = 25;      // between host and device
  double within_bytes_per_ns = 1500;  // within the device
  SoftwareCosts();
  static SoftwareCosts Free();  // everything takes 1 ns, so that time still passes
};

// Sees the device's work as it is ordered, so that a checker can be built beside it. A lane is a stream, or a branch of
// a graph; the ids of lanes and events are never used again. Called under a lock: must not call the device.
class DeviceObserver {
 public:
  virtual ~DeviceObserver() = default;
  virtual void OnWork(uint32_t lane, const SoftwareKernel& work) = 0;  // kernels, and copies as such, behind all before
  virtual void OnRecord(uint64_t event, uint32_t lane) = 0;
  virtual void OnWait(uint32_t lane, uint64_t event) = 0;  // later work of the lane comes behind the newest record
  virtual void OnHostSync(uint64_t event) = 0;  // the host knows that what the newest record stands for ended
  virtual void OnForget(uint64_t event) = 0;    // it is never named again
  virtual void OnAllocate(uint32_t lane, const void* memory, size_t bytes) = 0;
  virtual void OnFree(uint32_t lane, const void* memory, size_t bytes) = 0;
  // The device ran something; times are of now(). With threads, called by them, several at a time.
  virtual void OnRan(uint32_t lane, const SoftwareKernel& work, std::chrono::nanoseconds start,
                     std::chrono::nanoseconds end) {
    (void)lane, (void)work, (void)start, (void)end;
  }
};

struct SoftwareDeviceOptions {
  enum class Clock : uint8_t { kThreads, kVirtual };
  Clock clock = Clock::kThreads;
  uint64_t seed = 0;  // virtual clock: 0 is exact, others delay by chance
  SoftwareCosts costs = {};
  size_t memory_bytes = size_t{1} << 30;  // device memory; beyond it kOutOfMemory
  size_t graph_node_bytes = 256;          // what Instantiate says that a node takes; of no other consequence
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
  // A kernel that ends when it is released, for tests that need the device to stand still. Not for captures.
  virtual DeviceStatus LaunchHeld(Stream stream, std::string name, uint64_t* hold) = 0;
  virtual void Release(uint64_t hold) = 0;

  // The nth call first runs `then`, on its thread, before it does anything: for what is to happen in just that moment.
  virtual void AtCall(DeviceCall call, uint64_t nth, std::function<void()> then) = 0;
  // Faults. `nth` counts from the next one on, which is 1; each strikes once. A call that fails has done nothing.
  virtual void FailCall(DeviceCall call, uint64_t nth, DeviceCode code, bool sticky) = 0;
  // The nth kernel, those of graphs included, fails while it runs, which is sticky.
  virtual void FailKernel(uint64_t nth, DeviceCode code) = 0;
  // The nth kernel never ends, unless it is released.
  virtual uint64_t HangKernel(uint64_t nth) = 0;

  virtual SoftwareDeviceOptions::Clock clock() const noexcept = 0;
  virtual DeviceCounts counts() const = 0;
  // The virtual clock, or real time since the device was made.
  virtual std::chrono::nanoseconds now() const = 0;
  // Virtual clock: lets time pass, and the device with it. With threads: does nothing, time passes by itself.
  virtual void Advance(std::chrono::nanoseconds by) = 0;
  // The device does all that it can do. With threads: waits until it has done everything.
  virtual void RunUntilIdle() = 0;

 protected:
  using Device::Device;
};

std::shared_ptr<SoftwareDevice> MakeSoftwareDevice(SoftwareDeviceOptions options = {});

}  // namespace engine
