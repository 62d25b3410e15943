// SmartStage between staged and whole steps: whenever it changes from one to the other, each item comes once and in order.
#include <deque>

#include "support/seed.h"
#include "support/threads.h"
#include "training_program.h"

namespace engine::test {
namespace {

using namespace std::chrono_literals;

// Whether each step is staged: runs of steps of random lengths.
std::function<bool()> RandomSchedule(Random random) {
  return [random, staged = false, left = uint64_t{0}]() mutable {
    if (left-- == 0) staged = !staged, left = random.Below(4) * random.Below(8);
    return staged;
  };
}

TEST(SmartSwitchTest, ItemsComeOnceAndInOrderThroughAllSwitches) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed());
  int switches = 0;  // how many a program makes depends on how far ahead its stages come
  for (int i = 0; i < 20; ++i) {
    TrainingProgram p;
    SmartStageOptions options = AtOnce({.capacity = 1 + random.Below(6),
                                        .num_threads = 1 + static_cast<int>(random.Below(3)),
                                        .autotune = random.OneIn(3)},
                                       1 + static_cast<int>(random.Below(2)));
    options.schedule = RandomSchedule(Random(random.Next()));
    SmartStage steps(p.eng, p.graph, p.Rows(300), options);
    const size_t depth = random.Below(8);  // steps in flight
    std::vector<std::pair<int, int>> seen;
    std::deque<engine::Run> running;
    const auto take = [&] {
      const int sum = running.front().Take<int>(0);
      seen.emplace_back(sum, running.front().Take<int>(1));
      running.pop_front();
    };
    for (bool on = false;; on = steps.stats().on) {
      Value given[] = {2};
      engine::Run run = steps.Next(given);
      if (!run) break;
      switches += steps.stats().on != on;
      running.push_back(std::move(run));
      if (running.size() > depth) take();
      EXPECT_EQ(steps.stats().position, seen.size() + running.size());
    }
    while (!running.empty()) take();
    EXPECT_EQ(seen, TrainingProgram::Expected(300));
    EXPECT_EQ(steps.stats().read, 300u);
  }
  EXPECT_GT(switches, 20 * 5);
}

// The guard may want to stage the next step when a wait for the source was given up: its item is on its way all the same.
TEST(SmartSwitchTest, AnItemThatWasAskedForInVainIsTheNext) {
  TrainingProgram p;
  Gate gate;
  SmartStageOptions options = AtOnce({.capacity = 2, .take_timeout = 1ms});
  bool staged = false;
  options.schedule = [&] { return staged; };
  SmartStage steps(p.eng, p.graph, {SourceOf<int>("rows", p.row, [&] { return gate.Wait(), p.next++; })}, options);
  Value given[] = {2};
  std::string text;  // at first, that no producer has begun
  while (text.find("the source has not returned") == std::string::npos)
    text = Caught<StageTimeoutError>([&] { steps.Next(given); }, "a timeout").what();
  staged = true;
  Caught<StageTimeoutError>([&] { steps.Next(given); }, "a timeout");
  gate.Open();
  for (int i = 0; i < 50;) {
    try {
      given[0] = 2;
      engine::Run run = steps.Next(given);
      EXPECT_EQ(run.Take<int>(1), 10 * i++);
    } catch (const StageTimeoutError&) {
    }
  }
  EXPECT_TRUE(steps.stats().on);
}

}  // namespace
}  // namespace engine::test
