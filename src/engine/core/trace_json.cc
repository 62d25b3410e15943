// A trace as Chrome's JSON.

#include <locale>
#include <map>
#include <sstream>
#include <string>

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

}  // namespace

std::string ChromeTraceJson(const std::vector<TraceEvent>& events) {
  std::map<std::string, int> tracks;
  std::ostringstream out;
  out.imbue(std::locale::classic());  // the program's locale may put separators into numbers
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
