// Kernels of the programs under test, as functions of the host: a table by name and parameters.
//
// Threads: they run on streams' threads, without the lock.
#pragma once

#include <tuple>
#include <utility>

#include "model.h"

namespace cuda_model {

// What a kernel may ask about its launch, and how it says that it went wrong.
struct Launch {
  uint64_t threads;  // in all
  bool Touch(const void* memory, size_t bytes);
  bool faulted = false;
};

struct Twin {
  const char* signature;  // without the namespaces: "Set(int*, int, int)"
  std::vector<size_t> sizes;
  void (*run)(Launch& launch, void* const* arguments);
};
const std::vector<Twin>& Twins();

template <auto kFunction>
struct TwinOf;
template <class... Parameters, void (*kFunction)(Launch&, Parameters...)>
struct TwinOf<kFunction> {
  static Twin Make(const char* signature) { return {signature, {sizeof(Parameters)...}, &Run}; }
  static void Run(Launch& launch, void* const* arguments) {
    Spread(launch, arguments, std::index_sequence_for<Parameters...>());
  }
  template <size_t... kIndex>
  static void Spread(Launch& launch, void* const* arguments, std::index_sequence<kIndex...>) {
    kFunction(launch, *static_cast<Parameters*>(arguments[kIndex])...);
  }
};

}  // namespace cuda_model
