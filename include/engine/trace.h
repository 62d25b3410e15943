// Trace: what ran where and when. Recording only observes: it never changes what runs, or in which order.
//
// Each thread writes events of its own, and shares nothing while it does. Times are nanoseconds of the steady clock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

struct TraceEvent {
  const char* name;  // of the op; static
  const char* lane;  // name of the thread: "cpu/0", "io/1", "caller", or what NameCallerLane was given
  int64_t begin_ns;  // since StartTrace
  int64_t end_ns;
  uint64_t op;   // number of the event in its trace, by begin_ns
  bool skipped;  // the op did not run, and passed an error on
};

// Names the lane of what the calling thread, which is no worker, runs from now on; without a name the lane is "caller".
// Stages name the lanes of their producers after themselves.
void NameCallerLane(std::string_view lane);

// Chrome trace-event JSON, which Perfetto and chrome://tracing open. Each lane is a track.
std::string ChromeTraceJson(const std::vector<TraceEvent>& events);

}  // namespace engine
