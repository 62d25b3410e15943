#include "sched/trace_recorder.h"

#include <algorithm>
#include <locale>
#include <map>
#include <sstream>
#include <string>

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
  {
    MutexLock lock(slots_mu_);
    for (auto& slot : slots_) slot->trace.MoveTo(events);
  }
  std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  for (size_t i = 0; i < events.size(); ++i) events[i].op = i;
  return events;
}

// Where there is no memory an event is left out: tracing changes no result.
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

namespace {

// How many bytes of UTF-8 begin here; 0: none that JSON may hold (RFC 3629: no overlong form, no surrogate).
size_t CharacterAt(const char* text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](size_t i, unsigned char least = 0x80, unsigned char most = 0xbf) {
    return byte(i) >= least && byte(i) <= most;
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef)
    return follows(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && follows(2) ? 3 : 0;
  if (first >= 0xf0 && first <= 0xf4)
    return follows(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && follows(2) && follows(3) ? 4 : 0;
  return 0;
}

void PutString(std::ostream& out, const char* text) {
  out << '"';
  while (*text) {
    const size_t bytes = CharacterAt(text);
    if (bytes == 0) {
      out << "\\ufffd";
    } else if (*text == '"' || *text == '\\') {
      out << '\\' << *text;
    } else if (static_cast<unsigned char>(*text) < 0x20) {
      out << ' ';
    } else {
      out.write(text, static_cast<std::streamsize>(bytes));
    }
    text += bytes ? bytes : 1;
  }
  out << '"';
}

}  // namespace

std::string ChromeTraceJson(const std::vector<TraceEvent>& events) {
  std::map<std::string, int> tracks;
  std::ostringstream out;
  out.imbue(std::locale::classic());  // whatever the program has set: no separators within numbers
  out.precision(3);
  out << std::fixed << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  const char* comma = "";
  for (const TraceEvent& e : events) tracks.emplace(e.lane, 0);
  int next = 1;
  for (auto& [lane, track] : tracks) {
    track = next++;
    out << comma << "\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":" << track << ",\"args\":{\"name\":";
    PutString(out, lane.c_str());
    out << "}}";
    comma = ",";
  }
  for (const TraceEvent& e : events) {
    out << comma << "\n{\"ph\":\"X\",\"name\":";
    PutString(out, *e.name ? e.name : "op");
    out << ",\"pid\":1,\"tid\":" << tracks[e.lane] << ",\"ts\":" << static_cast<double>(e.begin_ns) / 1e3
        << ",\"dur\":" << static_cast<double>(e.end_ns - e.begin_ns) / 1e3
        << ",\"args\":{\"skipped\":" << (e.skipped ? "true" : "false") << "}}";
    comma = ",";
  }
  out << "\n]}\n";
  return out.str();
}

}  // namespace engine
