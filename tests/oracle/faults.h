// Faults: makes allocations fail on the calling thread while a guard lives, and makes the system refuse new threads.
// Only in plain builds, because sanitizers have allocators and thread functions of their own.
//
// Threads: a guard acts on the thread that made it.
#pragma once

#include <cstdint>
#include <thread>
#include <utility>

namespace engine::oracle {

// While the guard lives, the nth call of operator new from here on throws bad_alloc, and so does each later one.
class FailingAllocations {
 public:
  explicit FailingAllocations(int64_t nth);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
};
// Inside a FailingAllocations: allocations succeed while this guard lives, for code of the program and not of the
// engine.
class GoodAllocations {
 public:
  GoodAllocations();
  ~GoodAllocations();
  GoodAllocations(const GoodAllocations&) = delete;

 private:
  const int64_t before_;
};

// In the whole process, one pthread_create in `one_in` fails with EAGAIN; 0: none does. The program's own threads are
// exempt.
void FailThreads(uint64_t one_in);
namespace detail {
extern thread_local bool t_own_thread;
}
template <class F>
std::thread OwnThread(F&& main) {
  detail::t_own_thread = true;
  std::thread thread(std::forward<F>(main));
  detail::t_own_thread = false;
  return thread;
}

}  // namespace engine::oracle
