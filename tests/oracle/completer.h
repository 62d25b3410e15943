// Completer: a thread that the engine does not know, which ends asynchronous ops, as an I/O library would: out of order, some
// of them late.
//
// Threads: every method on any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "support/random.h"

namespace engine::oracle {

class Completer {
 public:
  explicit Completer(uint64_t seed);
  ~Completer() { Finish(); }
  void Finish();  // after the last job; then the thread is gone
  void Post(std::function<void()> job);
  bool idle() const;

 private:
  void Main();
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false, over_ = false;
  test::Random random_;  // of the thread
  std::thread thread_;
};

}  // namespace engine::oracle
