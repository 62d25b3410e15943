// The cuda backend: devices, streams, events, copies and memory. Captures and graphs: cuda_graph.cc.
#include <cmath>
#include <cstdint>
#include <vector>

#include "device/body_scope.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_runtimes.h"
#include "device/cuda/cudart.h"
#include "device/cuda/cupti.h"

namespace engine {
namespace detail {

using namespace cudart;  // NOLINT: see cudart.h

// Memory that is still in use keeps the pool alive; also on a context that hangs this returns at once.
CudaDevice::~CudaDevice() {
  const CudaVisit visit(context_);
  (void)CudaStatus("cudaMemPoolDestroy", cudaMemPoolDestroy(pool_));
}

DeviceStatus CudaDevice::MakeCurrent() { return CudaStatus("cudaSetDevice", cudaSetDevice(info_.ordinal)); }

DeviceStatus CudaDevice::TakeLastError() {
  DeviceStatus ours = CudaStatus("cudaGetLastError", cudaGetLastError());
  const int other = TakeErrorOfRuntimes(cudaGetLastError.address());
  if (!ours.ok() || other == 0) return ours;
  return CudaStatus("cudaGetLastError of another instance of the runtime", static_cast<cudaError_t>(other));
}

DeviceStatus CudaDevice::CreateStream(int priority, Stream* stream) {
  *stream = {};
  if (priority < info_.greatest_priority || priority > info_.least_priority) {
    return DeviceStatus::Fail(DeviceCode::kInvalidValue, false, 0,
                              "CreateStream: priority " + std::to_string(priority) + " is not within " +
                                  std::to_string(info_.greatest_priority) + " (first) and " +
                                  std::to_string(info_.least_priority) + " (last)");
  }
  const CudaVisit visit(context_, CudaVisit::Device::kThis);
  if (!visit.status().ok()) return visit.status();
  cudaStream_t made = nullptr;
  DeviceStatus status =
      CudaStatus("cudaStreamCreateWithPriority", cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority));
  stream->raw = made;
  return status;
}

DeviceStatus CudaDevice::DestroyStream(Stream stream) {
  if (DeviceStatus bad = RefuseNull("DestroyStream", stream, "the stream"); !bad.ok()) return bad;
  const CudaVisit visit(context_);
  return visit.After(CudaStatus("cudaStreamDestroy", cudaStreamDestroy(Native(stream))));
}

// Without cudaEventBlockingSync, which makes waits and queries of events slower: the engine only queries.
DeviceStatus CudaDevice::NewEvent(unsigned flags, Event* event) {
  *event = {};
  const CudaVisit visit(context_, CudaVisit::Device::kThis);
  if (!visit.status().ok()) return visit.status();
  cudaEvent_t made = nullptr;
  DeviceStatus status = CudaStatus("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&made, flags));
  event->raw = made;
  return status;
}

DeviceStatus CudaDevice::CreateEvent(Event* event) { return NewEvent(cudaEventDisableTiming, event); }
DeviceStatus CudaDevice::CreateTimedEvent(Event* event) { return NewEvent(cudaEventDefault, event); }

DeviceStatus CudaDevice::DestroyEvent(Event event) {
  if (DeviceStatus bad = RefuseNull("DestroyEvent", event, "the event"); !bad.ok()) return bad;
  const CudaVisit visit(context_);
  return visit.After(CudaStatus("cudaEventDestroy", cudaEventDestroy(Native(event))));
}

DeviceStatus CudaDevice::Record(Event event, Stream stream) {
  if (DeviceStatus bad = RefuseNull("Record", event, "the event"); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseNull("Record", stream, "the stream"); !bad.ok()) return bad;
  const CudaVisit visit(context_);  // a thread that waits may find that there is no record yet
  if (!visit.status().ok()) return visit.status();
  return CudaStatus("cudaEventRecord", cudaEventRecord(Native(event), Native(stream)));
}

DeviceStatus CudaDevice::Wait(Stream stream, Event event) {
  if (DeviceStatus bad = RefuseNull("Wait", stream, "the stream"); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseNull("Wait", event, "the event"); !bad.ok()) return bad;
  return CudaStatus("cudaStreamWaitEvent", cudaStreamWaitEvent(Native(stream), Native(event), cudaEventWaitDefault));
}

DeviceStatus CudaDevice::Query(Event event) {
  if (DeviceStatus bad = RefuseNull("Query", event, "the event"); !bad.ok()) return bad;
  const CudaVisit visit(context_, CudaVisit::Device::kAny, CudaVisit::Captures::kAll);
  if (!visit.status().ok()) return visit.status();
  return CudaStatus("cudaEventQuery", cudaEventQuery(Native(event)));
}

DeviceStatus CudaDevice::Query(Stream stream) {
  if (DeviceStatus bad = RefuseNull("Query", stream, "the stream"); !bad.ok()) return bad;
  const CudaVisit visit(context_);
  if (!visit.status().ok()) return visit.status();
  return CudaStatus("cudaStreamQuery", cudaStreamQuery(Native(stream)));
}

DeviceStatus CudaDevice::Elapsed(Event from, Event to, std::chrono::nanoseconds* took) {
  *took = {};
  if (DeviceStatus bad = RefuseNull("Elapsed", from, "the first event"); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseNull("Elapsed", to, "the second event"); !bad.ok()) return bad;
  const CudaVisit visit(context_);
  if (!visit.status().ok()) return visit.status();
  float millis = 0;  // to about half a microsecond
  DeviceStatus status = CudaStatus("cudaEventElapsedTime", cudaEventElapsedTime(&millis, Native(from), Native(to)));
  if (status.ok()) *took = std::chrono::nanoseconds(std::llround(double{millis} * 1e6));
  return status;
}

DeviceStatus CudaDevice::Synchronize(Event event) {
  if (DeviceStatus bad = RefuseNull("Synchronize", event, "the event"); !bad.ok()) return bad;
  if (DeviceStatus bad = check_pointers_ ? BodyScope::RefuseSync("Synchronize") : DeviceStatus(); !bad.ok()) return bad;
  const CudaVisit visit(context_);
  if (!visit.status().ok()) return visit.status();
  return CudaStatus("cudaEventSynchronize", cudaEventSynchronize(Native(event)));
}

DeviceStatus CudaDevice::Synchronize(Stream stream) {
  if (DeviceStatus bad = RefuseNull("Synchronize", stream, "the stream"); !bad.ok()) return bad;
  if (DeviceStatus bad = check_pointers_ ? BodyScope::RefuseSync("Synchronize") : DeviceStatus(); !bad.ok()) return bad;
  const CudaVisit visit(context_);
  if (!visit.status().ok()) return visit.status();
  return CudaStatus("cudaStreamSynchronize", cudaStreamSynchronize(Native(stream)));
}

DeviceStatus CudaDevice::RefuseInCapture(const char* call, const char* what, Stream stream) {
  bool capturing = false;
  if (DeviceStatus bad = IsCapturing(stream, &capturing); !bad.ok()) return bad;
  if (!capturing) return {};
  return DeviceStatus::Fail(DeviceCode::kCaptureMode, false, 0, std::string(call) + ": " + what);
}

DeviceStatus CudaDevice::Copy(const char* call, void* to, const void* from, size_t bytes, Stream stream,
                              cudaMemcpyKind direction, MemoryKind host) {
  if (DeviceStatus bad = RefuseNull(call, stream, "the stream"); !bad.ok()) return bad;
  const void* host_side = direction == cudaMemcpyHostToDevice ? from : to;
  const void* device_side = direction == cudaMemcpyHostToDevice ? to : from;
  const bool within = direction == cudaMemcpyDeviceToDevice;
  MemoryKind found = host;
  if (!within && (host == MemoryKind::kUnknown || check_pointers_)) {
    if (DeviceStatus bad = KindOf(host_side, &found); !bad.ok()) return bad;
  }
  if (check_pointers_ && bytes != 0) {
    MemoryKind other = MemoryKind::kUnknown;
    if (DeviceStatus bad = KindOf(device_side, &other); !bad.ok()) return bad;
    const char* wrong = nullptr;
    if (other != MemoryKind::kDevice) wrong = "the device side is not device memory";
    if (!within && found == MemoryKind::kDevice) wrong = "the host side is device memory";
    if (host == MemoryKind::kPinned && found != host) wrong = "the host side was said to be pinned, and is not";
    if (within) {
      if (DeviceStatus bad = KindOf(to, &other); !bad.ok()) return bad;
      if (other != MemoryKind::kDevice) wrong = "the destination is not device memory";
    }
    if (wrong) return DeviceStatus::Fail(DeviceCode::kWrongMemory, false, 0, std::string(call) + ": " + wrong);
  }
  const bool pageable = !within && found == MemoryKind::kPageable && bytes != 0;
  if (pageable) {
    if (DeviceStatus bad = RefuseInCapture(call, "pageable memory in a capture", stream); !bad.ok()) return bad;
  }
  const BodyScope ours;  // it blocks if the memory is pageable, as CopyIn and CopyOut say
  const DeviceStatus status =
      CudaStatus("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, direction, Native(stream)));
  // The runtime may return while a pageable copy in is still under way from its own buffer: make it one meaning.
  return status.ok() && pageable ? CudaStatus("cudaStreamSynchronize", cudaStreamSynchronize(Native(stream))) : status;
}

DeviceStatus CudaDevice::CopyIn(void* to, const void* from, size_t bytes, Stream stream, MemoryKind memory) {
  return Copy("CopyIn", to, from, bytes, stream, cudaMemcpyHostToDevice, memory);
}
DeviceStatus CudaDevice::CopyOut(void* to, const void* from, size_t bytes, Stream stream, MemoryKind memory) {
  return Copy("CopyOut", to, from, bytes, stream, cudaMemcpyDeviceToHost, memory);
}
DeviceStatus CudaDevice::CopyWithin(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy("CopyWithin", to, from, bytes, stream, cudaMemcpyDeviceToDevice, MemoryKind::kDevice);
}

DeviceStatus CudaDevice::Allocate(size_t bytes, Stream stream, void** memory) {
  *memory = nullptr;
  if (DeviceStatus bad = RefuseNull("Allocate", stream, "the stream"); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseInCapture("Allocate", "the stream captures", stream); !bad.ok()) return bad;
  if (bytes == 0) return {};
  const CudaVisit visit(context_);
  if (!visit.status().ok()) return visit.status();
  return CudaStatus("cudaMallocFromPoolAsync", cudaMallocFromPoolAsync(memory, bytes, pool_, Native(stream)));
}

DeviceStatus CudaDevice::Free(void* memory, Stream stream) {
  if (DeviceStatus bad = RefuseNull("Free", stream, "the stream"); !bad.ok()) return bad;
  // Where not even this can be told, the free says what is wrong: a look that fails must not keep the memory.
  bool capturing = false;
  if (IsCapturing(stream, &capturing).ok() && capturing)
    return DeviceStatus::Fail(DeviceCode::kCaptureMode, false, 0, "Free: the stream captures");
  if (!memory) return {};
  const CudaVisit visit(context_);
  return visit.After(CudaStatus("cudaFreeAsync", cudaFreeAsync(memory, Native(stream))));
}

DeviceStatus CudaDevice::TrimPool(size_t keep) {
  const CudaVisit visit(context_);
  if (!visit.status().ok()) return visit.status();
  return CudaStatus("cudaMemPoolTrimTo", cudaMemPoolTrimTo(pool_, keep));
}

DeviceStatus CudaDevice::AllocatePinned(size_t bytes, void** memory) {
  *memory = nullptr;
  if (bytes == 0) return {};
  const CudaVisit visit(context_, CudaVisit::Device::kThis);
  if (!visit.status().ok()) return visit.status();
  return CudaStatus("cudaHostAlloc", cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
}

DeviceStatus CudaDevice::FreePinned(void* memory) {
  const CudaVisit visit(context_);
  return visit.After(CudaStatus("cudaFreeHost", cudaFreeHost(memory)));
}

DeviceStatus CudaDevice::KindOf(const void* memory, MemoryKind* kind) {
  const CudaVisit visit(context_);
  if (!visit.status().ok()) return visit.status();
  cudaPointerAttributes attributes{};
  if (DeviceStatus bad = CudaStatus("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, memory));
      !bad.ok()) {
    return bad;
  }
  switch (attributes.type) {
    case cudaMemoryTypeHost: *kind = MemoryKind::kPinned; break;
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged: *kind = MemoryKind::kDevice; break;
    case cudaMemoryTypeUnregistered: *kind = MemoryKind::kPageable; break;
  }
  return {};
}

}  // namespace detail

using namespace detail::cudart;  // NOLINT: see cudart.h

int CudaDeviceCount(std::string* why) {
  if (std::string missing = detail::LoadCudart(); !missing.empty()) {
    if (why) *why = std::move(missing);
    return 0;
  }
  int count = 0;
  const DeviceStatus status = detail::CudaStatus("cudaGetDeviceCount", cudaGetDeviceCount(&count));
  if (why) *why = status.ok() && count == 0 ? "this machine has no CUDA device" : status.ok() ? "" : status.text();
  return status.ok() ? count : 0;
}

std::shared_ptr<Device> MakeCudaDevice(int ordinal, bool check_pointers) {
  std::string why;
  const int count = CudaDeviceCount(&why);
  const auto check = [](const char* call, cudaError_t error) {
    if (error != cudaSuccess) throw DeviceError(detail::CudaStatus(call, error));
  };
  if (ordinal < 0 || ordinal >= count) {
    throw DeviceError(DeviceStatus::Fail(DeviceCode::kNoDevice, false, 0,
                                         "cuda device " + std::to_string(ordinal) + ": there are " +
                                             std::to_string(count) + (why.empty() ? "" : "; " + why)));
  }
  detail::CudaContext context;
  if (DeviceStatus bad = detail::OpenCudaContext(ordinal, count, &context); !bad.ok()) throw DeviceError(bad);
  const detail::CudaVisit visit(context, detail::CudaVisit::Device::kThis);
  if (!visit.status().ok()) throw DeviceError(visit.status());
  cudaDeviceProp properties{};
  check("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, ordinal));
  DeviceInfo info{.kind = "cuda", .ordinal = ordinal, .description = {}};
  int driver = 0;
  check("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
  info.description = std::string(properties.name) + ", " + std::to_string(properties.multiProcessorCount) +
                     " SMs, driver for CUDA " + std::to_string(driver / 1000) + "." +
                     std::to_string(driver % 1000 / 10);
  check("cudaDeviceGetStreamPriorityRange",
        cudaDeviceGetStreamPriorityRange(&info.least_priority, &info.greatest_priority));
  cudaMemPoolProps pool_options{};
  pool_options.allocType = cudaMemAllocationTypePinned;
  pool_options.location = {cudaMemLocationTypeDevice, ordinal};
  cudaMemPool_t pool = nullptr;
  check("cudaMemPoolCreate", cudaMemPoolCreate(&pool, &pool_options));
  if (check_pointers) info.unchecked = detail::WatchSyncs();
  if (!info.unchecked.empty())
    info.unchecked =
        "direct calls in bodies of what blocks the host (cudaStreamSynchronize, cudaMemcpy ...): " + info.unchecked;
  auto device = std::make_shared<detail::CudaDevice>(std::move(info), context, pool,
                                                     check_pointers);  // the pool is its own by now
  uint64_t keep_all = UINT64_MAX;  // else each synchronization gives the memory back, and the next step takes it again
  check("cudaMemPoolSetAttribute", cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
  // Otherwise the driver may make an allocation's stream wait for the stream that freed the block: an order that nobody asked
  // for, and for ever where that stream waits for another rank.
  int no_hidden_waits = 0;
  check("cudaMemPoolSetAttribute",
        cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &no_hidden_waits));
  // Memory of a pool is its own device's alone, also where peers have been enabled. NCCL reads the buffers of ranks of its process.
  std::vector<cudaMemAccessDesc> peers;
  for (int peer = 0; peer < count; ++peer) {
    int can = 0;
    if (peer != ordinal) check("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, peer, ordinal));
    if (can) peers.push_back({{cudaMemLocationTypeDevice, peer}, cudaMemAccessFlagsProtReadWrite});
  }
  if (!peers.empty()) check("cudaMemPoolSetAccess", cudaMemPoolSetAccess(pool, peers.data(), peers.size()));
  return device;
}

}  // namespace engine
