#include "model.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

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

// release: what the hook needs. Partner: the acquire in Note.
std::atomic<void (*)(const char*, bool)> g_hook{nullptr};

constexpr int kRuntimes = 2;
thread_local cudaError_t t_last_errors[kRuntimes] = {};
cudaError_t& LastError() { return t_last_errors[Runtime()]; }

// What a program left alive. When all is lost it has no way to give anything back.
int LiveObjects(std::string* said) {
  State& g = state();
  int live = 0;
  if (g.lost != cudaSuccess) return 0;
  const auto count = [&](size_t objects, const char* what) {
    if (objects != 0 && said) *said += (said->empty() ? "" : ", ") + std::to_string(objects) + " " + what + "(s)";
    live += static_cast<int>(objects);
  };
  const auto allocated = [](const auto& entry) { return entry.second->allocated; };
  count(static_cast<size_t>(std::count_if(g.memory.begin(), g.memory.end(), allocated)), "allocation");
  count(g.streams.live().size(), g.streams.what());
  count(g.events.live().size(), g.events.what());
  count(g.pools.live().size(), g.pools.what());
  count(g.graphs.live().size(), g.graphs.what());
  count(g.execs.live().size(), g.execs.what());
  return live;
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
int DriverVersion() {
  static const int version = [] {
    const char* const given = std::getenv("CUDA_MODEL_DRIVER");
    return given ? std::atoi(given) : CUDART_VERSION;
  }();
  return version;
}
bool LaunchesBlock() {
  static const bool block = [] {
    const char* const given = std::getenv("CUDA_LAUNCH_BLOCKING");
    return given && std::atoi(given) != 0;
  }();
  return block;
}
size_t MostConnections() {
  static const size_t most = [] {
    const char* const given = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    return static_cast<size_t>(std::clamp(given ? std::atoi(given) : 8, 1, 32));
  }();
  return most;
}
int& Runtime() {
  thread_local int runtime = 0;
  return runtime;
}
std::vector<int>& Contexts() {
  thread_local std::vector<int> contexts;
  return contexts;
}
int CurrentDevice() { return Contexts().empty() ? 0 : Contexts().back(); }
cudaStreamCaptureMode& CaptureMode() {
  thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  return mode;
}

void Violation(const char* function, const std::string& what) {
  Control& c = control();
  const std::lock_guard lock(c.mu);
  ++c.violations;
  c.last_violation = std::string(function) + ": " + what;
  std::fprintf(stderr, "cuda model: violation: %s\n", c.last_violation.c_str());
}

// Before the lock is taken, and after it was given back: whoever is told may do what he likes, but call the runtime.
const char* Call::Note(const char* name, bool begins) {
  if (const auto hook = g_hook.load(std::memory_order_acquire)) {
    const bool before = std::exchange(InHostFunction(), true);
    hook(name, begins);
    InHostFunction() = before;
  }
  return name;
}

Call::Call(const char* name) : function(Note(name, true)), g(state()), lock(g.mu) {
  ++control().calls[name];
  ++control().all_calls;
  if (!g.any_full) return;
  ++g.waiting;
  g.progress.wait(lock, [&] { return !g.any_full; });
  --g.waiting;
}
Call::~Call() {
  lock.unlock();
  Note(function, false);
}

cudaError_t Call::Refusal() {
  Control& c = control();
  refused_ = true;
  if (DriverVersion() < CUDART_VERSION) return cudaErrorInsufficientDriver;
  if (g.devices.empty()) return cudaErrorNoDevice;
  if (InHostFunction()) return Misuse(cudaErrorNotPermitted, "host functions must not call the runtime");
  if (c.fail_in > 0 && (c.fail_function == "*" || c.fail_function == function) && --c.fail_in == 0) {
    c.failed = function;
    LastError() = c.fail_error;  // whatever it is
    if (c.fail_sticky) Lose(c.fail_error);
    return c.fail_error;
  }
  refused_ = g.lost != cudaSuccess;
  return g.lost;
}

void Call::NeedContext() {
  if (g.devices.empty()) return;
  if (Contexts().empty()) Contexts().push_back(0);
  g.contexts.insert(CurrentDevice());
}

// "cudaErrorNotReady [...] is not considered an error and is therefore not reported" (Programming Guide, error checking).
cudaError_t Call::Return(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) LastError() = error;
  return error;
}

cudaError_t TakeLastError(bool keep) {
  State& g = state();
  const std::lock_guard lock(g.mu);
  if (!keep) ++control().calls["cudaGetLastError"];  // a thread's own matter: none of "*", and never made to fail
  const cudaError_t error = g.lost != cudaSuccess ? g.lost : LastError();
  if (!keep) LastError() = cudaSuccess;
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
void cudaModelUseRuntime(int instance) { Runtime() = instance; }
int cudaModelTakeErrorOfRuntime1() {
  const int before = std::exchange(Runtime(), 1);
  const cudaError_t error = TakeLastError(false);
  Runtime() = before;
  return error;
}
long cudaModelBlockedLaunches() {
  const std::lock_guard lock(state().mu);
  return state().blocked_launches;
}
void cudaModelTakeMemory(size_t bytes) {
  const std::lock_guard lock(state().mu);
  state().taken_by_others = bytes;
}
cudaModelHook cudaModelOnCall(cudaModelHook hook) { return g_hook.exchange(hook, std::memory_order_acq_rel); }
void cudaModelWaitIdle(int device) {
  Call call(__func__);
  (void)call.WaitIdle(device);
}
int cudaModelMayAccess(const void* memory, int device) {
  const std::lock_guard lock(state().mu);
  const auto block = FindBlock(memory);
  return !block || !block->pool || block->device == device || block->pool->peers.count(device) != 0;
}
unsigned cudaModelContexts() {
  const std::lock_guard lock(state().mu);
  unsigned mask = 0;
  for (const int device : state().contexts) mask |= 1u << device;
  return mask;
}
void cudaModelForgetContexts() {
  const std::lock_guard lock(state().mu);
  state().contexts.clear();
}
int cudaModelLiveObjects() {
  const std::lock_guard lock(state().mu);
  return LiveObjects(nullptr);
}

void cudaModelReviveDevices() {
  State& g = state();
  std::unique_lock lock(g.mu);
  for (auto& [handle, stream] : g.streams.live()) {
    stream->closed = true;
    stream->wake.notify_all();
  }
  ++g.waiting;
  g.progress.wait(lock, [&] { return g.working.empty(); });
  --g.waiting;
  g.streams.live().clear();
  g.events.live().clear();
  g.pools.live().clear();
  g.execs.live().clear();
  g.graphs.live().clear();
  g.nodes.live().clear();
  g.memory.clear();
  g.captures.clear();
  for (Device& device : g.devices) device = {};
  g.lost = cudaSuccess;
  LastError() = cudaSuccess;
}

}  // extern "C"
