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
  // When the guard goes, the thread goes on with engine code alone: if it is no thread of the program, and nothing of the program
  // is below this on its stack. Then, of its allocations from there on, the nth fails, and each later one until `times` have failed.
  void ThenFail(int64_t nth, int64_t times);

 private:
  int64_t before_, times_before_;
};

// In the whole process, one pthread_create in `one_in` fails with EAGAIN; 0: none does. The program's own threads are
// exempt.
void FailThreads(uint64_t one_in);
namespace detail {
extern thread_local bool t_own_thread, t_of_program;
}
template <class F>
std::thread OwnThread(F&& main) {
  detail::t_own_thread = true;
  std::thread thread([main = std::forward<F>(main)]() mutable {
    detail::t_of_program = true;
    main();
  });
  detail::t_own_thread = false;
  return thread;
}

}  // namespace engine::oracle
