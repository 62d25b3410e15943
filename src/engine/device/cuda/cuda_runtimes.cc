// The instances of the CUDA runtime in this process. A binary that links the static runtime, which is nvcc's default,
// has an instance of its own, and only that one knows the errors of its launches. Each binary that includes
// cuda_stream.h enters a function here that asks its instance.
//
// Threads: any. If the table is full, later instances are left out, and their errors are not seen.
#include "device/cuda/cuda_runtimes.h"

#include <array>
#include <atomic>

#include "engine/device/cuda_stream.h"

namespace engine::detail {
namespace {

constexpr size_t kMostRuntimes = 64;
struct Place {
  std::atomic<const void*> runtime{nullptr};   // relaxed: `take` publishes it
  std::atomic<TakeCudaErrorFn> take{nullptr};  // release: an entry. Partner: the acquire in TakeErrorOfRuntimes
};
constinit std::array<Place, kMostRuntimes> g_runtimes;
// How many places have ever been used. release: publishes the entry. Partner: the acquire in TakeErrorOfRuntimes.
constinit std::atomic<size_t> g_used{0};

}  // namespace

void AddCudaRuntime(const void* runtime, TakeCudaErrorFn take) noexcept {
  for (size_t i = 0; i < kMostRuntimes; ++i) {
    TakeCudaErrorFn none = nullptr;
    if (!g_runtimes[i].take.compare_exchange_strong(none, take, std::memory_order_release)) continue;
    g_runtimes[i].runtime.store(runtime, std::memory_order_relaxed);
    size_t used = g_used.load(std::memory_order_relaxed);
    while (used <= i && !g_used.compare_exchange_weak(used, i + 1, std::memory_order_release)) {
    }
    return;
  }
}

void DropCudaRuntime(TakeCudaErrorFn take) noexcept {
  for (Place& place : g_runtimes) {
    TakeCudaErrorFn known = take;
    if (place.take.compare_exchange_strong(known, nullptr, std::memory_order_relaxed)) return;
  }
}

int TakeErrorOfRuntimes(const void* ours) {
  int first = 0;
  const size_t used = g_used.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    if (g_runtimes[i].runtime.load(std::memory_order_relaxed) == ours) continue;
    const TakeCudaErrorFn take = g_runtimes[i].take.load(std::memory_order_acquire);
    const int error = take ? take() : 0;
    if (first == 0) first = error;
  }
  return first;
}

}  // namespace engine::detail
