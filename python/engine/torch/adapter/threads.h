// Threads: how many threads torch's kernels use, for each thread that runs nodes, and which node that is.
//
// In a run with workers every thread of it uses one: OpenMP makes a team for each thread that asks for one, and teams
// fight for the processors. The caller gets back what it had when the run has ended.
//
// From inside of a node, idle threads of its run can be given a share of a loop (`parallel_for`).
//
// Each thread also gets its state in the Python interpreter from the engine, before its first node.
#pragma once

#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

extern "C" {
void omp_set_num_threads(int);
int omp_get_max_threads(void);
int MKL_Set_Num_Threads_Local(int) __attribute__((weak));  // builds of torch without MKL have none
}

namespace engine_torch {

inline int SetMklThreads(int threads) { return MKL_Set_Num_Threads_Local ? MKL_Set_Num_Threads_Local(threads) : 0; }

// Whether denormal numbers are flushed to zero, as bits of the processor's own register.
inline unsigned Denormals() {
#if defined(__x86_64__)
  return _mm_getcsr() & 0x8040u;
#else
  return 0;
#endif
}
inline void SetDenormals([[maybe_unused]] unsigned bits) {
#if defined(__x86_64__)
  _mm_setcsr((_mm_getcsr() & ~0x8040u) | bits);
#endif
}

inline thread_local bool is_caller = false;  // this thread is inside Run, which has set what it needs
// How many nodes this thread is inside of: a Python kernel may run another program.
inline thread_local int nodes_inside = 0;
inline thread_local void* node_context = nullptr;  // the engine's, of the innermost; null where no engine runs the node

// The engine's function that shares a loop of a node with idle threads of its run (`parallel_for` of EngineTable). A piece must not throw.
using ParallelFor = void(void* context, size_t n, size_t grain, void (*piece)(void* of, size_t begin, size_t end),
                         void* of);
inline ParallelFor* parallel_for = nullptr;

// The engine's function that gives the calling thread its state in the interpreter (`know_thread` of EngineTable).
// PyGILState_Ensure would make one as well, and so would torch when a tensor dies that Python has seen; but CPython 3.11
// makes it under a lock that a fork's child takes, and only the engine's forks wait for that.
inline void (*know_thread)() = nullptr;

// OneAtATime: while it lives, no other thread of this process has one. A fork's child has none of the parent's.
class OneAtATime {
 public:
  OneAtATime() {
    const pid_t here = getpid();
    // acquire: what the last one has done. Partner: the release below.
    for (pid_t seen = holder_.load(std::memory_order_relaxed);
         seen == here || !holder_.compare_exchange_weak(seen, here, std::memory_order_acquire);
         seen = holder_.load(std::memory_order_relaxed))
      if (seen == here) sched_yield();
  }
  ~OneAtATime() { holder_.store(0, std::memory_order_release); }
  OneAtATime(const OneAtATime&) = delete;

 private:
  static inline std::atomic<pid_t> holder_{0};
};

// The thread asks torch for its number of threads once, because MKL ignores what was set before. In a fork's child the first
// thread to ask makes torch's own threads anew: if two did at once, torch would fail.
inline void AskTorch() {
  thread_local bool asked = false;
  if (asked) return;
  const OneAtATime alone;
  at::get_num_threads();
  asked = true;
}

// Before each node. A thread's first one prepares the thread.
inline void EnterNode(unsigned denormals) {
  thread_local bool prepared = false;
  if (is_caller) return;
  if (!prepared) {
    know_thread();
    AskTorch();
    omp_set_num_threads(1);
    SetMklThreads(1);
    prepared = true;
  }
  if (Denormals() != denormals) SetDenormals(denormals);
}

// Inside: while it lives, this thread is inside one node more.
class Inside {
 public:
  explicit Inside(void* context) : outer_(std::exchange(node_context, context)) { ++nodes_inside; }
  ~Inside() { --nodes_inside, node_context = outer_; }
  bool nested() const { return nodes_inside > 1; }

 private:
  void* const outer_;
};

// Caller: while it lives, this thread is the caller of a run, and its kernels use `threads` threads; 0: as many as before.
class Caller {
 public:
  explicit Caller(int threads) : was_caller_(is_caller) {
    if (threads != 0) AskTorch();
    is_caller = true;
    if (threads == 0) return;
    before_ = omp_get_max_threads();
    omp_set_num_threads(threads);
    mkl_before_ = SetMklThreads(threads);
  }
  ~Caller() {
    is_caller = was_caller_;
    if (before_ == 0) return;
    omp_set_num_threads(before_);
    SetMklThreads(mkl_before_);
  }

 private:
  const bool was_caller_;
  int before_ = 0, mkl_before_ = 0;
};

}  // namespace engine_torch
