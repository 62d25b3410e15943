// CudaDevice: a device over the CUDA runtime. Handles are CUDA's own: a Stream's raw pointer is a cudaStream_t.
//
// Threads:   as Device; the runtime is thread-safe. What is the calling thread's own, its current device and how it takes
//            captures, is left as it was by all but MakeCurrent and EnterThread (cuda_visit.h).
// Ownership: the memory pool is the device's own, so that the default pool of the process keeps its settings.
// Errors:    codes by cuda_status.cc; the runtime's last error is cleared by each failed call, since it was reported.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_visit.h"
#include "engine/device/device.h"

namespace engine::detail {

// `call` failed with `error`. kOk and kNotReady pass through.
DeviceStatus CudaStatus(const char* call, cudaError_t error);

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceInfo info, const CudaContext& context, cudaMemPool_t pool, bool check_pointers)
      : Device(std::move(info)), context_(context), pool_(pool), check_pointers_(check_pointers) {}
  ~CudaDevice() override;

  DeviceStatus MakeCurrent() override;
  DeviceStatus EnterThread() override { return EnterCudaThread(context_); }
  DeviceStatus TakeLastError() override;
  DeviceStatus CreateStream(int priority, Stream* stream) override;
  DeviceStatus DestroyStream(Stream stream) override;
  void* NativeStream(Stream stream) const noexcept override { return stream.raw; }
  DeviceStatus CreateEvent(Event* event) override;
  DeviceStatus CreateTimedEvent(Event* event) override;
  DeviceStatus DestroyEvent(Event event) override;
  DeviceStatus Record(Event event, Stream stream) override;
  DeviceStatus Wait(Stream stream, Event event) override;
  DeviceStatus Query(Event event) override;
  DeviceStatus Query(Stream stream) override;
  DeviceStatus Elapsed(Event from, Event to, std::chrono::nanoseconds* took) override;
  DeviceStatus Synchronize(Event event) override;
  DeviceStatus Synchronize(Stream stream) override;
  DeviceStatus CopyIn(void* to, const void* from, size_t bytes, Stream stream, MemoryKind memory) override;
  DeviceStatus CopyOut(void* to, const void* from, size_t bytes, Stream stream, MemoryKind memory) override;
  DeviceStatus CopyWithin(void* to, const void* from, size_t bytes, Stream stream) override;
  DeviceStatus Allocate(size_t bytes, Stream stream, void** memory) override;
  DeviceStatus Free(void* memory, Stream stream) override;
  DeviceStatus TrimPool(size_t keep) override;
  DeviceStatus AllocatePinned(size_t bytes, void** memory) override;
  DeviceStatus FreePinned(void* memory) override;
  DeviceStatus KindOf(const void* memory, MemoryKind* kind) override;
  DeviceStatus BeginCapture(Stream stream) override;
  DeviceStatus EndCapture(Stream stream, DeviceGraph* graph) override;
  DeviceStatus IsCapturing(Stream stream, bool* capturing) override;
  DeviceStatus LastNode(Stream stream, DeviceGraphNode* node) override;
  DeviceStatus DestroyGraph(DeviceGraph graph) override;
  DeviceStatus Instantiate(DeviceGraph graph, DeviceGraphExec* exec, size_t* bytes) override;
  DeviceStatus Update(DeviceGraphExec exec, DeviceGraph graph) override;
  DeviceStatus UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, DeviceGraphNode from) override;
  DeviceStatus UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, const KernelLaunch& launch) override;
  DeviceStatus LaunchKernel(const KernelLaunch& launch, Stream stream) override;
  DeviceStatus Launch(DeviceGraphExec exec, Stream stream) override;
  DeviceStatus DestroyGraphExec(DeviceGraphExec exec) override;

 private:
  DeviceStatus NewEvent(unsigned flags, Event* event);
  DeviceStatus Copy(const char* call, void* to, const void* from, size_t bytes, Stream stream, cudaMemcpyKind direction,
                    MemoryKind host);
  DeviceStatus RefuseInCapture(const char* call, const char* what, Stream stream);

  const CudaContext context_;
  const cudaMemPool_t pool_;
  const bool check_pointers_;
};

// The null handle is stream 0, or nothing.
template <class Handle>
DeviceStatus RefuseNull(const char* call, Handle handle, const char* what) {
  if (handle) return {};
  return DeviceStatus::Fail(DeviceCode::kInvalidHandle, false, 0, std::string(call) + ": " + what + " is null");
}

inline cudaStream_t Native(Stream stream) { return static_cast<cudaStream_t>(stream.raw); }
inline cudaEvent_t Native(Event event) { return static_cast<cudaEvent_t>(event.raw); }
inline cudaGraph_t Native(DeviceGraph graph) { return static_cast<cudaGraph_t>(graph.raw); }
inline cudaGraphNode_t Native(DeviceGraphNode node) { return static_cast<cudaGraphNode_t>(node.raw); }
inline cudaGraphExec_t Native(DeviceGraphExec exec) { return static_cast<cudaGraphExec_t>(exec.raw); }

}  // namespace engine::detail
