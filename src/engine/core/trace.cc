// Tracing: starts and stops it, and adds events to the rings of the threads (trace_recorder.h).
#include <algorithm>
#include <new>

#include "core/core.h"

namespace engine {
namespace detail {
namespace {

thread_local const char* caller_lane = "caller";

int64_t Since(Clock::time_point start, Clock::time_point t) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t - start).count();
}

}  // namespace

void EngineCore::StartTrace() {
  StopTrace();
  trace_start_.store(Clock::now(), std::memory_order_relaxed);
  tracing_.store(true, std::memory_order_release);
}

std::vector<TraceEvent> EngineCore::StopTrace() {
  tracing_.store(false, std::memory_order_relaxed);
  std::vector<TraceEvent> events;
  slots_.ForEach([&](ThreadSlot& slot) { slot.trace.MoveTo(events); });
  std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  for (size_t i = 0; i < events.size(); ++i) events[i].op = i;
  return events;
}

// An event for which there is no memory is left out, so that tracing changes no result.
void EngineCore::TraceRun(const char* name, const char* lane, Clock::time_point begin) noexcept try {
  const auto start = trace_start_.load(std::memory_order_relaxed);
  Slot().trace.Add({name, lane ? Name::Intern(lane).c_str() : caller_lane, Since(start, begin),
                    Since(start, Clock::now()), 0, false});
} catch (const std::bad_alloc&) {
}

void EngineCore::TraceSkip(ThreadSlot& slot, OpRecord* op, Worker* worker) noexcept try {
  const int64_t now = Since(trace_start_.load(std::memory_order_relaxed), Clock::now());
  slot.trace.Add({op->extra.name, worker ? Name::Intern(worker->lane).c_str() : caller_lane, now, now, 0, true});
} catch (const std::bad_alloc&) {
}

}  // namespace detail

void NameCallerLane(std::string_view lane) { detail::caller_lane = Name::Intern(lane).c_str(); }

}  // namespace engine
