// Trace: what ran where and when. Recording observes; it never changes what is run or in which order.
//
// Each thread writes its own events; nothing is shared on the way. Times are steady-clock nanoseconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

struct TraceEvent {
  const char* name;  // of the op (static)
  const char* lane;  // thread name: "cpu/0", "io/1", "caller", or as NameCallerLane said
  int64_t begin_ns;  // since StartTrace
  int64_t end_ns;
  uint64_t op;   // push number, unique within the engine's thread
  bool skipped;  // passed an error on without running
};

// The lane of what the calling thread, which is no worker, runs itself from now on: "caller" otherwise. Stages name those of
// their producers after themselves.
void NameCallerLane(std::string_view lane);

// Chrome trace-event JSON (opens in Perfetto and chrome://tracing): one track a lane.
std::string ChromeTraceJson(const std::vector<TraceEvent>& events);

}  // namespace engine
