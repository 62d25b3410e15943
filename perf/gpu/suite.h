// Suite: cases measured beside the same work written by hand, in turns, in one process. Every figure of every round is
// printed as a line of JSON; suite.py judges.
//
// A case returns figures of one round, in the order of its metrics, less being better unless the limit is kAtLeast.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "target.h"

namespace engine::perf {

enum class LimitKind {
  kNone,        // told only
  kRatio,       // ours / peer at most
  kDifference,  // ours - peer at most
  kValue,       // ours at most
  kAtLeast,     // ours at least
};
struct Limit {
  LimitKind kind = LimitKind::kNone;
  double value = 0;
};
struct Metric {
  std::string name;
  std::string unit;
  Limit limit;
};
using Figures = std::vector<double>;
struct Case {
  int row;
  std::string name;
  std::string peer_name;  // empty: none
  std::vector<Metric> metrics;
  std::function<Figures()> ours;
  std::function<Figures()> peer;
};

struct Suite {
  Target& target;
  int rounds;
  bool quick;
  std::vector<int> only;                      // rows; empty: all
  std::map<std::string, double> calibration;  // medians, ns

  bool Wants(int row) const { return only.empty() || std::find(only.begin(), only.end(), row) != only.end(); }
  int Count(int full) const { return quick ? std::max(1, full / 5) : full; }
  void Calibrate();
  void Measure(const Case& measured);
  void Absent(int row, const std::string& why);
  void Timeline(int row, const std::string& name, const std::function<void()>& run);
};

// The rows of the table.
void SubmitRows(Suite& suite);      // 1 to 3
void OverlapRows(Suite& suite);     // 6, 7
void HostRows(Suite& suite);        // 8, 9
void GraphRows(Suite& suite);       // 10
void MemoryRows(Suite& suite);      // 11
void TrainingRows(Suite& suite);    // 12
void CollectiveRows(Suite& suite);  // 13

std::string Json(const std::string& text);  // quoted

// Streams and events by hand.
class Hand {
 public:
  Hand(Target& on, int n_streams, int n_events = 0) : target(on), device(on.device()) {
    for (int i = 0; i < n_streams; ++i) Must(device->CreateStream(0, &streams.emplace_back()));
    for (int i = 0; i < n_events; ++i) Must(device->CreateEvent(&events.emplace_back()));
  }
  ~Hand() {
    for (const Event e : events) (void)device->DestroyEvent(e);
    for (const Stream s : streams) (void)device->DestroyStream(s);
  }
  Hand(const Hand&) = delete;
  void Spin(size_t stream, Nanos time = {}, const char* name = "spin") {
    Must(target.Spin(streams[stream], time, name));
  }
  void Synchronize(size_t stream = 0) { Must(device->Synchronize(streams[stream])); }

  Target& target;
  std::shared_ptr<Device> device;
  std::vector<Stream> streams;
  std::vector<Event> events;
};

// A graph by hand: what `issue` puts on stream 0, made ready.
class HandGraph {
 public:
  HandGraph(Hand& hand, const std::function<void(std::vector<DeviceGraphNode>&)>& issue) : device_(hand.device) {
    Must(device_->BeginCapture(hand.streams[0]));
    issue(nodes);
    Must(device_->EndCapture(hand.streams[0], &graph_));
    Must(device_->Instantiate(graph_, &exec, nullptr));
  }
  ~HandGraph() {
    (void)device_->DestroyGraphExec(exec);
    (void)device_->DestroyGraph(graph_);
  }
  HandGraph(const HandGraph&) = delete;
  DeviceGraphExec exec;
  std::vector<DeviceGraphNode> nodes;

 private:
  std::shared_ptr<Device> device_;
  DeviceGraph graph_;
};

using SteadyClock = std::chrono::steady_clock;
// Nanoseconds that `run` takes, by `n`.
template <class F>
double NanosOf(F&& run, double n = 1) {
  const auto begin = SteadyClock::now();
  run();
  return std::chrono::duration<double, std::nano>(SteadyClock::now() - begin).count() / n;
}
inline void SpinFor(Nanos time) {
  for (const auto end = SteadyClock::now() + time; SteadyClock::now() < end;) {
  }
}

}  // namespace engine::perf
