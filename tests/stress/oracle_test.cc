// The oracle itself: it accepts a serial run, and sees each kind of fault planted into its records.
#include "oracle.h"

#include "support/engine_test.h"

namespace engine::test {
namespace {

// Three ops, run serially: 1 writes a; 2 reads a and writes b; 3 updates a and b.
class OracleTest : public testing::Test {
 protected:
  OracleTest() : oracle_(2) {
    Add({{0, AccessMode::kWrite, 1}});
    Add({{0, AccessMode::kRead, 1}, {1, AccessMode::kWrite, 1}});
    Add({{0, AccessMode::kUpdate, 2}, {1, AccessMode::kUpdate, 2}});
  }
  void Add(std::vector<Use> uses) {
    OpRecord* op = oracle_.NewRecord(std::move(uses));
    op->push_begin = oracle_.Tick();
    op->push_end = oracle_.Tick();
    oracle_.Run(*op, false);
  }
  Use& use(size_t op, size_t i) { return oracle_.record(op).uses[i]; }
  Oracle oracle_;
};

TEST_F(OracleTest, AcceptsASerialRun) { EXPECT_EQ(oracle_.Check(), ""); }

TEST_F(OracleTest, SeesAReaderOfTheWrongValue) {
  use(1, 0).value ^= 1;
  EXPECT_TRUE(Has(oracle_.Check(), "did not see"));
}

TEST_F(OracleTest, SeesTwoWritersOfOneVersion) {
  use(2, 0).version = 1;
  EXPECT_TRUE(Has(oracle_.Check(), "same version"));
}

TEST_F(OracleTest, SeesAnOpThatRanTwice) {
  ++oracle_.record(1).runs;
  EXPECT_TRUE(Has(oracle_.Check(), "ran 2 times"));
}

TEST_F(OracleTest, SeesACycle) {
  use(1, 1).version = 3;  // behind op 3 on b, before it on a
  EXPECT_FALSE(oracle_.Check().empty());
  oracle_.record(1).push_begin = oracle_.record(2).push_begin = 0;
  oracle_.record(1).push_end = oracle_.record(2).push_end = ~uint64_t{0};
  EXPECT_TRUE(Has(oracle_.Check(), "cycle"));
}

TEST_F(OracleTest, SeesPushesThatWereReordered) {
  std::swap(oracle_.record(0).push_begin, oracle_.record(2).push_begin);
  std::swap(oracle_.record(0).push_end, oracle_.record(2).push_end);
  EXPECT_TRUE(Has(oracle_.Check(), "pushed before"));
}

TEST_F(OracleTest, SeesAWriteThatGotLost) {
  oracle_.set_value(1, 99);
  EXPECT_TRUE(Has(oracle_.Check(), "another value"));
}

}  // namespace
}  // namespace engine::test
