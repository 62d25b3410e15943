// Watchdog: a thread that reports what is pending when no op has ended for EngineOptions::stall_timeout.
//
// Threads: Start under the lock of the pools; Stop by the thread that ends the engine.
// Errors:  Start throws Error where no thread can be made.
// Fork:    the child has no such thread until its threads are started again.
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
  void Start();  // unless it runs, or the options ask for none
  void Stop();
  void AfterForkInChild() { Renew(*this, core_); }

 private:
  void Main();

  EngineCore& core_;
  std::thread thread_;
  std::atomic<uint32_t> stop_{0};  // futex word
};

}  // namespace engine::detail
