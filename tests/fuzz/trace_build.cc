// BuildTrace: any records, as threads that record at any moment might leave them. The events that follow from them name only
// earlier ones, and the trace is written as JSON.
#include "core/trace_build.h"

#include <array>

#include "fuzz.h"
#include "text.h"

namespace {

using namespace engine::detail;

constexpr std::array<const char*, 4> kNames{"a", "b\"", "", "\xff"};

int64_t Time(engine::fuzz::Input& input) {
  const uint8_t first = input.Byte();
  return first < 250 ? first : static_cast<int64_t>(input.Number() >> 2);  // some centuries
}

void Check(const engine::Trace& trace, size_t bodies, size_t pushes) {
  const auto check = [&](bool holds, const char* property) { engine::fuzz::Check(holds, property, ""); };
  check(trace.events.size() == bodies, "an event for each body");
  check(trace.pending <= pushes, "no more pending than were pushed");
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const engine::TraceEvent& event = trace.events[i];
    check(event.op == i, "an event's number is its place");
    check(event.thread && event.name, "an event has a thread and a name");
    check(event.ready_ns <= event.begin_ns, "an event begins when it is ready");
    for (size_t k = 0; k < event.after.size(); ++k) {
      check(event.after[k] < i, "an event comes behind earlier ones");
      check(k == 0 || event.after[k - 1] < event.after[k], "what it comes behind stands there once");
    }
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::array<char, 16> blocks{};
  engine::fuzz::Input input(data, size);
  TraceRecords recorded;
  std::vector<LoggedWait> waits;
  size_t bodies = 0, pushes = 0;
  recorded.left_out = input.Byte();
  while (!input.empty() && recorded.records.size() < 200) {
    const uint8_t what = input.Byte();
    const uint8_t names = input.Byte();
    const uint8_t at = input.Byte();
    const char* const thread = what & 0x40 ? nullptr : kNames[names % 4];
    if (what & 0x80) {
      const std::chrono::steady_clock::time_point begin{std::chrono::nanoseconds(Time(input))};
      waits.push_back({static_cast<engine::WaitCause>(names % 6), kNames[at % 4], thread, at, begin,
                       begin + std::chrono::nanoseconds(input.Byte())});
      continue;
    }
    TraceRecord record{.kind = static_cast<TraceKind>(what % 5),
                       .name = kNames[names / 4 % 4],
                       .thread = thread,
                       .thread_number = at,
                       .line = names};
    record.begin_ns = Time(input);
    record.end_ns = record.begin_ns + input.Byte();
    record.op = &blocks[at % 16];
    if (what & 0x20) record.run = &blocks[at / 16];
    record.first_touch = static_cast<uint32_t>(recorded.touches.size());
    uint32_t seen = 0;  // a record names a Var, or a value, once
    for (int i = names / 16 % 4; i > 0; --i) {
      const uint8_t touch = input.Byte();
      if (std::exchange(seen, seen | 1u << touch % 16) & 1u << touch % 16) continue;
      recorded.touches.push_back({touch & 0x10 ? nullptr : kNames[touch / 32 % 4],
                                  reinterpret_cast<uint64_t>(&blocks[touch % 16]),
                                  static_cast<engine::AccessMode>(touch / 64 % 3)});
      ++record.touches;
    }
    bodies += record.kind == TraceKind::kRan || record.kind == TraceKind::kSkipped;
    pushes += record.kind == TraceKind::kPushed;
    recorded.records.push_back(record);
  }
  const engine::Trace trace = BuildTrace(std::move(recorded), waits, {});
  Check(trace, bodies, pushes);
  const std::string json = engine::ChromeTraceJson(trace);
  engine::fuzz::Check(engine::fuzz::Json::Valid(json), "a trace that is no JSON", json);
  return 0;
}
