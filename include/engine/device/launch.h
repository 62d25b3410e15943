// Launch: a kernel as the work of an op on a device, with its arguments.
//
//   eng.Push({.name = "axpy", .reads = {x}, .updates = {y}, .place = engine::Gpu(),
//             .graph = {.kind = kAxpy, .params = version, .one_call = true}},
//            [=](engine::RunContext& ctx) { ctx.Launch(Axpy, blocks, 256, y_data, x_data, a, n); });
//
// Eagerly this is the launch that `<<<>>>` makes, checked. In a bulk that has become a device graph, and whose params have
// changed, it gives the arguments to the op's node of the graph, which is one call of the driver; a launch by `<<<>>>` is
// captured anew, which is eight. Kernels of a binary with a CUDA runtime of its own (nvcc's default) can be launched so as well.
//
// On a software device the kernel is a function of the host, and runs once for a launch.
//
// Threads:   inside the body of an op on a device. Ownership: arguments are copied.
// Errors:    DeviceError if the device refuses the launch; UsageError for an op that is on no device. Arguments that the
//            kernel does not take are refused by the compiler.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime_api.h>
#endif

#include <tuple>
#include <type_traits>
#include <utility>

#include "engine/device/device.h"
#include "engine/op.h"

namespace engine {

// Dim3: how many blocks, or threads of a block, there are in each direction. CUDA's dim3 converts by itself.
struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  constexpr Dim3(uint32_t in_x, uint32_t in_y = 1, uint32_t in_z = 1) noexcept : x(in_x), y(in_y), z(in_z) {}  // NOLINT
  template <class Other>
    requires requires(const Other& o) { o.x + o.y + o.z; }
  constexpr Dim3(const Other& other) noexcept : x(other.x), y(other.y), z(other.z) {}  // NOLINT
};

namespace detail {

#ifdef CUDART_VERSION
inline cudaKernelNodeParams CudaKernelParams(const KernelLaunch& launch) {
  const auto& [gx, gy, gz] = launch.grid;
  const auto& [bx, by, bz] = launch.block;
  cudaKernelNodeParams params{};
  params.func = const_cast<void*>(launch.kernel);
  params.gridDim = dim3(gx, gy, gz);
  params.blockDim = dim3(bx, by, bz);
  params.sharedMemBytes = static_cast<unsigned>(launch.shared_bytes);
  params.kernelParams = launch.args;
  return params;
}
// The runtime that the kernels of this binary are registered with.
inline int LaunchCudaKernel(const KernelLaunch& launch, void* stream) {
  const cudaKernelNodeParams params = CudaKernelParams(launch);
  return static_cast<int>(cudaLaunchKernel(launch.kernel, params.gridDim, params.blockDim, launch.args,
                                           launch.shared_bytes, static_cast<cudaStream_t>(stream)));
}
inline int SetCudaKernel(const KernelLaunch& launch, void* exec, void* node) {
  const cudaKernelNodeParams params = CudaKernelParams(launch);
  return static_cast<int>(cudaGraphExecKernelNodeSetParams(static_cast<cudaGraphExec_t>(exec),
                                                           static_cast<cudaGraphNode_t>(node), &params));
}
inline constexpr KernelRuntime kKernelRuntime{&LaunchCudaKernel, &SetCudaKernel};
#endif

template <class... Params>
void CallKernel(const void* kernel, void* const* args) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    (*reinterpret_cast<void (*)(Params...)>(const_cast<void*>(kernel)))(*static_cast<Params*>(args[I])...);
  }(std::index_sequence_for<Params...>());
}

// Calls fn(const KernelLaunch&) with the launch of the kernel; what it points to lives as long as the call.
template <class Fn, class... Params, class... Args>
void WithLaunch(Fn&& fn, void (*kernel)(Params...), Dim3 grid, Dim3 block, size_t shared_bytes, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "Launch: the kernel has another number of parameters");
  static_assert((std::is_convertible_v<Args&&, Params> && ...), "Launch: the kernel does not take these arguments");
  static_assert((std::is_trivially_copyable_v<Params> && ...), "Launch: a kernel's parameters are copied as bytes");
  std::tuple<std::remove_cv_t<Params>...> values(static_cast<Params>(std::forward<Args>(args))...);
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {const_cast<void*>(static_cast<const volatile void*>(&value))..., nullptr};
        const size_t sizes[] = {sizeof value..., 0};
        KernelLaunch launch{.kernel = reinterpret_cast<const void*>(kernel),
                            .grid = {grid.x, grid.y, grid.z},
                            .block = {block.x, block.y, block.z},
                            .shared_bytes = shared_bytes,
                            .args = pointers,
                            .sizes = sizes,
                            .count = sizeof...(Params),
                            .call = &CallKernel<std::remove_cv_t<Params>...>};
#ifdef CUDART_VERSION
        launch.runtime = &kKernelRuntime;
#endif
        fn(static_cast<const KernelLaunch&>(launch));
      },
      values);
}

}  // namespace detail

template <class... Params, class... Args>
void RunContext::Launch(void (*kernel)(Params...), Dim3 grid, Dim3 block, Args&&... args) {
  LaunchShared(kernel, grid, block, 0, std::forward<Args>(args)...);
}
template <class... Params, class... Args>
void RunContext::LaunchShared(void (*kernel)(Params...), Dim3 grid, Dim3 block, size_t shared_bytes, Args&&... args) {
  detail::WithLaunch([this](const KernelLaunch& launch) { LaunchErased(launch); }, kernel, grid, block, shared_bytes,
                     std::forward<Args>(args)...);
}

}  // namespace engine
