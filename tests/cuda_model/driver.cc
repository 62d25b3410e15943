// The driver's functions that programs come to by the runtime, and the contexts that threads have current.
#include <cstring>

#include "model.h"

using namespace cuda_model;

namespace {

// A context stands for its device: the primary one is all that there is.
void* Handle(int device) { return reinterpret_cast<void*>(uintptr_t{0xC0DE0000} + static_cast<uintptr_t>(device)); }
bool Known(const Call& call, const void* context) {
  const auto device = reinterpret_cast<uintptr_t>(context) - 0xC0DE0000;
  return device < call.g.devices.size();
}

int Retain(void** context, int device) {
  return Api(
      "cuDevicePrimaryCtxRetain",
      [&](Call& call) -> cudaError_t {
        if (device < 0 || static_cast<size_t>(device) >= call.g.devices.size())
          return call.Misuse(cudaErrorInvalidDevice, "there is no device " + std::to_string(device));
        call.g.contexts.insert(device);
        *context = Handle(device);
        return cudaSuccess;
      },
      Release::kNo, Context::kNotNeeded);
}

int Push(void* context) {
  return Api(
      "cuCtxPushCurrent",
      [&](Call& call) -> cudaError_t {
        if (!Known(call, context)) return call.Misuse(cudaErrorInvalidValue, "no context");
        Contexts().push_back(static_cast<int>(reinterpret_cast<uintptr_t>(context) - 0xC0DE0000));
        return cudaSuccess;
      },
      Release::kNo, Context::kNotNeeded);
}

int Pop(void** context) {
  return Api(
      "cuCtxPopCurrent",
      [&](Call& call) -> cudaError_t {
        if (Contexts().empty()) return call.Misuse(cudaErrorInvalidValue, "the thread has no context");
        *context = Handle(CurrentDevice());
        Contexts().pop_back();
        return cudaSuccess;
      },
      Release::kYes, Context::kNotNeeded);
}

cudaError_t Find(const char* function, const char* name, unsigned version, void** found,
                 cudaDriverEntryPointQueryResult* result) {
  return Api(
      function,
      [&](Call& call) -> cudaError_t {
        const std::pair<const char*, void*> calls[] = {{"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&Retain)},
                                                       {"cuCtxPushCurrent", reinterpret_cast<void*>(&Push)},
                                                       {"cuCtxPopCurrent", reinterpret_cast<void*>(&Pop)}};
        *found = DriverCallOnGraphs(name);
        // Asked for as of an older version, it would be another function, with other parameters.
        if (*found && version < 12000)
          return call.Misuse(cudaErrorInvalidValue, std::string(name) + " of before CUDA 12");
        for (const auto& [known, at] : calls)
          if (std::strcmp(known, name) == 0) *found = at;
        *result = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
        return *found ? cudaSuccess : call.Misuse(cudaErrorInvalidValue, std::string(name) + " is not modelled");
      },
      Release::kNo, Context::kNotNeeded);
}

}  // namespace

extern "C" {

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return Find(__func__, name, version, found, result);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char* name, void** found, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  return Find(__func__, name, CUDART_VERSION, found, result);
}
#endif

}  // extern "C"
