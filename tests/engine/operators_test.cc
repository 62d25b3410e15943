// Reusable operators: registered once, pushed often.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(OperatorsTest);

TEST_P(OperatorsTest, PushedOftenRunsAsOften) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  int x = 0;
  Operator op = eng.NewOperator({.name = "step", .reads = {a, a}, .updates = {b}}, [&] { ++x; });
  for (int i = 0; i < 500; ++i) eng.Push(op);
  eng.Wait(b);
  EXPECT_EQ(x, 500);
  EXPECT_EQ(b.version(), 500u);
}

TEST_P(OperatorsTest, AreOrderedWithOtherPushes) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  double x = 1;
  Operator doubled = eng.NewOperator({.updates = {a}}, [&] { x *= 2; });
  for (int i = 0; i < 5; ++i) {
    eng.Push(doubled);
    eng.Push({.updates = {a}}, [&] { x += 1; });
  }
  eng.Wait(a);
  EXPECT_EQ(x, 63);
}

TEST_P(OperatorsTest, DeletionWaitsForPendingPushes) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  auto kept = std::make_shared<int>(0);
  std::weak_ptr<int> watch = kept;
  HeldOp held = HoldWrite(eng, a);
  {
    Operator op = eng.NewOperator({.updates = {a}}, [kept] { ++*kept; });
    for (int i = 0; i < 3; ++i) eng.Push(op);
  }
  EXPECT_EQ(kept.use_count(), 2);
  held.Release();
  eng.Wait(a);
  EXPECT_EQ(*kept, 3);
  kept.reset();
  eng.WaitAll();
  EXPECT_TRUE(watch.expired());
}

TEST_P(OperatorsTest, KeepTheirVarsAlive) {
  Engine eng(Quiet(workers()));
  Operator op;
  int x = 0;
  {
    Var a = eng.NewVar("a");
    op = eng.NewOperator({.updates = {a}}, [&] { ++x; });
  }
  eng.Push(op);
  eng.Push(op);
  eng.WaitAll();
  EXPECT_EQ(x, 2);
}

TEST_P(OperatorsTest, AsynchronousOnesGetACompletionEach) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Operator op = eng.NewAsyncOperator({.updates = {a}}, [](RunContext&, Completion done) { done(); });
  for (int i = 0; i < 100; ++i) eng.Push(op);
  eng.Wait(a);
  EXPECT_EQ(a.version(), 100u);
}

TEST_P(OperatorsTest, ErrorsNameThePushThatFailed) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Operator op = eng.NewOperator({.name = "step", .writes = {a}}, [] { throw std::runtime_error("broken"); });
  eng.Push(op);
  const uint32_t line = __LINE__ - 1;
  const OpError e = ErrorOf([&] { eng.Wait(a); });
  EXPECT_EQ(e.op(), "step");
  EXPECT_EQ(e.site().line, line);
}

TEST(OperatorsRefusalTest, EmptyForeignAndBadOnesAreRefused) {
  Engine eng(Quiet(1)), other(Quiet(1));
  Var a = eng.NewVar("a"), theirs = other.NewVar("theirs");
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Push(Operator()); }), "empty Operator"));
  Operator op = other.NewOperator({.name = "foreign", .writes = {theirs}}, [] {});
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Push(op); }), "'foreign'"));
  EXPECT_THROW(eng.NewOperator({.reads = {theirs}}, [] {}), UsageError);
  EXPECT_THROW(eng.NewOperator({.reads = {Var()}}, [] {}), UsageError);
  EXPECT_THROW(eng.NewOperator({.place = {Placement::Kind::kPool, 40}}, [] {}), UsageError);
  Operator stale = eng.NewOperator({.name = "stale", .writes = {a}}, [] {});
  eng.Delete(a);
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Push(stale); }), "deleted"));
}

}  // namespace
}  // namespace engine::test
