#include "model.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "control.h"

namespace cuda_model {
namespace {

// What tests planted, and what was counted. All under the state's lock, but the violations, which have their own.
struct Control {
  std::map<std::string, long> calls;
  long all_calls = 0;
  std::string fail_function;
  long fail_in = 0;
  cudaError_t fail_error = cudaSuccess;
  bool fail_sticky = false;
  std::string failed;

  std::mutex mu;
  long violations = 0;
  std::string last_violation;
};
Control& control() {
  static Control& control = *new Control;
  return control;
}

thread_local int t_device = 0;
thread_local cudaError_t t_last_error = cudaSuccess;

bool Lost(int device) { return state().devices[static_cast<size_t>(device)].lost != cudaSuccess; }

// What a program left alive. Lost devices keep what they have: only the end of the process helps then.
template <class T>
int Live(Table<T>& table, std::string* said) {
  int live = 0;
  for (auto& [handle, object] : table.live()) live += !Lost(object->device);
  if (live != 0 && said) *said += (said->empty() ? "" : ", ") + std::to_string(live) + " of " + table.what();
  return live;
}
template <>
int Live(Table<Graph>& table, std::string* said) {
  int live = 0;
  for (auto& [handle, graph] : table.live()) live += graph->nodes.empty() || !Lost(graph->nodes[0]->device);
  if (live != 0 && said) *said += (said->empty() ? "" : ", ") + std::to_string(live) + " of " + table.what();
  return live;
}

int LiveObjects(std::string* said) {
  State& g = state();
  int blocks = 0;
  for (auto& [begin, block] : g.memory) blocks += block->allocated && !Lost(block->device);
  if (blocks != 0 && said) *said += std::to_string(blocks) + " allocations";
  return blocks + Live(g.streams, said) + Live(g.events, said) + Live(g.pools, said) + Live(g.graphs, said) +
         Live(g.execs, said);
}

// Behind the destructors of all that uses the runtime, since that is loaded later.
__attribute__((destructor)) void AtExit() {
  std::string left;
  if (LiveObjects(&left) != 0) Violation("exit", "the program left " + left);
  Control& c = control();
  if (c.violations == 0) return;
  std::fprintf(stderr, "cuda model: %ld violations\n", c.violations);
  if (std::getenv("CUDA_MODEL_KEEP_STATUS")) return;
  std::fflush(nullptr);
  _exit(70);
}

}  // namespace

State& state() {
  static State& state = *[] {
    auto* made = new State;
    const char* devices = std::getenv("CUDA_MODEL_DEVICES");
    made->devices.resize(devices ? static_cast<size_t>(std::atoi(devices)) : 1);
    return made;
  }();
  return state;
}

bool& InHostFunction() {
  thread_local bool in = false;
  return in;
}
int CurrentDevice() { return t_device; }
void SetCurrentDevice(int ordinal) { t_device = ordinal; }

void Violation(const char* function, const std::string& what) {
  Control& c = control();
  const std::lock_guard lock(c.mu);
  ++c.violations;
  c.last_violation = std::string(function) + ": " + what;
  std::fprintf(stderr, "cuda model: violation: %s\n", c.last_violation.c_str());
}

Call::Call(const char* name) : function(name), g(state()), lock(g.mu) {
  ++control().calls[name];
  ++control().all_calls;
}
Call::~Call() = default;

cudaError_t Call::Refusal() {
  Control& c = control();
  refused_ = true;
  if (g.devices.empty()) return cudaErrorNoDevice;
  if (InHostFunction()) return Misuse(cudaErrorNotPermitted, "host functions must not call the runtime");
  if (c.fail_in > 0 && (c.fail_function == "*" || c.fail_function == function) && --c.fail_in == 0) {
    c.failed = function;
    t_last_error = c.fail_error;  // whatever it is
    if (c.fail_sticky) LoseDevice(t_device, c.fail_error);
    return c.fail_error;
  }
  // "any further CUDA work will return the same error" (CUDA Runtime API, error types).
  const cudaError_t lost = g.devices[static_cast<size_t>(t_device)].lost;
  refused_ = lost != cudaSuccess;
  return lost;
}

// "cudaErrorNotReady [...] is not considered an error and is therefore not reported" (Programming Guide, error checking).
cudaError_t Call::Return(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) t_last_error = error;
  return error;
}

cudaError_t TakeLastError(bool keep) {
  State& g = state();
  const std::lock_guard lock(g.mu);
  const cudaError_t lost = g.devices.empty() ? cudaSuccess : g.devices[static_cast<size_t>(t_device)].lost;
  const cudaError_t error = lost != cudaSuccess ? lost : t_last_error;
  if (!keep) t_last_error = cudaSuccess;
  return error;
}

}  // namespace cuda_model

using namespace cuda_model;

extern "C" {

void cudaModelFail(const char* function, long nth, cudaError_t error, int sticky) {
  const std::lock_guard lock(state().mu);
  Control& c = control();
  c.fail_function = function ? function : "";
  c.fail_in = function ? nth : 0;
  c.fail_error = error;
  c.fail_sticky = sticky != 0;
  c.failed.clear();
}
const char* cudaModelFailed() {
  const std::lock_guard lock(state().mu);
  return control().failed.empty() ? nullptr : control().failed.c_str();
}
long cudaModelCalls(const char* function) {
  const std::lock_guard lock(state().mu);
  return std::strcmp(function, "*") == 0 ? control().all_calls : control().calls[function];
}
long cudaModelViolations() {
  const std::lock_guard lock(control().mu);
  return control().violations;
}
const char* cudaModelLastViolation() {
  const std::lock_guard lock(control().mu);
  return control().last_violation.c_str();
}
void cudaModelViolation(const char* function, const char* what) { Violation(function, what); }
void cudaModelForgive() {
  const std::lock_guard lock(control().mu);
  control().violations = 0;
}
int cudaModelLiveObjects() {
  const std::lock_guard lock(state().mu);
  return LiveObjects(nullptr);
}

void cudaModelReviveDevices() {
  State& g = state();
  std::unique_lock lock(g.mu);
  const auto forget = [&](auto& table, auto lost) {
    for (auto at = table.live().begin(); at != table.live().end();)
      at = lost(*at->second) ? table.live().erase(at) : std::next(at);
  };
  for (auto& [handle, stream] : g.streams.live()) {
    if (!Lost(stream->device)) continue;
    stream->closed = true;
    stream->wake.notify_all();
  }
  const auto of_lost = [](const auto& object) { return Lost(object.device); };
  ++g.waiting;
  g.progress.wait(lock, [&] {
    for (const Stream* s : g.working)
      if (Lost(s->device)) return false;
    return true;
  });
  --g.waiting;
  forget(g.streams, of_lost);
  forget(g.events, of_lost);
  forget(g.pools, of_lost);
  forget(g.execs, of_lost);
  forget(g.graphs, [](const Graph& graph) { return graph.nodes.empty() || Lost(graph.nodes[0]->device); });
  forget(g.nodes, of_lost);
  for (auto at = g.memory.begin(); at != g.memory.end();) at = Lost(at->second->device) ? g.memory.erase(at) : ++at;
  for (Device& device : g.devices)
    if (device.lost != cudaSuccess) device = {};
  t_last_error = cudaSuccess;
}

}  // extern "C"
