// Gate: a latch that a test opens. What makes a test wait for an event instead of for a time.
//
// Threads: all methods on any thread. A closed gate blocks Wait; once open it stays open.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace engine::test {

class Gate {
 public:
  void Open() {
    std::lock_guard lock(mu_);
    open_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return open_; });
  }
  // For what must not happen: as long as it is worth waiting for that. Whether it is open.
  bool WaitFor(std::chrono::milliseconds most) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, most, [&] { return open_; });
  }
  bool open() {
    std::lock_guard lock(mu_);
    return open_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool open_ = false;
};

// Counter: a gate that opens when it was told often enough.
class Counter {
 public:
  void Add(int n = 1) {
    std::lock_guard lock(mu_);
    count_ += n;
    changed_.notify_all();
  }
  void WaitFor(int n) {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return count_ >= n; });
  }
  int count() {
    std::lock_guard lock(mu_);
    return count_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Slot: hands one value from one thread to another.
template <class T>
class Slot {
 public:
  void Put(T value) {
    std::lock_guard lock(mu_);
    value_ = std::move(value);
    full_ = true;
    changed_.notify_all();
  }
  T Take() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return full_; });
    full_ = false;
    return std::move(value_);
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  T value_{};
  bool full_ = false;
};

}  // namespace engine::test
