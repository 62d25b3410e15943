// pthread_create that fails on demand. no_threads.cc replaces it, so whoever includes this has a binary of its own with that file
// in it.
#pragma once

#include <atomic>

namespace engine::test {

extern std::atomic<int> g_threads_allowed;

// So many more threads, until it goes.
struct Allow {
  explicit Allow(int threads) { g_threads_allowed = threads; }
  ~Allow() { g_threads_allowed = 1 << 30; }
};

}  // namespace engine::test
