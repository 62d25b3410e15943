// WaitLog: the waits of the process's threads, while some engine is traced. It belongs to no engine, because stages and the
// interpreter do not.
//
// Threads: any.
// Errors:  none. A wait for which there is no memory is left out.
// Fork:    empty in the child, where no engine is traced.
#pragma once

#include <chrono>
#include <vector>

#include "engine/trace.h"

namespace engine::detail {

struct LoggedWait {
  WaitCause cause;
  const char* name;
  const char* thread;  // its name; null: the unnamed thread `thread_number`
  uint32_t thread_number;
  std::chrono::steady_clock::time_point begin, end;
};

struct WaitLog {
  static constexpr size_t kMostWaits = size_t{1} << 20;
  static void Begin();  // each needs its End
  static std::vector<LoggedWait> End(std::chrono::steady_clock::time_point since);
  static void AfterForkInChild();
};

inline int64_t NanosSince(std::chrono::steady_clock::time_point start, std::chrono::steady_clock::time_point t) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t - start).count();
}

// The name of the calling thread for what it does now; null: it has none. And a number for threads without one.
const char* ThreadName() noexcept;
uint32_t ThreadNumber() noexcept;
// The name under which this thread runs a body, or null. Set while a trace is on.
extern thread_local constinit const char* t_name_in_body;

}  // namespace engine::detail
