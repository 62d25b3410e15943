// The counters of a replay, when a run goes from one thread to two, and back to one in the next run of its frame.
//
// The run's own thread makes some of the arrivals at a task alone, without read-modify-writes; then it hands the rest of its
// tasks, which are ready, to another one, and both arrive until the task is ready.
#include <gtest/gtest.h>

#include "checked_atomic.h"
#include "graph/replay_counter.h"
#include "report.h"

namespace checker {
namespace {

enum class ReplayFault {
  kNone,
  kPlainAfterShare,  // the run's thread does not count atomically once it has shared
  kPlainHelper,      // nor the thread that was given a share
  kHelperTooEarly,   // the share is handed out before the arrivals made alone are
};

struct ReplayScenario {
  uint32_t alone = 1;   // arrivals before the share
  uint32_t after = 1;   // and by the same thread after it
  uint32_t helper = 1;  // by the other one
  uint8_t runs = 2;     // of one frame
  ReplayFault fault = ReplayFault::kNone;
};

class ReplayModel final : public Program {
 public:
  explicit ReplayModel(const ReplayScenario& scenario) : scenario_(scenario) {}

  std::span<std::byte> memory() override { return std::as_writable_bytes(std::span(&s_, 1)); }
  void Begin() override {
    s_.counter.poke(arrivals());
    explorer().Start(explorer().AddThread("run", [this] { RunMain(); }));
    explorer().Start(explorer().AddThread("helper", [this] { HelperMain(); }));
  }
  void BeforeAccess(const void*, AccessKind, uint64_t) override { explorer().Point(); }
  const char* AtRest() override {
    if (s_.ready != scenario_.runs) return "a task never became ready";
    return s_.counter.peek() == arrivals() ? nullptr : "the counter was not set back";
  }
  std::string NameOf(const Event& event) const override { return event.remark ? event.remark : "counter"; }

 private:
  static Explorer& explorer() { return Explorer::current(); }
  uint32_t arrivals() const { return scenario_.alone + scenario_.after + scenario_.helper; }

  void RunMain() {
    for (uint8_t run = 0; run < scenario_.runs; ++run) {
      const bool early = scenario_.fault == ReplayFault::kHelperTooEarly;
      if (early) s_.shared = run + 1;
      for (uint32_t i = 0; i < scenario_.alone; ++i) Arrive(false);
      if (!early) s_.shared = run + 1;
      for (uint32_t i = 0; i < scenario_.after; ++i) Arrive(scenario_.fault != ReplayFault::kPlainAfterShare);
      explorer().PauseWhile<uint8_t>(&s_.ended, run);  // the frame's next run comes after this one's end
    }
  }
  void HelperMain() {
    for (uint8_t run = 0; run < scenario_.runs; ++run) {
      explorer().PauseWhile<uint8_t>(&s_.shared, run);
      for (uint32_t i = 0; i < scenario_.helper; ++i) Arrive(scenario_.fault != ReplayFault::kPlainHelper);
    }
  }
  void Arrive(bool others) {
    ++s_.arrived;  // from here on it may count; private to the step that follows
    if (!engine::detail::CountDown(s_.counter, arrivals(), others)) return;
    explorer().Remark("the task is ready");
    if (s_.arrived != arrivals()) explorer().Fail("a task became ready before its last predecessor ended");
    s_.arrived = 0;
    ++s_.ready;
    ++s_.ended;
  }

  struct State {
    CheckedAtomic<uint32_t> counter;
    uint32_t arrived = 0;
    uint8_t shared = 0;  // runs whose share was handed out
    uint8_t ready = 0;   // times that the task was
    uint8_t ended = 0;
    uint8_t padding = 0;
  };
  const ReplayScenario scenario_;
  State s_{};
};

Outcome Explore(const ReplayScenario& scenario) {
  ReplayModel model(scenario);
  Explorer explorer(model);
  return explorer.Run();
}

void ExpectCaught(ReplayScenario scenario, ReplayFault fault) {
  ReportHolds(Explore(scenario));
  scenario.fault = fault;
  ReportCaught(Explore(scenario), "a task");
}

TEST(ReplayCounters, GoFromOneThreadToTwo) {
  ReportHolds(Explore({.alone = 1, .after = 1, .helper = 1}));
  ReportHolds(Explore({.alone = 2, .after = 1, .helper = 2}));
  ReportHolds(Explore({.alone = 0, .after = 2, .helper = 2, .runs = 3}));
  ReportHolds(Explore({.alone = 2, .after = 0, .helper = 1}));
}
TEST(ReplayCounters, MutantPlainAfterShareIsCaught) { ExpectCaught({.after = 2}, ReplayFault::kPlainAfterShare); }
TEST(ReplayCounters, MutantPlainHelperIsCaught) { ExpectCaught({.helper = 2}, ReplayFault::kPlainHelper); }
TEST(ReplayCounters, MutantHelperTooEarlyIsCaught) {
  ExpectCaught({.alone = 2, .helper = 2}, ReplayFault::kHelperTooEarly);
}

}  // namespace
}  // namespace checker
