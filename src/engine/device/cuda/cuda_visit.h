// CudaVisit: a thread's calls of CUDA on a device's behalf, which leave what is the thread's own as it was.
//
// Two things of a thread would else be in the way of the engine, or the engine in the way of them:
//   the current device   a call without one makes a context on device 0, and so does going "back" to device 0 with
//                        cudaSetDevice. A visit pushes the device's context and pops it again (the driver's calls, by
//                        cudaGetDriverEntryPoint), so that a thread that had no context has none afterwards.
//   the capture mode     in the default mode a query or an allocation fails while any other thread captures in global
//                        mode (the default of CUDA and PyTorch), and spoils that capture. A visit ignores others' captures.
// Threads that are the engine's own (EnterThread) have both for good, so that a visit there makes no call, or looks at the
// current device where there are several.
//
// Threads:   one visit belongs to one thread. Ownership: the context is the process's primary one, and stays until it ends.
// Errors:    status() says what the visit failed by; its end fails silently.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/device/device.h"

namespace engine::detail {

// A device's context, and how a thread comes to it.
struct CudaContext {
  int ordinal = 0;
  bool alone = false;  // the process has no other device: this one is current on every thread
  void* context = nullptr;
  int (*push)(void* context) = nullptr;  // cuCtxPushCurrent, cuCtxPopCurrent: a cudaError_t or 0
  int (*pop)(void** context) = nullptr;
};

// The primary context of device `ordinal`, of `devices` in all.
DeviceStatus OpenCudaContext(int ordinal, int devices, CudaContext* context);

// The calling thread is the engine's: the device is current there from now on, and others' captures are ignored.
DeviceStatus EnterCudaThread(const CudaContext& context);

// The calling thread begins a capture, or has ended it.
void NoteCudaCapture(bool begins);

class CudaVisit {
 public:
  enum class Device : bool {
    kAny,   // the calls name what they work on: any context that the engine uses will do
    kThis,  // the calls work on the current device
  };
  enum class Captures : bool {
    kOfOthers,  // are ignored; what this thread captures still forbids what it forbids
    kAll,       // are ignored
  };
  explicit CudaVisit(const CudaContext& to, Device device = Device::kAny, Captures ignored = Captures::kOfOthers);
  ~CudaVisit();
  CudaVisit(const CudaVisit&) = delete;
  const DeviceStatus& status() const { return status_; }
  // Of a call that gives something back, made whether or not the visit went well.
  DeviceStatus After(DeviceStatus released) const { return released.ok() ? status_ : released; }

 private:
  bool Try(DeviceStatus status);  // keeps it; whether it is ok

  const CudaContext& to_;
  bool pushed_ = false, exchanged_ = false;
  cudaStreamCaptureMode before_ = cudaStreamCaptureModeGlobal;
  DeviceStatus status_;
};

}  // namespace engine::detail
