// Completer: a thread that the engine does not know, which ends asynchronous ops as an I/O library would: out of order,
// and some of them late.
//
// Threads: every method may be called on any thread.
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
  void Finish();  // returns when the last job is done and the thread has ended
  void Post(std::function<void()> job);
  bool idle() const;

 private:
  void Main();
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false, over_ = false;
  test::Random random_;  // used by the thread only
  std::thread thread_;
};

}  // namespace engine::oracle
