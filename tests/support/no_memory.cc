#include "support/no_memory.h"

#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace engine::test {

thread_local constinit bool t_fails = false;
thread_local constinit int t_until_failure = -1;
thread_local constinit bool t_only_one = false;
thread_local constinit bool t_exempt = false;
std::atomic<uint32_t> g_one_in{0};
std::atomic<void (*)()> g_at_each{nullptr};
uint64_t g_seed = 0;

namespace {

thread_local constinit uint64_t t_random = 0;

void* Allocate(std::size_t bytes, std::size_t align) noexcept {
  if (const auto at_each = g_at_each.load(std::memory_order_acquire)) at_each();
  if (t_fails) return nullptr;
  if (t_until_failure == 0) {
    if (t_only_one) t_until_failure = -1;
    return nullptr;
  }
  if (t_until_failure > 0) --t_until_failure;
  if (const uint32_t one_in = g_one_in.load(std::memory_order_relaxed); one_in && !t_exempt) {
    if (!t_random) t_random = g_seed ^ static_cast<uint64_t>(gettid()) * 0x9e3779b97f4a7c15;
    t_random = t_random * 6364136223846793005u + 1442695040888963407u;
    if ((t_random >> 33) % one_in == 0) return nullptr;
  }
  return align <= alignof(std::max_align_t) ? std::malloc(bytes)
                                            : std::aligned_alloc(align, (bytes + align - 1) / align * align);
}
void* AllocateOrThrow(std::size_t bytes, std::size_t align) {
  if (void* memory = Allocate(bytes, align)) return memory;
  throw std::bad_alloc();
}

}  // namespace
}  // namespace engine::test

using engine::test::Allocate;
using engine::test::AllocateOrThrow;

void* operator new(std::size_t bytes) { return AllocateOrThrow(bytes, 1); }
void* operator new[](std::size_t bytes) { return AllocateOrThrow(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return AllocateOrThrow(bytes, static_cast<std::size_t>(align));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
