// operator new that fails, on chosen threads or at random, or that stops there. no_memory.cc replaces it, so whoever includes this has a binary of its
// own with that file in it.
#pragma once

#include <atomic>
#include <cstdint>

namespace engine::test {

extern thread_local constinit bool t_fails;
extern thread_local constinit int t_until_failure;  // so many more succeed on this thread; -1: all
extern thread_local constinit bool t_only_one;      // fails then
extern thread_local constinit bool t_exempt;        // from failures at random
extern std::atomic<uint32_t> g_one_in;              // fails at random; 0: none does
extern std::atomic<void (*)()> g_at_each;           // is called first; null: nothing is
extern uint64_t g_seed;

struct NoMemory {
  NoMemory() { t_fails = true; }
  ~NoMemory() { t_fails = false; }
};

}  // namespace engine::test
