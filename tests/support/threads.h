// How many threads this process has, for tests that none is left.
#pragma once

#include <filesystem>
#include <iterator>
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

}  // namespace engine::test
