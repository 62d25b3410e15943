// StageClock: what a stage measures its time-outs and pauses by. Programs need none: it is there to be turned by hand, so
// that what happens after five minutes can be tried at once.
//
// Threads:   both methods on any thread.
// Ownership: StageOptions::clock points to it; it outlives the stage.
// Order:     Now never goes back.
// Errors:    none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace engine {

class StageClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual Time Now() = 0;
  // Waits on `changed`, whose mutex `lock` holds, until it is notified or Now() is `until`. May return before.
  virtual void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time until) = 0;

 protected:
  ~StageClock() = default;
};

}  // namespace engine
