// Faults: allocations and new threads that the system refuses, on the calling thread, while a guard lives. Only in plain
// builds: sanitizers bring allocators and thread functions of their own.
//
// Threads: guards are of the thread that made them.
#pragma once

#include <cstdint>
#include <thread>
#include <utility>

namespace engine::oracle {

// The nth call of operator new from here on throws bad_alloc, and so does each later one while the guard lives.
class FailingAllocations {
 public:
  explicit FailingAllocations(int64_t nth);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
};
// Inside the guard above: for code that is the program's and not the engine's.
class GoodAllocations {
 public:
  GoodAllocations();
  ~GoodAllocations();
  GoodAllocations(const GoodAllocations&) = delete;

 private:
  const int64_t before_;
};

// One pthread_create in so many fails with EAGAIN, in the whole process; 0: none. The program's own threads are exempt.
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
