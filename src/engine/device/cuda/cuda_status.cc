// What CUDA's errors mean to the engine.
#include "device/cuda/cuda_device.h"
#include "device/cuda/cudart.h"

namespace engine::detail {

using namespace cudart;  // NOLINT: see cudart.h

namespace {

struct Meaning {
  DeviceCode code;
  bool sticky;
};

// Errors that drivers report and the headers of CUDA 12.4 do not name.
constexpr int kContained = 226, kTensorMemoryLeak = 721;

Meaning MeaningOf(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case cudaErrorInvalidValue: return {DeviceCode::kInvalidValue, false};
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidDevice: return {DeviceCode::kInvalidHandle, false};
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidMemcpyDirection: return {DeviceCode::kWrongMemory, false};
    case cudaErrorMemoryAllocation: return {DeviceCode::kOutOfMemory, false};
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable: return {DeviceCode::kNoDevice, false};
    case cudaErrorNotSupported:
    case cudaErrorNotPermitted:
    case cudaErrorCallRequiresNewerDriver: return {DeviceCode::kUnsupported, false};
    case cudaErrorIllegalState: return {DeviceCode::kCaptureMode, false};
    case cudaErrorStreamCaptureUnsupported: return {DeviceCode::kCaptureUnsupported, false};
    case cudaErrorStreamCaptureInvalidated: return {DeviceCode::kCaptureInvalidated, false};
    case cudaErrorStreamCaptureMerge: return {DeviceCode::kCaptureMerge, false};
    case cudaErrorStreamCaptureUnmatched: return {DeviceCode::kCaptureUnmatched, false};
    case cudaErrorStreamCaptureUnjoined: return {DeviceCode::kCaptureUnjoined, false};
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit: return {DeviceCode::kCaptureIsolation, false};
    case cudaErrorCapturedEvent: return {DeviceCode::kCapturedEvent, false};
    case cudaErrorStreamCaptureWrongThread: return {DeviceCode::kCaptureWrongThread, false};
    case cudaErrorGraphExecUpdateFailure: return {DeviceCode::kGraphUpdateFailed, false};
    // After these the context is in an inconsistent state, and the process has to end to use CUDA again (CUDA
    // Runtime API, "CUDART Error types").
    case cudaErrorIllegalAddress: return {DeviceCode::kIllegalAddress, true};
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert: return {DeviceCode::kLaunchFailed, true};
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case kContained:
    case cudaErrorContextIsDestroyed:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case kTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorCudartUnloading: return {DeviceCode::kDeviceFault, true};
    default: return {DeviceCode::kUnknown, false};
  }
}

}  // namespace

DeviceStatus CudaStatus(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  // The runtime's last error is reported here, so nobody shall find it again. NotReady is said to set none, and where it does
  // it goes; an error that was there before, of a launch that nobody has asked for yet, stays.
  if (error == cudaErrorNotReady) {
    if (cudaPeekAtLastError() == cudaErrorNotReady) (void)cudaGetLastError();
    return DeviceStatus::NotReady();
  }
  (void)cudaGetLastError();
  const Meaning meaning = MeaningOf(error);
  return DeviceStatus::Fail(meaning.code, meaning.sticky, static_cast<int>(error),
                            std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

}  // namespace engine::detail
