// StageClock: the clock for a stage's time-outs and pauses. Programs need none; tests set one, so that what happens
// after five minutes happens at once.
//
// Threads:   both methods may be called on any thread.
// Ownership: StageOptions::clock points to the clock, which must outlive the stage.
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
  // Waits on `changed`, whose mutex `lock` holds, until it is notified or Now() reaches `until`. May return earlier.
  virtual void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time until) = 0;

 protected:
  ~StageClock() = default;
};

}  // namespace engine
