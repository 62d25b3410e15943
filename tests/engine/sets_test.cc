// Contract 2: Vars named several times, empty sets, and handles that must be refused.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(SetsTest);

TEST_P(SetsTest, VarNamedSeveralTimesCountsOnce) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  eng.Push({.reads = {a, a, b, a}}, [] {});
  eng.Push({.writes = {a, b, a}}, [] {});
  eng.Push({.updates = {b, b}}, [] {});
  eng.WaitAll();
  EXPECT_EQ(a.version(), 1u);
  EXPECT_EQ(b.version(), 2u);
}

TEST_P(SetsTest, ReadTogetherWithWriteIsUpdate) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Fail(eng, a);
  bool ran = false;
  eng.Push({.reads = {a}, .writes = {a}}, [&] { ran = true; });  // sees the value, so it is skipped
  EXPECT_THROW(eng.Wait(a), OpError);
  EXPECT_FALSE(ran);
  eng.Push({.writes = {a, a}}, [&] { ran = true; });  // twice Write stays a Write
  eng.Wait(a);
  EXPECT_TRUE(ran);
}

TEST_P(SetsTest, UpdateTogetherWithWriteIsUpdate) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Fail(eng, a);
  eng.Push({.updates = {a}, .writes = {a}}, [] { FAIL() << "must be skipped"; });
  EXPECT_THROW(eng.Wait(a), OpError);
  EXPECT_EQ(a.version(), 2u);
}

TEST_P(SetsTest, EmptySetsAreLegal) {
  Engine eng(Quiet(workers()));
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) eng.Push({}, [&] { ++ran; });
  eng.WaitAll();
  EXPECT_EQ(ran, 100);
}

TEST_P(SetsTest, HundredsOfVarsInOneOp) {
  Engine eng(Quiet(workers()));
  std::vector<Var> reads, writes;
  for (int i = 0; i < 700; ++i) {
    reads.push_back(eng.NewVar());
    writes.push_back(eng.NewVar());
  }
  for (int round = 0; round < 3; ++round) {
    eng.Push({.reads = reads, .writes = writes}, [] {});
    eng.Push({.reads = writes, .writes = reads}, [] {});
  }
  eng.WaitAll();
  for (const Var& v : writes) ASSERT_EQ(v.version(), 3u);
  for (const Var& v : reads) ASSERT_EQ(v.version(), 3u);
}

TEST(SetsRefusalTest, MoreVarsThanAnOpMayNameAreRefused) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("a");
  const std::vector<Var> many(20000, a);
  const std::string text = RefusalOf([&] { eng.Push({.name = "huge", .reads = many}, [] {}); });
  EXPECT_TRUE(Has(text, "huge"));
  EXPECT_TRUE(Has(text, "20000"));
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
}

TEST(SetsRefusalTest, NullVarIsRefusedWithTheOpAndItsPlace) {
  Engine eng(Quiet(1));
  const std::string text = RefusalOf([&] { eng.Push({.name = "scale", .reads = {Var()}}, [] {}); });
  EXPECT_TRUE(Has(text, "null Var"));
  EXPECT_TRUE(Has(text, "reads"));
  EXPECT_TRUE(Has(text, "'scale'"));
  EXPECT_TRUE(Has(text, "sets_test.cc:"));
}

TEST(SetsRefusalTest, ForeignVarIsRefusedByName) {
  Engine eng(Quiet(1)), other(Quiet(1));
  Var theirs = other.NewVar("theirs"), mine = eng.NewVar("mine");
  const std::string text = RefusalOf([&] { eng.Push({.name = "mix", .reads = {mine}, .updates = {theirs}}, [] {}); });
  EXPECT_TRUE(Has(text, "'theirs'"));
  EXPECT_TRUE(Has(text, "another engine"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Wait(theirs); }), "another engine"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.ClearError(theirs); }), "another engine"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Delete(theirs); }), "another engine"));
  EXPECT_EQ(mine.version(), 0u);
}

TEST(SetsRefusalTest, DeletedVarIsRefusedByName) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("gone"), b = eng.NewVar("b");
  Var stale = a;
  eng.Delete(a);
  EXPECT_FALSE(a);
  const std::string text = RefusalOf([&] { eng.Push({.name = "late", .reads = {b}, .writes = {stale}}, [] {}); });
  EXPECT_TRUE(Has(text, "'gone'"));
  EXPECT_TRUE(Has(text, "'late'"));
  EXPECT_TRUE(Has(text, "deleted"));
  EXPECT_THROW(eng.Delete(stale), UsageError);
  EXPECT_THROW(eng.ClearError(stale), UsageError);
}

TEST(SetsRefusalTest, RefusedPushChangesNothing) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("a"), gone = eng.NewVar("gone"), stale = gone;
  eng.Delete(gone);
  auto alive = std::make_shared<int>(1);
  std::weak_ptr<int> closure = alive;
  const uint64_t pushed = eng.stats().pushed;
  for (int i = 0; i < 100; ++i) EXPECT_THROW(eng.Push({.reads = {a}, .writes = {stale}}, [alive] {}), UsageError);
  alive.reset();
  EXPECT_TRUE(closure.expired());
  EXPECT_EQ(eng.stats().pushed, pushed);
  eng.Push({.writes = {a}}, [] {});
  eng.WaitToWrite(a);
  eng.WaitAll();
  EXPECT_EQ(a.version(), 1u);
}

}  // namespace
}  // namespace engine::test
