// Trace: what ran where and when. Recording observes; it never changes what is run or in which order.
//
// Each thread writes its own events; nothing is shared on the way. Times are steady-clock nanoseconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace engine {

struct TraceEvent {
  const char* name;  // of the op (static)
  const char* lane;  // thread name: "cpu/0", "io/1", "caller"
  int64_t begin_ns;  // since StartTrace
  int64_t end_ns;
  uint64_t op;   // push number, unique within the engine's thread
  bool skipped;  // passed an error on without running
};

// Chrome trace-event JSON (opens in Perfetto and chrome://tracing): one track a lane.
std::string ChromeTraceJson(const std::vector<TraceEvent>& events);

}  // namespace engine
