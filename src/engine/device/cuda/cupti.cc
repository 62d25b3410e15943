// Finds blocking calls of CUDA through CUPTI, which is loaded only when debug checks are asked for.
//
// Calls of the runtime are seen under their own names, calls of the driver under the driver's. The first call in a body
// counts; it is the outermost. CUPTI has one subscriber in a process. Under a profiler that is the profiler, and
// nothing is seen here.
#include "device/cuda/cupti.h"

#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>

#include "device/body_scope.h"

namespace engine::detail {
namespace {

constexpr CUpti_CallbackId kRuntimeCalls[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020,     CUPTI_RUNTIME_TRACE_CBID_cudaThreadSynchronize_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020,     CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020,      CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_ptds_v7000,           CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2D_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2D_ptds_v7000,         CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3D_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3D_ptds_v7000,         CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToSymbol_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToSymbol_ptds_v7000,   CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromSymbol_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromSymbol_ptds_v7000, CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020,
};
constexpr CUpti_CallbackId kDriverCalls[] = {
#if CUDART_VERSION >= 13000
    CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize_v2,
#endif
    CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize,
    CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize,
    CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpy,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpy_ptds,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2_ptds,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2_ptds,
    CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2,
};

void CUPTIAPI OnCall(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void* data) {
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  if (call->callbackSite == CUPTI_API_ENTER) BodyScope::NoteSync(call->functionName);
}

std::string Watch() {
  const std::string name = "libcupti.so." + std::to_string(CUDART_VERSION / 1000);
  void* library = nullptr;
  std::string tried;
  for (const std::string& one : {name, std::string("libcupti.so")}) {
    if ((library = dlopen(one.c_str(), RTLD_NOW | RTLD_LOCAL))) break;
    const char* why = dlerror();
    tried += (tried.empty() ? "" : "; ") + std::string(why ? why : one);
  }
  if (!library)
    return "CUPTI cannot be loaded: " + tried + "; the CUDA toolkit and `pip install nvidia-cuda-cupti` have it";
  const auto subscribe = reinterpret_cast<decltype(&cuptiSubscribe)>(dlsym(library, "cuptiSubscribe"));
  const auto enable = reinterpret_cast<decltype(&cuptiEnableCallback)>(dlsym(library, "cuptiEnableCallback"));
  const auto describe = reinterpret_cast<decltype(&cuptiGetResultString)>(dlsym(library, "cuptiGetResultString"));
  if (!subscribe || !enable || !describe) return "CUPTI lacks a function that is needed here";
  const auto failed = [&](const char* what, CUptiResult result) {
    const char* text = nullptr;
    (void)describe(result, &text);
    return std::string(what) + ": " + (text ? text : "error " + std::to_string(result));
  };
  CUpti_SubscriberHandle subscriber{};
  CUptiResult result = subscribe(&subscriber, &OnCall, nullptr);
  if (result == CUPTI_ERROR_UNKNOWN) return failed("cuptiSubscribe", result) + ", as where there is no driver";
  if (result != CUPTI_SUCCESS) return failed("cuptiSubscribe", result);
  for (const CUpti_CallbackId id : kRuntimeCalls)
    if (result == CUPTI_SUCCESS) result = enable(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, id);
  for (const CUpti_CallbackId id : kDriverCalls)
    if (result == CUPTI_SUCCESS) result = enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
  return result == CUPTI_SUCCESS ? "" : failed("cuptiEnableCallback", result);
}

}  // namespace

std::string WatchSyncs() {
  static const auto* why = new std::string(Watch());  // never destroyed: statics' destructors may ask
  return *why;
}

}  // namespace engine::detail
