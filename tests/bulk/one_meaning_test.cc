// Contract 9: bulk size changes speed, never values, errors, versions or order. Random programs of several threads, half on
// the host and half on a device, against the serializability oracle.
#include "stress/random_program.h"

namespace engine::test {
namespace {

void RunWithBulk(int bulk) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() * 31 + static_cast<uint64_t>(bulk));
  for (int i = 0; i < (kSanitized ? 4 : 10); ++i) {
    Shape shape = RandomShape(random);
    shape.bulk = bulk;
    const uint64_t seed = Seed() + static_cast<uint64_t>(i);
    EXPECT_EQ(RunProgram(shape, seed), "") << Describe(shape) << ", seed " << seed;
  }
}

class BulkMeaningTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, BulkMeaningTest, testing::Values(0, 1, 2, 15, 64),
                         [](const auto& instance) { return std::to_string(instance.param); });
TEST_P(BulkMeaningTest, RandomProgramsOfManyThreadsAreSerializable) { RunWithBulk(GetParam()); }

}  // namespace
}  // namespace engine::test
