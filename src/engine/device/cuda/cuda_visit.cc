#include "device/cuda/cuda_visit.h"

#include <utility>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cudart.h"

namespace engine::detail {

using namespace cudart;  // NOLINT: see cudart.h

namespace {

// Of a thread of the engine's: it ignores others' captures, and has had a device made current.
thread_local constinit bool t_entered = false;
thread_local constinit bool t_captures = false;

template <class Function>
DeviceStatus FindDriverCall(const char* name, unsigned version, Function* out) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const char* const call = "cudaGetDriverEntryPointByVersion";
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
#else
  (void)version;
  const char* const call = "cudaGetDriverEntryPoint";
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) return CudaStatus(call, error);
  if (result != cudaDriverEntryPointSuccess || !found)
    return DeviceStatus::Fail(DeviceCode::kNoDevice, false, 0, std::string(call) + ": the driver has no " + name);
  *out = reinterpret_cast<Function>(found);
  return {};
}

// The driver's errors have the runtime's numbers.
DeviceStatus DriverStatus(const char* call, int result) { return CudaStatus(call, static_cast<cudaError_t>(result)); }

}  // namespace

DeviceStatus OpenCudaContext(int ordinal, int devices, CudaContext* context) {
  context->ordinal = ordinal;
  context->alone = devices == 1;
  int (*retain)(void**, int) = nullptr;
  // In these forms since CUDA 4 and 7.
  if (DeviceStatus bad = FindDriverCall("cuCtxPushCurrent", 4000, &context->push); !bad.ok()) return bad;
  if (DeviceStatus bad = FindDriverCall("cuCtxPopCurrent", 4000, &context->pop); !bad.ok()) return bad;
  // These take CUDA_KERNEL_NODE_PARAMS as it is since CUDA 12.
  if (DeviceStatus bad = FindDriverCall("cuGraphKernelNodeGetParams", 12000, &context->get_kernel); !bad.ok())
    return bad;
  if (DeviceStatus bad = FindDriverCall("cuGraphExecKernelNodeSetParams", 12000, &context->set_kernel); !bad.ok())
    return bad;
  if (DeviceStatus bad = FindDriverCall("cuDevicePrimaryCtxRetain", 7000, &retain); !bad.ok()) return bad;
  return DriverStatus("cuDevicePrimaryCtxRetain", retain(&context->context, ordinal));
}

DeviceStatus EnterCudaThread(const CudaContext& context) {
  if (t_entered && context.alone) return {};
  if (!t_entered) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    if (DeviceStatus bad =
            CudaStatus("cudaThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(&mode));
        !bad.ok())
      return bad;
  } else {
    int current = -1;
    if (DeviceStatus bad = CudaStatus("cudaGetDevice", cudaGetDevice(&current)); !bad.ok()) return bad;
    if (current == context.ordinal) return {};
  }
  DeviceStatus status = CudaStatus("cudaSetDevice", cudaSetDevice(context.ordinal));
  t_entered |= status.ok();
  return status;
}

void NoteCudaCapture(bool begins) { t_captures = begins; }

CudaVisit::CudaVisit(const CudaContext& to, Device device, Captures ignored) : to_(to) {
  if (!to.alone && !(t_entered && device == Device::kAny)) {
    int current = -1;
    if (!Try(CudaStatus("cudaGetDevice", cudaGetDevice(&current)))) return;
    if (current != to.ordinal) pushed_ = Try(DriverStatus("cuCtxPushCurrent", to.push(to.context)));
    if (!status_.ok()) return;
  }
  if (t_entered && (ignored == Captures::kOfOthers || !t_captures)) return;
  before_ = ignored == Captures::kAll ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeThreadLocal;
  exchanged_ = Try(CudaStatus("cudaThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(&before_)));
}

bool CudaVisit::Try(DeviceStatus status) {
  (void)(status_ =
             std::move(status));  // nvcc takes an assignment of a nodiscard type for a result that nobody looks at
  return status_.ok();
}

CudaVisit::~CudaVisit() {
  if (exchanged_)
    (void)CudaStatus("cudaThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(&before_));
  if (!pushed_) return;
  void* popped = nullptr;
  (void)DriverStatus("cuCtxPopCurrent", to_.pop(&popped));
}

}  // namespace engine::detail
