// ByHand: the rows' work as somebody writes it who has no engine: the backend's own calls, and nothing around them. On CUDA these
// are raw calls of the runtime (cuda_by_hand.cc), none of which goes through Device; on the software device its own calls.
//
// Streams, events and graphs are numbered as they were asked for and made.
//
// Threads:   one at a time.
// Ownership: what it made goes with it; memory is given back by whoever took it. It goes before its target.
// Errors:    throws DeviceError.
#pragma once

#include <functional>
#include <memory>

#include "target.h"

namespace engine::perf {

class ByHand {
 public:
  virtual ~ByHand() = default;
  virtual void Spin(size_t stream, Nanos time = {}, const char* name = "spin") = 0;
  virtual uint64_t Hold(size_t stream) = 0;  // a kernel that ends at Target::Release
  virtual void Synchronize(size_t stream = 0) = 0;
  virtual void Record(size_t event, size_t stream) = 0;
  virtual void Wait(size_t stream, size_t event) = 0;
  virtual bool Reached(size_t event) = 0;

  virtual void* Allocate(size_t bytes, size_t stream) = 0;  // ordered, from a pool that keeps what it got
  virtual void Free(void* memory, size_t stream) = 0;
  virtual void* AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;
  virtual void CopyIn(void* to, const void* from_pinned, size_t bytes, size_t stream) = 0;

  // A graph of what `issue` puts on stream 0, made ready.
  virtual size_t Graph(const std::function<void()>& issue) = 0;
  // What a capture and the update of an executable with what it gave cost: the graph must have the same structure.
  virtual void Update(size_t graph, const std::function<void()>& issue) = 0;
  virtual void Launch(size_t graph, size_t stream = 0) = 0;
  // Of the node that was issued with the time `was`, which no other one of the graph had.
  virtual void SetSpin(size_t graph, Nanos was, Nanos time) = 0;

  virtual size_t FreeMemory() = 0;                // of the device, in bytes; 0: it does not say
  virtual void* Native(size_t stream) const = 0;  // a cudaStream_t on CUDA, else null
};

}  // namespace engine::perf
