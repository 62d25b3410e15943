// CudaVisit: lets a thread call CUDA for a device, and afterwards leaves the thread as it was.
//
// Two properties of a thread could disturb the engine, or be disturbed by it:
//   the current device   a call without one makes a context on device 0, and so does going "back" to device 0 with
//                        cudaSetDevice. A visit pushes the device's context and pops it again (the driver's calls, by
//                        cudaGetDriverEntryPoint), so that a thread that had no context has none afterwards.
//   the capture mode     in the default mode a query or an allocation fails while any other thread captures in global
//                        mode (the default of CUDA and PyTorch), and spoils that capture. A visit ignores others'
//                        captures.
// The engine's own threads (EnterThread) are set up once. A visit there makes no call; if there are several devices, it
// looks at the current one.
//
// Threads:   one visit belongs to one thread.
// Ownership: the context is the process's primary one, which stays until the process ends.
// Errors:    status() says why the visit failed; errors at its end are ignored.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "engine/device/device.h"

namespace engine::detail {

// A device's context, and the driver's calls that the backend needs.
struct CudaContext {
  int ordinal = 0;
  bool alone = false;  // the process has no other device: this one is current on every thread
  void* context = nullptr;
  int (*push)(void* context) = nullptr;  // cuCtxPushCurrent, cuCtxPopCurrent: a cudaError_t or 0
  int (*pop)(void** context) = nullptr;
  // Of a graph's kernel node. Only the driver's calls take the kernels of every runtime and library in the process.
  decltype(&cuGraphKernelNodeGetParams) get_kernel = nullptr;
  decltype(&cuGraphExecKernelNodeSetParams) set_kernel = nullptr;
};

// The primary context of device `ordinal`, of `devices` in all.
DeviceStatus OpenCudaContext(int ordinal, int devices, CudaContext* context);

// Called by the engine's own threads: makes the device current for good, and ignores other threads' captures.
DeviceStatus EnterCudaThread(const CudaContext& context);

// Called when this thread begins a capture, and when it has ended it.
void NoteCudaCapture(bool begins);

class CudaVisit {
 public:
  enum class Device : bool {
    kAny,   // the calls name what they work on: any context that the engine uses will do
    kThis,  // the calls work on the current device
  };
  enum class Captures : bool {
    kOfOthers,  // captures of other threads are ignored; those of this thread still forbid what they forbid
    kAll,       // all captures are ignored
  };
  explicit CudaVisit(const CudaContext& to, Device device = Device::kAny, Captures ignored = Captures::kOfOthers);
  ~CudaVisit();
  CudaVisit(const CudaVisit&) = delete;
  const DeviceStatus& status() const { return status_; }
  // For calls that give something back, which are made whether or not the visit succeeded.
  DeviceStatus After(DeviceStatus released) const { return released.ok() ? status_ : released; }

 private:
  bool Try(DeviceStatus status);  // keeps the status, and returns whether it is ok

  const CudaContext& to_;
  bool pushed_ = false, exchanged_ = false;
  cudaStreamCaptureMode before_ = cudaStreamCaptureModeGlobal;
  DeviceStatus status_;
};

}  // namespace engine::detail
