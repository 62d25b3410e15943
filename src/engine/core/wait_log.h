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
  const char* lane;  // null: the unnamed thread `thread`
  uint32_t thread;
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

// The lane of what the calling thread does now; null: it has no name. And a number for threads without one.
const char* LaneHere() noexcept;
uint32_t ThreadNumber() noexcept;
// The lane of the body that this thread runs, or null. Set while a trace is on.
extern thread_local constinit const char* t_body_lane;

}  // namespace engine::detail
