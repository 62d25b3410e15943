#include "suite.h"

#include <cstdio>

namespace engine::perf {
namespace {

std::string List(const std::vector<double>& values) {
  std::string out = "[";
  for (const double v : values) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", v);
    out += (out.size() > 1 ? ", " : "") + std::string(text);
  }
  return out + "]";
}

const char* NameOf(LimitKind kind) {
  static constexpr const char* kNames[] = {"none", "ratio", "difference", "value", "at least"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string Json(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

void Suite::Measure(const Case& measured) {
  std::vector<std::vector<double>> ours(measured.metrics.size()), peer(ours);
  const auto add = [](std::vector<std::vector<double>>& to, const Figures& figures) {
    for (size_t i = 0; i < to.size(); ++i) to[i].push_back(figures.at(i));
  };
  measured.ours();  // warm: modules, pools, graphs
  if (measured.peer) measured.peer();
  for (int round = 0; round < rounds; ++round) {
    if (round % 2 == 0) add(ours, measured.ours());
    if (measured.peer) add(peer, measured.peer());
    if (round % 2 == 1) add(ours, measured.ours());
  }
  for (size_t i = 0; i < measured.metrics.size(); ++i) {
    const Metric& m = measured.metrics[i];
    std::printf(
        R"({"type": "row", "row": %d, "case": %s, "metric": %s, "unit": %s, "peer_name": %s, "limit": {"kind": "%s", "value": %.6g}, "ours": %s, "peer": %s})"
        "\n",
        measured.row, Json(measured.name).c_str(), Json(m.name).c_str(), Json(m.unit).c_str(),
        measured.peer ? Json(measured.peer_name).c_str() : "null", NameOf(m.limit.kind), m.limit.value,
        List(ours[i]).c_str(), measured.peer ? List(peer[i]).c_str() : "null");
  }
  std::fflush(stdout);
}

void Suite::Absent(int row, const std::string& why) {
  std::printf(R"({"type": "absent", "row": %d, "why": %s})"
              "\n",
              row, Json(why).c_str());
  std::fflush(stdout);
}

void Suite::Timeline(int row, const std::string& name, const std::function<void()>& run) {
  target.StartSpans();
  run();
  const std::vector<Span> spans = target.StopSpans();
  int64_t origin = INT64_MAX;
  for (const Span& s : spans) origin = std::min(origin, s.start);
  std::printf(R"({"type": "timeline", "row": %d, "name": %s, "spans": [)", row, Json(name).c_str());
  for (size_t i = 0; i < spans.size(); ++i)
    std::printf("%s[%u, %s, %lld, %lld]", i ? ", " : "", spans[i].lane, Json(spans[i].name).c_str(),
                static_cast<long long>(spans[i].start - origin), static_cast<long long>(spans[i].end - origin));
  std::printf("]}\n");
  std::fflush(stdout);
}

}  // namespace engine::perf
