// The instances of the CUDA runtime in this process. A binary that links the static one, nvcc's default, has one of its own: what its
// launches failed by is found there, and in no other. Each that includes cuda_stream.h says how it is asked.
//
// Threads: any. A full table leaves later ones out: their errors go unseen, as without it.
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
// How many places have ever been used. release, behind the entry. Partner: the acquire in TakeErrorOfRuntimes.
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
