// Kernels: what nvcc's host code says of them, and their launches.
#include "twins.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "control.h"

namespace cuda_model {

struct Kernel {
  std::string name;  // as the program has it, demangled
  const void* host = nullptr;
  const Twin* twin = nullptr;
  std::set<int> loaded;  // devices
};

namespace {

struct Kernels {
  std::mutex mu;
  std::map<const void*, std::unique_ptr<Kernel>> by_host;
  long fail_in = 0;
  cudaError_t fail_error = cudaSuccess;
};
Kernels& kernels() {
  static Kernels& kernels = *new Kernels;
  return kernels;
}

// "void a::(anonymous namespace)::Set(int*, int)" is Set(int*, int).
std::string Signature(const std::string& name) {
  const size_t arguments = name.find_last_of('(');
  const size_t begin = name.rfind("::", arguments);
  return begin == std::string::npos ? name : name.substr(begin + 2);
}

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> t_configurations;

// A module is loaded when its first kernel is needed, which may wait for all that runs (Programming Guide, "Lazy Loading").
cudaError_t Load(Call& call, Kernel& kernel) {
  if (kernel.loaded.count(CurrentDevice())) return cudaSuccess;
  if (const cudaError_t unsafe = call.Unsafe(); unsafe != cudaSuccess) return unsafe;
  if (const cudaError_t lost = call.WaitIdle(CurrentDevice()); lost != cudaSuccess) return lost;
  kernel.loaded.insert(CurrentDevice());
  return cudaSuccess;
}

}  // namespace

bool Launch::Touch(const void* memory, size_t bytes) {
  if (!MayTouch(memory, bytes)) faulted = true;
  return !faulted;
}

// By the host's function, or by the handle, which is the same here.
const Kernel* FindKernel(const void* function) {
  Kernels& all = kernels();
  const std::lock_guard lock(all.mu);
  const auto at = all.by_host.find(function);
  return at == all.by_host.end() ? nullptr : at->second.get();
}
const void* HostFunction(const Kernel& kernel) { return kernel.host; }

cudaError_t CopyArguments(const Kernel& kernel, void** from, KernelCall* to) {
  for (size_t i = 0; i < kernel.twin->sizes.size(); ++i) {
    if (!from || !from[i]) return cudaErrorInvalidValue;
    const auto* begin = static_cast<const std::byte*>(from[i]);
    to->arguments.emplace_back(begin, begin + kernel.twin->sizes[i]);
  }
  return cudaSuccess;
}

cudaError_t CheckLaunch(Call& call, const Kernel* kernel, const dim3& grid, const dim3& block) {
  if (!kernel) return call.Misuse(cudaErrorInvalidDeviceFunction, "no kernel of this program");
  if (!kernel->twin)
    return call.Misuse(cudaErrorInvalidDeviceFunction, "kernel " + kernel->name + " has no twin in twins.cc");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0 || grid.y > 65535 ||
      grid.z > 65535 || block.x > 1024 || block.y > 1024 || block.z > 64 || block.x * block.y * block.z > 1024)
    return cudaErrorInvalidConfiguration;
  return cudaSuccess;
}

void RunKernel(const KernelCall& kernel) {
  std::vector<void*> arguments;
  for (const auto& argument : kernel.arguments) arguments.push_back(const_cast<std::byte*>(argument.data()));
  const auto in = [](const dim3& of) { return uint64_t{of.x} * of.y * of.z; };
  Launch launch{in(kernel.grid) * in(kernel.block)};
  cudaError_t planted = cudaSuccess;
  {
    Kernels& all = kernels();
    const std::lock_guard lock(all.mu);
    if (all.fail_in > 0 && --all.fail_in == 0) planted = all.fail_error;
  }
  if (planted == cudaSuccess) kernel.kernel->twin->run(launch, arguments.data());
  if (launch.faulted) {
    Violation("kernel", kernel.kernel->name + " touched memory that it may not, or not yet, or no longer");
    planted = cudaErrorIllegalAddress;
  }
  if (planted == cudaSuccess) return;
  const std::lock_guard lock(state().mu);
  Lose(planted);
}

}  // namespace cuda_model

using namespace cuda_model;

extern "C" {

void cudaModelFailKernel(long nth, cudaError_t error) {
  const std::lock_guard lock(kernels().mu);
  kernels().fail_in = nth;
  kernels().fail_error = error;
}

// What nvcc's host code calls (crt/host_runtime.h). Registration needs no device.
void** __cudaRegisterFatBinary(void*) {
  static void* binary = nullptr;
  return &binary;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  auto kernel = std::make_unique<Kernel>();
  int status = 0;
  char* const readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  kernel->name = readable ? readable : name;
  std::free(readable);
  kernel->host = host;
  const std::string signature = Signature(kernel->name);
  for (const Twin& twin : Twins())
    if (signature == twin.signature) kernel->twin = &twin;
  const std::lock_guard lock(kernels().mu);
  kernels().by_host[host] = std::move(kernel);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  t_configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  if (t_configurations.empty()) return cudaErrorMissingConfiguration;
  const Configuration& top = t_configurations.back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  t_configurations.pop_back();
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return FindKernel(host) ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto on = call.Find(call.g.streams, stream);
    if (!on) return cudaErrorInvalidResourceHandle;
    // "A kernel launch will fail if it is issued to a stream that is not associated to the current device."
    if (on->device != CurrentDevice())
      return call.Misuse(cudaErrorInvalidResourceHandle, "the stream is not of the current device");
    const Kernel* const kernel = FindKernel(function);
    if (const cudaError_t bad = CheckLaunch(call, kernel, grid, block); bad != cudaSuccess) return bad;
    if (const cudaError_t bad = Load(call, const_cast<Kernel&>(*kernel)); bad != cudaSuccess) return bad;
    KernelCall made{kernel, grid, block, shared_bytes, {}, {}, Runtime()};
    if (const cudaError_t bad = CopyArguments(*kernel, arguments, &made); bad != cudaSuccess) return bad;
    const cudaError_t issued = Issue(call, *on, std::move(made));
    if (issued != cudaSuccess || on->capture || !LaunchesBlock()) return issued;
    return call.Wait([&] { return on->idle(); });
  });
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                               cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    *attributes = {};
    const Kernel* const kernel = FindKernel(function);
    if (!kernel) return call.Misuse(cudaErrorInvalidDeviceFunction, "no kernel of this program");
    attributes->maxThreadsPerBlock = 1024;
    return Load(call, const_cast<Kernel&>(*kernel));
  });
}

}  // extern "C"
