// Loopback: communicators without a network. The ranks are in one process, each on a stream of a software device, and meet
// in memory. For tests: results do not depend on who comes first (ranks are reduced in order), ranks that do not fit together
// are told so instead of hanging, and what goes wrong with real ones can be planted.
//
// A device with a virtual clock takes only communicators of one rank: nobody can wait there for another.
//
// Threads: any.
#pragma once

#include "engine/comm.h"

namespace engine {

enum class LoopbackFault : uint8_t {
  kCallFails,   // the library refuses the call
  kAsyncError,  // found out later, while the collective waits for others
  kNeverComes,  // the rank hangs, and so do those who wait for it
};
// The nth push of `rank` (from 1, counted from the communicator's first) of the communicator of this id.
void PlantLoopbackFault(const CommunicatorId& id, int rank, uint64_t nth, LoopbackFault fault);

}  // namespace engine
