// How many threads this process has, for tests that none is left; and whether one sleeps.
#pragma once

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace engine::test {

inline int Threads() {
  // With the first thread that a program starts, ThreadSanitizer starts one of its own, which stays.
  static const bool started = (std::thread([] {}).join(), true);
  static_cast<void>(started);
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

// Returns once there are no more than `count`: the kernel lists a thread for a moment after it has been joined. One that
// stays is a test that runs into its time limit.
inline void AwaitThreads(int count) {
  while (Threads() > count) std::this_thread::yield();
}

// Returns once the thread `tid` of this process sleeps; 0: not yet known.
inline void AwaitAsleep(const std::atomic<int>& tid) {
  for (std::string text; text.find(") S ") == text.npos;) {
    std::this_thread::yield();
    std::ifstream stat("/proc/self/task/" + std::to_string(tid) + "/stat");
    std::getline(stat, text);
  }
}

}  // namespace engine::test
