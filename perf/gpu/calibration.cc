// What each call costs here, by hand: what every other figure is read against.
#include <cstdio>

#include "suite.h"

namespace engine::perf {

void Suite::Calibrate() {
  const auto hand = target.MakeByHand(2, 1);
  const int n = Count(1000), nodes = 200, few = n / 10 + 1;
  const size_t one = hand->Graph([&] { hand->Spin(0); });
  const size_t many = hand->Graph([&] {
    for (int i = 0; i < nodes; ++i) hand->Spin(0);
  });
  const auto report = [&](const char* name, const std::function<double()>& measure) {
    std::string values;
    measure();
    for (int round = 0; round < rounds; ++round) {
      char text[32];
      std::snprintf(text, sizeof text, "%s%.6g", round ? ", " : "", measure());
      values += text;
      hand->Synchronize();
    }
    std::printf(R"({"type": "calibration", "name": %s, "unit": "ns", "values": [%s]})"
                "\n",
                Json(name).c_str(), values.c_str());
    std::fflush(stdout);
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
  const auto graphs = [&](size_t graph) {
    return NanosOf(
        [&] {
          for (int i = 0; i < few; ++i) hand->Launch(graph);
          hand->Synchronize();
        },
        few);
  };
  report("launch of an empty kernel, on the host", each([&] { hand->Spin(0); }));
  report("empty kernel of a stream, until all have run", [&] {
    return NanosOf(
        [&] {
          for (int i = 0; i < n; ++i) hand->Spin(0);
          hand->Synchronize();
        },
        n);
  });
  report("launch and synchronize", each([&] {
           hand->Spin(0);
           hand->Synchronize();
         }));
  report("synchronize an idle stream", each([&] { hand->Synchronize(); }));
  report("record", each([&] { hand->Record(0, 0); }));
  report("wait of a stream for an event", each([&] { hand->Wait(1, 0); }));
  report("query", each([&] { (void)hand->Reached(0); }));
  report("graph launch, one node, on the host", [&] {
    return NanosOf(
        [&] {
          for (int i = 0; i < few; ++i) hand->Launch(one);
        },
        few);
  });
  report("graph node", [&] { return (graphs(many) - graphs(one)) / (nodes - 1); });
  report("gap between two kernels", [&] {
    target.StartSpans();
    for (int i = 0; i < 50; ++i) hand->Spin(0, Nanos(10'000));
    hand->Synchronize();
    std::vector<Span> spans = target.StopSpans();
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
    std::vector<double> gaps{0};
    for (size_t i = 1; i < spans.size(); ++i) gaps.push_back(static_cast<double>(spans[i].start - spans[i - 1].end));
    return Median(gaps);
  });
}

}  // namespace engine::perf
