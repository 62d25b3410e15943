// Heap: how often this program took memory from the heap, whoever asked, the engine's threads included. What a device does
// in its own calls is left out: the software device is made of ordinary containers.
//
// Threads: any. Linking heap.cc replaces operator new of the whole program.
#pragma once

#include <cstdint>

namespace engine::perf {

uint64_t HeapAllocations() noexcept;

// While it lives, allocations of this thread do not count.
class HeapPause {
 public:
  HeapPause() noexcept;
  ~HeapPause();
  HeapPause(const HeapPause&) = delete;
};

}  // namespace engine::perf
