// Watchdog: a thread that reports the pending ops if none has ended for EngineOptions::stall_timeout.
//
// Threads: Start is called under the lock of Pools, Stop by the thread that ends the engine.
// Errors:  Start throws Error if no thread can be made.
// Fork:    made anew in the child, which starts the thread together with its others.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/fork.h"

namespace engine::detail {

class EngineCore;

class Watchdog {
 public:
  explicit Watchdog(EngineCore& core) : core_(core) {}
  void Start();  // does nothing if the thread runs, or if there is no stall_timeout
  void Stop();
  void AfterForkInChild() { Renew(*this, core_); }

 private:
  void Main();

  EngineCore& core_;
  std::thread thread_;
  std::atomic<uint32_t> stop_{0};  // futex word
};

}  // namespace engine::detail
