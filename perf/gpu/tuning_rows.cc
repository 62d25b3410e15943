// Rows 18, 19 and 21: what src/engine/base/tuning.h takes for granted about hardware. Told, not judged: whoever reads them sets the
// constants.
#include "rig.h"
#include "suite.h"

namespace engine::perf {
namespace {

// kGraphTrials: "a capture costs about what issuing does". A bulk of n kernels issued, against captured and its executable
// updated and launched.
void CaptureAgainstIssue(Suite& suite, int n) {
  const auto hand = suite.target.MakeByHand(1);
  const auto issue = [&] {
    for (int i = 0; i < n; ++i) hand->Spin(0);
  };
  const size_t graph = hand->Graph(issue);
  const int repeats = suite.Count(100);
  const auto timed = [&](auto run) {
    return Figures{NanosOf(
        [&] {
          for (int i = 0; i < repeats; ++i) run();
          hand->Synchronize();
        },
        repeats)};
  };
  suite.Measure({18,
                 std::to_string(n) + " kernels captured, an executable updated and launched",
                 "issued",
                 {{"time a bulk", "ns", {}}},
                 [&] {
                   return timed([&] {
                     hand->Update(graph, issue);
                     hand->Launch(graph);
                   });
                 },
                 [&] { return timed(issue); }});
}

// kAwaitNap and kDozeShortest: what a look at an event costs that has not been reached, while a kernel runs, and how late a nap
// of 20 us makes the one who looks.
void LooksAndNaps(Suite& suite) {
  const auto hand = suite.target.MakeByHand(1, 1);
  const int n = suite.Count(200);
  const auto held = [&](auto look) {
    const uint64_t hold = hand->Hold(0);
    hand->Record(0, 0);
    const double took = look();
    suite.target.Release(hold);
    hand->Synchronize();
    return took;
  };
  suite.Measure({19,
                 "a look at an event that has not been reached",
                 "",
                 {{"time a look", "ns", {}}},
                 [&] {
                   return Figures{held([&] {
                     return NanosOf(
                         [&] {
                           for (int i = 0; i < n; ++i) (void)hand->Reached(0);
                         },
                         n);
                   })};
                 },
                 {}});
  // A kernel of 200 us: from its launch until the one who waits knows.
  constexpr Nanos kKernel{200'000};
  const auto known = [&](auto between) {
    std::vector<double> took;
    for (int i = 0; i < n / 4 + 1; ++i)
      took.push_back(NanosOf([&] {
        hand->Spin(0, kKernel);
        hand->Record(0, 0);
        while (!hand->Reached(0)) between();
      }));
    return Figures{Median(took)};
  };
  suite.Measure({19,
                 "a kernel of 200 us, awaited by looks 20 us apart",
                 "by looks without a pause",
                 {{"time until it is known", "ns", {}}},
                 [&] { return known([] { std::this_thread::sleep_for(std::chrono::microseconds(20)); }); },
                 [&] { return known([] {}); }});
}

// kGraphNodeBytes: what a node of an executable takes on the device, which has it from the first launch on.
void BytesOfANode(Suite& suite) {
  const auto hand = suite.target.MakeByHand(1);
  if (hand->FreeMemory() == 0) return suite.Absent(21, "this device does not say how much memory is free");
  const int graphs = suite.Count(50);
  constexpr int kNodes = 1000;
  const size_t before = hand->FreeMemory();
  for (int i = 0; i < graphs; ++i)
    hand->Launch(hand->Graph([&] {
      for (int k = 0; k < kNodes; ++k) hand->Spin(0);
    }));
  hand->Synchronize();
  const double bytes = static_cast<double>(before) - static_cast<double>(hand->FreeMemory());
  suite.Measure({21,
                 std::to_string(graphs) + " graphs of 1,000 empty kernels, launched once",
                 "",
                 {{"memory of a node", "bytes", {}}},
                 [&] { return Figures{bytes / graphs / kNodes}; },
                 {}});
}

}  // namespace

void TuningRows(Suite& suite) {
  if (suite.Wants(18))
    for (const int n : {15, 100}) CaptureAgainstIssue(suite, n);
  if (suite.Wants(19)) LooksAndNaps(suite);
  if (suite.Wants(21)) BytesOfANode(suite);
}

}  // namespace engine::perf
