#include "heap.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace engine::perf {
namespace {
std::atomic<uint64_t> g_allocations{0};  // relaxed: a counter, read when nothing runs
thread_local int t_paused = 0;

void* Allocate(size_t bytes, size_t align) {
  if (t_paused == 0) g_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = align <= alignof(std::max_align_t) ? std::malloc(bytes ? bytes : 1)
                                                    : std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (!memory) throw std::bad_alloc();
  return memory;
}
}  // namespace

uint64_t HeapAllocations() noexcept { return g_allocations.load(std::memory_order_relaxed); }
HeapPause::HeapPause() noexcept { ++t_paused; }
HeapPause::~HeapPause() { --t_paused; }

}  // namespace engine::perf

void* operator new(std::size_t bytes) { return engine::perf::Allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return engine::perf::Allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return engine::perf::Allocate(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes, std::align_val_t align) {
  return engine::perf::Allocate(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
