// A model of CUPTI's callbacks, over the model of the runtime: the one subscriber is told of each call that it has asked for, as
// it begins and as it ends, under the runtime's name and then under that of the driver's call below.
//
// CUPTI_MODEL_TAKEN=1: a profiler subscribed before the program could.
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "control.h"

namespace {

struct Function {
  const char* runtime;  // what the runtime calls it
  CUpti_CallbackId runtime_id;
  const char* driver;
  CUpti_CallbackId driver_id;
};
constexpr Function kFunctions[] = {
    {"cudaDeviceSynchronize", CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020, "cuCtxSynchronize",
     CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize},
    {"cudaStreamSynchronize", CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020, "cuStreamSynchronize",
     CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize},
    {"cudaEventSynchronize", CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020, "cuEventSynchronize",
     CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize},
    {"cudaFree", CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020, "cuMemFree_v2", CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2},
    {"cudaEventQuery", CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020, "cuEventQuery",
     CUPTI_DRIVER_TRACE_CBID_cuEventQuery},
    {"cudaMemcpyAsync", CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020, "cuMemcpyAsync",
     CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync},
};

struct Subscriber {
  std::mutex mu;
  CUpti_CallbackFunc callback = nullptr;
  void* data = nullptr;
  std::set<std::pair<CUpti_CallbackDomain, CUpti_CallbackId>> enabled;
};
Subscriber& subscriber() {
  static Subscriber& subscriber = *new Subscriber;  // streams' threads may outlive main
  return subscriber;
}

void Tell(CUpti_CallbackDomain domain, CUpti_CallbackId id, const char* name, bool begins) {
  Subscriber& s = subscriber();
  CUpti_CallbackFunc callback = nullptr;
  {
    const std::lock_guard lock(s.mu);
    if (s.enabled.count({domain, id})) callback = s.callback;
  }
  if (!callback) return;
  CUpti_CallbackData data{};
  data.callbackSite = begins ? CUPTI_API_ENTER : CUPTI_API_EXIT;
  data.functionName = name;
  callback(s.data, domain, id, &data);
}

void OnCall(const char* name, bool begins) {
  for (const Function& f : kFunctions) {
    if (std::strcmp(f.runtime, name) != 0) continue;
    if (begins) Tell(CUPTI_CB_DOMAIN_RUNTIME_API, f.runtime_id, f.runtime, begins);
    Tell(CUPTI_CB_DOMAIN_DRIVER_API, f.driver_id, f.driver, begins);
    if (!begins) Tell(CUPTI_CB_DOMAIN_RUNTIME_API, f.runtime_id, f.runtime, begins);
  }
}

}  // namespace

extern "C" {

CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* data) {
  Subscriber& s = subscriber();
  const std::lock_guard lock(s.mu);
  const auto on_call = CUDA_MODEL(cudaModelOnCall);
  if (!handle || !callback) return CUPTI_ERROR_INVALID_PARAMETER;
  if (!on_call) return CUPTI_ERROR_UNKNOWN;  // no model of the runtime: as where there is no driver
  if (s.callback || std::getenv("CUPTI_MODEL_TAKEN")) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  s.callback = callback;
  s.data = data;
  *handle = reinterpret_cast<CUpti_SubscriberHandle>(&s);
  on_call(&OnCall);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain,
                                         CUpti_CallbackId id) {
  Subscriber& s = subscriber();
  const std::lock_guard lock(s.mu);
  if (reinterpret_cast<Subscriber*>(handle) != &s || !s.callback) return CUPTI_ERROR_INVALID_PARAMETER;
  if (domain != CUPTI_CB_DOMAIN_RUNTIME_API && domain != CUPTI_CB_DOMAIN_DRIVER_API)
    return CUPTI_ERROR_INVALID_PARAMETER;
  if (enable) {
    s.enabled.insert({domain, id});
  } else {
    s.enabled.erase({domain, id});
  }
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult result, const char** text) {
  *text = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                                                   : "CUPTI_ERROR";
  return CUPTI_SUCCESS;
}

}  // extern "C"
