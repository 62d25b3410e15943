// A trace as Chrome's JSON.

#include <algorithm>
#include <locale>
#include <map>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/trace.h"

namespace engine {
namespace {

// The length of the UTF-8 character that begins here; 0: it is not valid (RFC 3629: no overlong form, no surrogate).
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

void PutLine(std::ostream& out, const char* phase, int track) {
  out << ",\n{\"ph\":\"" << phase << "\",\"pid\":1,\"tid\":" << track;
}

// Microseconds with three digits: all that a nanosecond has.
struct Micros {
  int64_t nanos;
  friend std::ostream& operator<<(std::ostream& out, Micros at) { return out << static_cast<double>(at.nanos) / 1e3; }
};

// Tracks of the file. Slices of one track must nest: what overlaps another slice of its thread in part (a worker's role
// has been lent by an op that waits) goes to one more track of the thread.
class Tracks {
 public:
  // Slices come by begin; of two that begin together the longer comes first.
  int Of(const char* thread, int64_t begin, int64_t end) {
    std::vector<Track>& tracks = threads_[thread];
    for (Track& track : tracks)
      if (track.Takes(begin, end)) return track.number;
    tracks.push_back({++last_, {end}});
    return last_;
  }
  void Put(std::ostream& out) const {
    int place = 0;
    for (const auto& [thread, tracks] : threads_) {
      for (size_t i = 0; i < tracks.size(); ++i) {
        PutLine(out, "M", tracks[i].number);
        out << ",\"name\":\"thread_name\",\"args\":{\"name\":";
        PutString(out, (thread + (i ? " +" + std::to_string(i) : "")).c_str());
        out << "}}";
        PutLine(out, "M", tracks[i].number);
        out << ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":" << place++ << "}}";
      }
    }
  }

 private:
  struct Track {
    int number;
    std::vector<int64_t> open;  // ends of the slices that have not ended, the innermost last
    bool Takes(int64_t begin, int64_t end) {
      while (!open.empty() && open.back() <= begin) open.pop_back();
      if (!open.empty() && end > open.back()) return false;
      open.push_back(end);
      return true;
    }
  };
  int last_ = 0;
  std::map<std::string, std::vector<Track>> threads_;
};

void PutList(std::ostream& out, const char* key, const std::vector<uint64_t>& numbers) {
  out << ",\"" << key << "\":[";
  for (size_t i = 0; i < numbers.size(); ++i) out << (i ? "," : "") << numbers[i];
  out << "]";
}

// What Perfetto shows of a slice, and what engine.explain reads. Times as in `ts`.
void PutArguments(std::ostream& out, const TraceEvent& e) {
  out << ",\"args\":{\"op\":" << e.op << ",\"skipped\":" << (e.skipped ? "true" : "false");
  if (e.pushed_ns >= 0) {
    out << ",\"pushed\":" << Micros{e.pushed_ns} << ",\"pusher\":";
    PutString(out, e.pusher);
  }
  out << ",\"ready\":" << Micros{e.ready_ns};
  if (e.settled_ns >= 0) out << ",\"settled\":" << Micros{e.settled_ns};
  if (e.plan) {
    out << ",\"run\":" << e.run << ",\"plan\":";
    PutString(out, e.plan);
  }
  if (*e.file) {
    out << ",\"site\":";
    PutString(out, (std::string(e.file) + ":" + std::to_string(e.line)).c_str());
  }
  PutList(out, "after", e.after);
  out << ",\"uses\":[";
  for (size_t i = 0; i < e.uses.size(); ++i) {
    out << (i ? "," : "") << "[\"" << AccessModeName(e.uses[i].mode) << "\"," << e.uses[i].var << ",";
    PutString(out, e.uses[i].name);
    out << "]";
  }
  out << "]}";
}

}  // namespace

std::string ChromeTraceJson(const Trace& trace) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // the program's locale may put separators into numbers
  out.precision(3);
  out << std::fixed << "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"writer\":\"engine\",\"format\":3,\"length\":"
      << Micros{trace.length_ns} << ",\"pending\":" << trace.pending << ",\"left_out\":" << trace.left_out
      << ",\"threads\":[";
  for (size_t i = 0; i < trace.threads.size(); ++i) {
    out << (i ? "," : "");
    PutString(out, trace.threads[i].c_str());
  }
  out << "]},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":"
         "\"engine\"}}";

  struct Slice {
    int64_t begin, end;
    const TraceEvent* event;  // or:
    const TraceWait* wait;
  };
  std::vector<Slice> slices;
  for (const TraceEvent& e : trace.events) slices.push_back({e.begin_ns, e.end_ns, &e, nullptr});
  for (const TraceWait& w : trace.waits) slices.push_back({w.begin_ns, w.end_ns, nullptr, &w});
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  Tracks tracks;
  std::unordered_map<uint64_t, std::pair<int, int64_t>> where;  // by op: its track and begin
  uint64_t flow = 0;
  for (const Slice& slice : slices) {
    const int track = tracks.Of(slice.event ? slice.event->thread : slice.wait->thread, slice.begin, slice.end);
    PutLine(out, "X", track);
    out << ",\"ts\":" << Micros{slice.begin} << ",\"dur\":" << Micros{slice.end - slice.begin} << ",\"name\":";
    if (!slice.event) {
      PutString(out, (std::string("waits: ") + WaitCauseName(slice.wait->cause)).c_str());
      out << ",\"cat\":\"wait\",\"args\":{\"cause\":\"" << WaitCauseName(slice.wait->cause) << "\",\"for\":";
      PutString(out, slice.wait->name);
      out << "}}";
      continue;
    }
    const TraceEvent& e = *slice.event;
    PutString(out, *e.name ? e.name : "op");
    out << ",\"cat\":\"op\"";
    PutArguments(out, e);
    out << "}";
    where[e.op] = {track, e.begin_ns};
    for (uint64_t before : e.after) {
      const auto from = where.find(before);
      if (from == where.end()) continue;
      PutLine(out, "s", from->second.first);
      out << ",\"ts\":" << Micros{from->second.second} << ",\"id\":" << ++flow
          << ",\"name\":\"after\",\"cat\":\"dependency\"}";
      PutLine(out, "f", track);
      out << ",\"ts\":" << Micros{e.begin_ns} << ",\"id\":" << flow
          << ",\"name\":\"after\",\"cat\":\"dependency\",\"bp\":\"e\"}";
    }
  }
  tracks.Put(out);
  out << "\n]}\n";
  return out.str();
}

}  // namespace engine
