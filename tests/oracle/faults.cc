#include "faults.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

#include "support/sanitizers.h"

namespace engine::oracle {
namespace {

thread_local int64_t t_good_allocations = -1;  // allocations left until they fail; -1: they never do
thread_local int64_t t_failures = 0;           // that are left; 0: without end
thread_local int t_guards = 0;                 // GoodAllocations on the stack of the thread
std::atomic<uint64_t> g_thread_fails_in{0};    // relaxed: it only chooses who fails
std::atomic<uint64_t> g_threads{0};

[[maybe_unused]] bool AllocationFails() {
  if (t_good_allocations < 0) return false;
  if (t_good_allocations == 0) {
    if (t_failures && --t_failures == 0) t_good_allocations = -1;
    return true;
  }
  --t_good_allocations;
  return false;
}

[[maybe_unused]] bool ThreadFails() {
  const uint64_t one_in = g_thread_fails_in.load(std::memory_order_relaxed);
  if (one_in == 0 || detail::t_own_thread) return false;
  return g_threads.fetch_add(1, std::memory_order_relaxed) % one_in == one_in - 1;
}

}  // namespace

namespace detail {
thread_local bool t_own_thread = false, t_of_program = false;
}

FailingAllocations::FailingAllocations(int64_t nth) {
  t_failures = 0;
  t_good_allocations = nth - 1;
}
FailingAllocations::~FailingAllocations() { t_good_allocations = -1; }
GoodAllocations::GoodAllocations()
    : before_(std::exchange(t_good_allocations, -1)), times_before_(std::exchange(t_failures, 0)) {
  ++t_guards;
}
GoodAllocations::~GoodAllocations() {
  --t_guards;
  t_good_allocations = before_;
  t_failures = times_before_;
}
void GoodAllocations::ThenFail(int64_t nth, int64_t times) {
  if (t_guards != 1 || detail::t_of_program) return;
  before_ = nth - 1;
  times_before_ = times;
}
void FailThreads(uint64_t one_in) { g_thread_fails_in.store(one_in, std::memory_order_relaxed); }

}  // namespace engine::oracle

#if !defined(ENGINE_UNDER_TSAN) && !defined(ENGINE_UNDER_ASAN)
void* operator new(size_t size) {
  void* const memory = engine::oracle::AllocationFails() ? nullptr : std::malloc(size);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size, std::align_val_t align) {
  const auto a = static_cast<size_t>(align);
  void* const memory = engine::oracle::AllocationFails() ? nullptr : std::aligned_alloc(a, (size + a - 1) / a * a);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*main)(void*),
                              void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (engine::oracle::ThreadFails()) return EAGAIN;
  return real(thread, attributes, main, argument);
}
#endif
