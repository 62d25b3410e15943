#include "stf.h"

#include <cuda/experimental/stf.cuh>
#include <string>
#include <vector>

namespace engine::perf {
namespace {

namespace stf = cuda::experimental::stf;

// What CUDASTF keeps from one context for the next: streams, and graphs by their structure.
stf::async_resources_handle& Resources() {
  static auto& resources = *new stf::async_resources_handle;  // the driver may be gone when statics are destroyed
  return resources;
}

template <class Context>
void Run(Context& context, const StfProgram& program) {
  std::vector<decltype(context.token())> chains;
  for (int c = 0; c < program.chains; ++c) chains.push_back(context.token());
  for (int i = 0; i < program.length; ++i)
    for (auto& chain : chains)
      context.task(chain.rw())->*[&](cudaStream_t stream, auto&&...) { program.launch(program.data, stream); };
  context.finalize();  // waits
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* EnginePerfRunStf(const StfProgram& program) {
  static std::string error;
  try {
    if (program.as_graph) {
      stf::graph_ctx context(nullptr, Resources());
      Run(context, program);
    } else {
      stf::stream_ctx context(nullptr, Resources());
      Run(context, program);
    }
    return nullptr;
  } catch (const std::exception& e) {
    error = e.what();
    return error.c_str();
  }
}

}  // namespace engine::perf
