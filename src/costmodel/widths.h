// Widths: which nodes that may use several threads are to use them. Pure.
//
// A node with several threads ends sooner, but takes threads from other nodes. That pays where the others wait for the
// node anyway. A simulation on a virtual clock decides.
#pragma once

#include "dag.h"

namespace engine::costmodel {

struct Width {
  uint32_t threads = 1;
  double nanos = 0;  // what the node takes with so many threads; 0: not known
};

// Returns the threads of each node, 1 or what `wide` says: those with which the list schedule by critical path is the
// shortest that was found. `cost`: with one thread. Tries the kMostTried longest nodes, one after the other.
inline constexpr size_t kMostTried = 32;
std::vector<uint8_t> ChooseWidths(const Dag& dag, std::span<const double> cost, std::span<const Width> wide,
                                  int workers);

// The makespan of that schedule: a worker that ends a node helps a node that has begun and has room, and else takes the
// ready node of the highest rank. With n of its `threads` a node goes on at n times a thread's speed.
double SimulateWide(const Dag& dag, std::span<const double> cost, std::span<const Width> wide,
                    std::span<const uint8_t> threads, int workers);

}  // namespace engine::costmodel
