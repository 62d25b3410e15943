// Devices, the current one, and errors.
#include <cstdio>

#include "model.h"

using namespace cuda_model;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        *count = static_cast<int>(call.g.devices.size());
        return cudaSuccess;
      },
      Release::kNo, Context::kNotNeeded);
}

cudaError_t cudaGetDevice(int* ordinal) {
  return Api(
      __func__,
      [&](Call&) -> cudaError_t {
        *ordinal = CurrentDevice();
        return cudaSuccess;
      },
      Release::kNo, Context::kNotNeeded);
}

cudaError_t cudaSetDevice(int ordinal) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        if (ordinal < 0 || static_cast<size_t>(ordinal) >= call.g.devices.size())
          return call.Misuse(cudaErrorInvalidDevice, "there is no device " + std::to_string(ordinal));
        // "the primary context [...] will be initialized"; in place of the thread's current one.
        if (Contexts().empty()) Contexts().push_back(0);
        Contexts().back() = ordinal;
        call.g.contexts.insert(ordinal);
        return cudaSuccess;
      },
      Release::kNo, Context::kNotNeeded);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        if (ordinal < 0 || static_cast<size_t>(ordinal) >= call.g.devices.size())
          return call.Misuse(cudaErrorInvalidDevice, "there is no device " + std::to_string(ordinal));
        *properties = {};
        std::snprintf(properties->name, sizeof properties->name, "model of CUDA, device %d", ordinal);
        properties->multiProcessorCount = 4 + ordinal;
        properties->major = 9;
        properties->totalGlobalMem = size_t{16} << 30;
        properties->warpSize = 32;
        return cudaSuccess;
      },
      Release::kNo, Context::kNotNeeded);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        const auto none = [&](int d) { return d < 0 || static_cast<size_t>(d) >= call.g.devices.size(); };
        if (none(device) || none(peer)) return call.Misuse(cudaErrorInvalidDevice, "there is no such device");
        *can = device != peer;
        return cudaSuccess;
      },
      Release::kNo, Context::kNotNeeded);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = DriverVersion();
  return cudaSuccess;
}

// Of the library, whatever the driver.
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return Api(__func__, [&](Call&) -> cudaError_t {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    if (const cudaError_t unsafe = call.Unsafe(); unsafe != cudaSuccess) return unsafe;
    const cudaError_t lost = call.WaitIdle(CurrentDevice());
    if (lost == cudaSuccess) ReleaseUnused(CurrentDevice());
    return lost;
  });
}

cudaError_t cudaGetLastError() { return TakeLastError(false); }
cudaError_t cudaPeekAtLastError() { return TakeLastError(true); }

#define NAMES(X)                                                                                                   \
  X(cudaSuccess, "no error")                                                                                       \
  X(cudaErrorInvalidValue, "invalid argument")                                                                     \
  X(cudaErrorMemoryAllocation, "out of memory")                                                                    \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                               \
  X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                                          \
  X(cudaErrorMissingConfiguration, "__global__ function call is not configured")                                   \
  X(cudaErrorInvalidDeviceFunction, "invalid device function")                                                     \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")                   \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                                       \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                                              \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                                     \
  X(cudaErrorIllegalState, "the operation cannot be performed in the present state")                               \
  X(cudaErrorLossyQuery, "attempted introspection would be semantically lossy")                                    \
  X(cudaErrorNotReady, "device not ready")                                                                         \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                           \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                                          \
  X(cudaErrorNotPermitted, "operation not permitted")                                                              \
  X(cudaErrorNotSupported, "operation not supported")                                                              \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                         \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")                  \
  X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")                \
  X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")                       \
  X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                          \
  X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")                    \
  X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")             \
  X(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread") \
  X(cudaErrorGraphExecUpdateFailure, "the graph update was not performed")                                         \
  X(cudaErrorUnknown, "unknown error")

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define NAME(code, text) \
  case code: return #code;
    NAMES(NAME)
#undef NAME
    default: return "unrecognized error code";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define TEXT(code, text) \
  case code: return text;
    NAMES(TEXT)
#undef TEXT
    default: return "unrecognized error code";
  }
}

}  // extern "C"
