// Random programs, each checked by the oracle. The seed is printed; ENGINE_TEST_SEED runs it again.
#include "random_program.h"
#include "watchdog.h"

namespace engine::test {
namespace {

TEST(SerializabilityTest, RandomProgramsAreSerializable) {
  const uint64_t first = Seed();
  printf("seed %llu\n", static_cast<unsigned long long>(first));
  for (uint64_t i = 0; i < (kSanitized ? 10 : 100); ++i) {
    Random random(first + i);
    const Shape shape = RandomShape(random);
    const std::string what = SeedLine() + ", program " + std::to_string(i) + ": " + Describe(shape);
    Watchdog watchdog(what, kSanitized ? 120 : 60);
    ASSERT_EQ(RunProgram(shape, first + i), "") << what;
  }
}

class PushersTest : public testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(Workers, PushersTest,
                         testing::Combine(testing::Values(0, 1, 2, 4, 8), testing::Values(1, 2, 16)));

TEST_P(PushersTest, ContendedVarsStayOrdered) {
  const auto [workers, pushers] = GetParam();
  for (uint32_t vars : {1u, 3u}) {
    const Shape shape{
        .workers = workers, .pushers = pushers, .ops = (kSanitized ? 1500 : 10000) / pushers, .vars = vars};
    Watchdog watchdog(SeedLine() + ": " + Describe(shape), 120);
    EXPECT_EQ(RunProgram(shape, Seed()), "") << SeedLine() << ": " << Describe(shape);
  }
}

}  // namespace
}  // namespace engine::test
