// LateLooks: a counter for tests of the engine. It counts those of DeviceStats::host_waits that were noticed only as a
// timer ran out: none, but by chance.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>

namespace engine {

class Engine;

uint64_t LateLooks(const Engine& engine);

}  // namespace engine
