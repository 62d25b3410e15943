// Loopback: communicators without a network, for tests. The ranks are in one process, each on a stream of a software
// device, and meet in memory. Results do not depend on which rank comes first, because ranks are reduced in order.
// Calls of ranks that do not fit together fail instead of hanging. Faults of real libraries can be planted.
//
// A device with a virtual clock takes only communicators of one rank, because no rank can wait there for another.
//
// Threads: any.
#pragma once

#include "engine/comm.h"

namespace engine {

enum class LoopbackFault : uint8_t {
  kCallFails,   // the library refuses the call
  kAsyncError,  // the library finds an error later, while the collective waits for other ranks
  kNeverComes,  // the rank hangs, and so do the ranks that wait for it
};
// Plants a fault in the nth push of `rank` to the communicator with this id. Its first push is number 1.
void PlantLoopbackFault(const CommunicatorId& id, int rank, uint64_t nth, LoopbackFault fault);

}  // namespace engine
