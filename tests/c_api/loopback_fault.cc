// Faults of loopback communicators for tests in C: the C API has none, because it is for programs.
#include <cstring>

#include "engine/c_api.h"
#include "engine/testing/loopback.h"

extern "C" void RefuseLoopbackCall(const EngineCommunicatorId* id, int32_t rank, uint64_t nth) {
  engine::CommunicatorId of;
  std::memcpy(of.bytes.data(), id->bytes, of.bytes.size());
  engine::PlantLoopbackFault(of, rank, nth, engine::LoopbackFault::kCallFails);
}
