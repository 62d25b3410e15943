// Watchdog: ends the process, saying what ran, when something hangs. The only clock of these tests.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace engine::test {

class Watchdog {
 public:
  Watchdog(std::string what, int seconds)
      : thread_([this, what = std::move(what), seconds] {
          std::unique_lock lock(mu_);
          if (changed_.wait_for(lock, std::chrono::seconds(seconds), [&] { return over_; })) return;
          fprintf(stderr, "no end after %d s: %s\n", seconds, what.c_str());
          std::abort();
        }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mu_);
      over_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace engine::test
