#include "suite.h"

#include <cmath>
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

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

const char* NameOf(LimitKind kind) {
  static constexpr const char* kNames[] = {"none", "ratio", "difference", "value", "at least"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

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
}

// What each call costs here, by hand: what every other figure is read against.
void Suite::Calibrate() {
  Hand hand(target, 2, 1);
  Device& device = *hand.device;
  const int n = Count(1000), nodes = 200;
  HandGraph one(hand, [&](auto&) { hand.Spin(0); });
  HandGraph many(hand, [&](auto&) {
    for (int i = 0; i < nodes; ++i) hand.Spin(0);
  });
  const auto launches = [&](DeviceGraphExec exec) {
    for (int i = 0; i < n / 10 + 1; ++i) Must(device.Launch(exec, hand.streams[0]));
  };
  const auto report = [&](const char* name, const char* unit, const std::function<double()>& measure) {
    std::vector<double> values;
    measure();
    for (int round = 0; round < rounds; ++round) {
      values.push_back(measure());
      hand.Synchronize();
    }
    calibration[name] = Median(values);
    std::printf(R"({"type": "calibration", "name": %s, "unit": %s, "values": %s})"
                "\n",
                Json(name).c_str(), Json(unit).c_str(), List(values).c_str());
  };
  const auto each = [&](auto call) {
    return [&, call] {
      return NanosOf(
          [&] {
            for (int i = 0; i < n; ++i) call();
          },
          n);
    };
  };
  report("launch of an empty kernel", "ns", each([&] { hand.Spin(0); }));
  report("launch and synchronize", "ns", each([&] {
           hand.Spin(0);
           hand.Synchronize();
         }));
  report("synchronize an idle stream", "ns", each([&] { hand.Synchronize(); }));
  report("record", "ns", each([&] { Must(device.Record(hand.events[0], hand.streams[0])); }));
  report("wait of a stream for an event", "ns", each([&] { Must(device.Wait(hand.streams[1], hand.events[0])); }));
  report("query", "ns",
         each([&] { Must(device.Query(hand.events[0]).failed() ? DeviceStatus::NotReady() : DeviceStatus()); }));
  report("graph launch, one node", "ns", [&] { return NanosOf([&] { launches(one.exec); }, n / 10 + 1); });
  report("graph node", "ns", [&] {
    const auto timed = [&](DeviceGraphExec exec) {
      return NanosOf(
          [&] {
            launches(exec);
            hand.Synchronize();
          },
          n / 10 + 1);
    };
    return (timed(many.exec) - timed(one.exec)) / (nodes - 1);
  });
  report("gap between two kernels", "ns", [&] {
    target.StartSpans();
    for (int i = 0; i < 50; ++i) hand.Spin(0, Nanos(10'000));
    hand.Synchronize();
    std::vector<Span> spans = target.StopSpans();
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
    std::vector<double> gaps{0};
    for (size_t i = 1; i < spans.size(); ++i) gaps.push_back(static_cast<double>(spans[i].start - spans[i - 1].end));
    return Median(gaps);
  });
}

}  // namespace engine::perf
