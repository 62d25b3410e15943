// What perf/gpu counts is exact on the software device, with threads and with a virtual clock.
#include "counters.h"
#include "order_model.h"

#include <gtest/gtest.h>

#include <ostream>

namespace engine::perf {
namespace {

using Clock = SoftwareDeviceOptions::Clock;
struct Setup {
  Scenario scenario;
  Clock clock;
  uint64_t seed;
  friend void PrintTo(const Setup& s, std::ostream* out) { *out << s.scenario.name; }  // in the tests' names
};

std::vector<Setup> Setups() {
  std::vector<Setup> out;
  for (const Scenario& s : Scenarios()) {
    out.push_back({s, Clock::kThreads, 0});
    for (uint64_t seed = 0; seed < 3; ++seed) out.push_back({s, Clock::kVirtual, seed});
  }
  return out;
}

class GpuCounters : public testing::TestWithParam<Setup> {};

TEST_P(GpuCounters, AreExact) {
  SoftwareDeviceOptions options;
  options.clock = GetParam().clock;
  options.seed = GetParam().seed;
  const auto target = MakeSoftwareTarget(options);
  const std::vector<Counter> counters = GetParam().scenario.run(*target);
  ASSERT_FALSE(counters.empty());
  for (const Counter& c : counters) EXPECT_EQ(c.got, c.want) << c.name;
}

INSTANTIATE_TEST_SUITE_P(Suite, GpuCounters, testing::ValuesIn(Setups()), [](const auto& instance) {
  const Setup& setup = instance.param;
  return setup.scenario.name +
         (setup.clock == Clock::kThreads ? std::string("_threads") : "_virtual_" + std::to_string(setup.seed));
});

// One device and one process for all, as in gpu_suite.
TEST(GpuCountersOnCuda, AreExact) {
  std::string why;
  const auto target = MakeCudaTarget(&why);
  if (!target) GTEST_SKIP() << why;
  for (const Scenario& scenario : Scenarios()) {
    SCOPED_TRACE(scenario.name);
    const std::vector<Counter> counters = scenario.run(*target);
    EXPECT_TRUE(!counters.empty() || scenario.row == 13) << "only collectives need another library";
    for (const Counter& c : counters) EXPECT_EQ(c.got, c.want) << c.name;
  }
}

// The model that says how many waits are the least, on cases that are counted by hand.
TEST(LeastWaits, OfCasesCountedByHand) {
  EXPECT_EQ(LeastWaits({{0, {{0, 0}}}, {0, {{0, 0}}}}, 2, 1), 0u) << "one lane";
  EXPECT_EQ(LeastWaits({{0, {{0, 0}}}, {1, {{0, 0}}}}, 2, 1), 1u) << "two lanes";
  EXPECT_EQ(LeastWaits({{0, {{0, 0}}}, {1, {{0, 0}}}, {1, {{0, 0}}}}, 2, 1), 1u) << "behind it already";
  EXPECT_EQ(LeastWaits({{0, {{0, 0}}}, {1, {{0, 1}}}, {2, {{0, 2}, {1, 2}}}}, 3, 3), 2u)
      << "one brings the other along";
  EXPECT_EQ(LeastWaits({{0, {{0, 0}}}, {1, {{1, 1}}}, {2, {{0, 2}, {1, 2}}}}, 3, 3), 2u) << "not brought along";
  EXPECT_EQ(LeastWaits({{0, {{0, 1}}}, {1, {{0, 2}}}, {2, {{0, 0}}}}, 3, 3), 2u) << "a writer behind two readers";
}

}  // namespace
}  // namespace engine::perf
