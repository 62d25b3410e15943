// Priorities: among ready ops the higher goes first; others than -2 to 2 are refused; equal ones keep their order on one worker.
#include <climits>

#include "support/engine_test.h"

namespace engine::test {
namespace {

// One worker (or, with none, this thread) that finds all of `pushes` ready at once.
std::vector<int> OrderOf(int workers, const std::vector<int>& priorities) {
  Engine eng(Quiet(workers));
  std::vector<int> order;
  Gate started, gate;
  if (workers) {
    eng.Push({}, [&] {
      started.Open();
      gate.Wait();
    });
    started.Wait();
  }
  for (int p : priorities) eng.Push({.priority = p}, [&order, p] { order.push_back(p); });
  gate.Open();
  eng.WaitAll();
  return order;
}

class PrioritiesTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, PrioritiesTest, testing::Values(0, 1));

TEST_P(PrioritiesTest, HigherGoesFirst) {
  EXPECT_EQ(OrderOf(GetParam(), {0, -1, 2, 1, -2, 2, 0}), (std::vector<int>{2, 2, 1, 0, 0, -1, -2}));
}

TEST_P(PrioritiesTest, BeyondTheRangeIsRefusedAndChangesNothing) {
  Engine eng(Quiet(GetParam()));
  Var a = eng.NewVar("a");
  Operator op = eng.NewOperator({.name = "again", .updates = {a}}, [] {});
  const auto refused = [](auto&& push) {
    const std::string text = RefusalOf(push);
    EXPECT_TRUE(Has(text, "priority is ")) << text;
    EXPECT_TRUE(Has(text, "allowed: -2 (last) to 2 (first)")) << text;
  };
  for (int bad : {-3, 3, INT_MIN, INT_MAX}) {
    const OpDesc desc{.name = "bad", .updates = a, .priority = bad};
    refused([&] { eng.Push(desc, [] {}); });
    refused([&] { eng.TryPush(desc, [] {}); });
    refused([&] { eng.PushAsync(desc, [](RunContext&, Completion done) { done(); }); });
    refused([&] { eng.PushHeld(desc, [] {}); });
    refused([&] { eng.NewOperator(desc, [] {}); });
    refused([&] { eng.Push(op, bad); });
    CancelScope in;
    const CancelScope::Entered entered = in.Enter();  // another path: not from the operator's template
    refused([&] { eng.Push(op, bad); });
  }
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Push({.name = "bad", .priority = 7}, [] {}); }), "op 'bad' pushed at"));
  eng.Push(op);
  eng.Wait(a);
  EXPECT_EQ(a.version(), 1u);
  EXPECT_EQ(eng.stats().pushed, 1u);
}

TEST_P(PrioritiesTest, SuccessorsOfHigherPriorityGoBeforeReadyOps) {
  Engine eng(Quiet(GetParam()));
  Var a = eng.NewVar("a");
  std::vector<int> order;
  HeldOp held = HoldWrite(eng, a);
  Gate started, gate;
  if (GetParam()) {
    eng.Push({}, [&] {
      started.Open();
      gate.Wait();
    });
    started.Wait();
  }
  eng.Push({.reads = {a}, .priority = 2}, [&] { order.push_back(2); });
  eng.Push({.reads = {a}, .priority = -2}, [&] { order.push_back(-2); });
  held.Release();
  eng.Push({.priority = 0}, [&] { order.push_back(0); });
  gate.Open();
  eng.WaitAll();
  EXPECT_EQ(order.size(), 3u);
  EXPECT_EQ(order.back(), -2);
}

TEST_P(PrioritiesTest, OperatorMayBePushedWithAnother) {
  Engine eng(Quiet(GetParam()));
  std::vector<int> order;
  Gate started, gate;
  if (GetParam()) {
    eng.Push({}, [&] {
      started.Open();
      gate.Wait();
    });
    started.Wait();
  }
  Operator op = eng.NewOperator({.priority = -1}, [&] { order.push_back(1); });
  eng.Push({.priority = 0}, [&] { order.push_back(0); });
  eng.Push(op, 1);
  eng.Push(op);
  gate.Open();
  eng.WaitAll();
  EXPECT_EQ(order, (std::vector<int>{1, 0, 1}));
}

TEST(PrioritiesOrderTest, ConflictsOutweighPriorities) {
  Engine eng(Quiet(4));
  Var a = eng.NewVar("a");
  std::vector<int> seen;
  for (int i = 0; i < 500; ++i) eng.Push({.updates = {a}, .priority = i % 5 - 2}, [&, i] { seen.push_back(i); });
  eng.Wait(a);
  for (int i = 0; i < 500; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace engine::test
