// How it ends: NotifyShutdown, destruction with ops pending, forks.
#include <atomic>

#include "drop_in_test.h"
#include "support/child.h"

namespace engine_mxnet::test {
namespace {

WITH_WORKERS(EndsTest);

using engine::test::InChild;

TEST_P(EndsTest, AfterNotifyShutdownOnlyDeletionsRunOnTheThreadThatAsks) {
  abi::Var* var = eng_->NewVariable();
  std::atomic<int> ran = 0;
  Sync(*eng_, [&](abi::RunContext) { ++ran; }, {}, {var});
  eng_->WaitForAll();
  eng_->NotifyShutdown();
  Sync(*eng_, [&](abi::RunContext) { ++ran; }, {}, {var});
  Async(*eng_, [&](abi::RunContext, abi::OnComplete) { ++ran; }, {}, {var});
  eng_->WaitForVar(var);
  eng_->WaitForAll();
  EXPECT_EQ(ran, 1);
  std::thread::id on;
  eng_->DeleteVariable([&](abi::RunContext) { on = std::this_thread::get_id(); }, {}, var);
  EXPECT_EQ(on, std::this_thread::get_id());
}

TEST_P(EndsTest, NotifyShutdownSkipsWhatIsPendingAndRunsDeletions) {
  abi::Var *var = eng_->NewVariable(), *other = NewVar();
  Gate gate, entered;
  std::atomic<int> ran = 0, deleted = 0;
  Sync(*eng_,
       [&](abi::RunContext) {
         entered.Open();
         gate.Wait();
       },
       {}, {var});
  for (int i = 0; i < 10; ++i) Sync(*eng_, [&](abi::RunContext) { ++ran; }, {}, {var});
  eng_->DeleteVariable([&](abi::RunContext) { ++deleted; }, {}, var);
  entered.Wait();
  std::thread ender([&] { eng_->NotifyShutdown(); });
  for (std::atomic<bool> runs = true; runs;) {  // until it has begun: prioritized ops have threads of their own
    runs = false;
    Sync(
        *eng_, [&](abi::RunContext) { runs = true; }, {}, {other}, abi::Property::kCpuPrioritized);
    eng_->WaitForVar(other);
  }
  EXPECT_EQ(deleted, 0);
  gate.Open();
  ender.join();
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(deleted, 1);
}

TEST_P(EndsTest, OneEngineEndsAndTheOthersFunctionsRun) {
  const auto other = Make(GetParam());
  other->NotifyShutdown();
  abi::Var* var = NewVar();
  std::atomic<int> ran = 0;
  Sync(*eng_, [&](abi::RunContext) { ++ran; }, {}, {var});
  Sync(*eng_, [&](abi::RunContext) { ++ran; }, {}, {});
  eng_->WaitForAll();
  EXPECT_EQ(ran, 2);
}

TEST_P(EndsTest, EndThatWaitsInVainSaysForWhat) {
  abi::Var* var = NewVar();
  abi::OnComplete kept{};
  Gate left;
  Async(
      *eng_,
      [&](abi::RunContext, abi::OnComplete done) {
        kept = done;
        left.Open();
      },
      {}, {var}, "never called back");
  left.Wait();
  DropInOf(*eng_).set_drain_timeout(std::chrono::milliseconds(1));
  testing::internal::CaptureStderr();
  eng_->NotifyShutdown();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("engine.mxnet: MXNet ends while ops have not ended"), std::string::npos) << said;
  EXPECT_NE(said.find("never called back"), std::string::npos) << said;
  Call(kept);
}

TEST_P(EndsTest, DestructionEndsWithOpsPending) {
  auto eng = Make(GetParam());
  abi::Var* var = eng->NewVariable();
  std::atomic<int> deleted = 0;
  for (int i = 0; i < 1000; ++i) Sync(*eng, [](abi::RunContext) {}, {}, {var});
  eng->DeleteVariable([&](abi::RunContext) { ++deleted; }, {}, var);
  eng.reset();
  EXPECT_EQ(deleted, 1);
}

TEST_P(EndsTest, ChildOfAForkFindsTheValuesThatWereOnTheirWay) {
  if (const char* why = engine::test::WhyNoForks()) GTEST_SKIP() << why;
  abi::Var* var = NewVar();
  int value = 0;
  for (int i = 0; i < 1000; ++i) Sync(*eng_, [&](abi::RunContext) { ++value; }, {}, {var});
  EXPECT_TRUE(InChild([&] {
    eng_->WaitForVar(var);
    Sync(*eng_, [&](abi::RunContext) { value += 10; }, {}, {var});
    eng_->WaitForVar(var);
    return value == 1010;
  }));
  Sync(*eng_, [&](abi::RunContext) { ++value; }, {}, {var});
  eng_->WaitForVar(var);
  EXPECT_EQ(value, 1001);
}

TEST_P(EndsTest, ForkBesideAThreadThatPushesEnds) {
  if (const char* why = engine::test::WhyNoForks()) GTEST_SKIP() << why;
  abi::Var *mine = NewVar(), *other = NewVar();
  std::atomic<bool> stop = false;
  std::thread pusher([&] {
    while (!stop) Sync(*eng_, [](abi::RunContext) {}, {}, {other});
  });
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(InChild([&] {
      Sync(*eng_, [](abi::RunContext) {}, {}, {mine});
      eng_->WaitForVar(mine);
      return true;
    }));
  }
  stop = true;
  pusher.join();
}

TEST_P(EndsTest, ForkBehindAFailureEndsAndKeepsIt) {
  if (const char* why = engine::test::WhyNoForks()) GTEST_SKIP() << why;
  abi::Var* var = NewVar();
  Fail(*eng_, var);
  EXPECT_TRUE(InChild([&] { return TextOf([&] { eng_->WaitForVar(var); }) == "broken"; }));
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(var); }), "broken");
}

TEST_P(EndsTest, BulkSizeIsRememberedPerThreadAndHandedBack) {
  EXPECT_EQ(eng_->set_bulk_size(15), 0);
  EXPECT_EQ(eng_->bulk_size(), 15);
  std::thread([&] { EXPECT_EQ(eng_->bulk_size(), 0); }).join();
  EXPECT_EQ(eng_->set_bulk_size(0), 15);
}

TEST_P(EndsTest, OpForAGpuIsRefusedAtItsPush) {
  abi::Var* var = NewVar();
  const std::string said = TextOf([&] {
    eng_->PushSync([](abi::RunContext) {}, {abi::kGpu, 0}, {}, {var}, abi::Property::kNormal, 0, "conv");
  });
  EXPECT_EQ(said, "engine.mxnet: op 'conv' is for a GPU; this engine runs MXNet's ops on CPUs only");
}

TEST_P(EndsTest, OpsOfOtherDevicesAndPrioritizedOnesRun) {
  abi::Var* var = NewVar();
  std::atomic<int> ran = 0;
  for (int device = 0; device < 9; ++device)
    for (const auto property : {abi::Property::kNormal, abi::Property::kCpuPrioritized, abi::Property::kCopyToGpu})
      eng_->PushSync([&](abi::RunContext) { ++ran; }, {1, device}, {var}, {}, property, device - 4, nullptr);
  eng_->WaitForAll();
  EXPECT_EQ(ran, 27);
}

// --- the naive engine

TEST(NaiveTest, PushRunsItsFunctionAndThrowsWhatItThrows) {
  const auto eng = Make(1, Kind::kNaive);
  abi::Var* var = eng->NewVariable();
  std::thread::id on;
  Sync(*eng, [&](abi::RunContext) { on = std::this_thread::get_id(); }, {}, {var});
  EXPECT_EQ(on, std::this_thread::get_id());
  EXPECT_EQ(TextOf([&] { Fail(*eng, var); }), "broken");
  EXPECT_EQ(TextOf([&] { eng->WaitForVar(var); }), "");
  Delete(*eng, var);
}

TEST(NaiveTest, FunctionOfAFunctionRunsAtOnceAlsoOnTheSameVar) {
  const auto eng = Make(1, Kind::kNaive);
  abi::Var* var = eng->NewVariable();
  int ran = 0;
  Sync(*eng,
       [&](abi::RunContext) {
         Sync(*eng, [&](abi::RunContext) { ++ran; }, {}, {var});
         Async(*eng,
               [&](abi::RunContext, abi::OnComplete done) {
                 ++ran;
                 Call(done);
               },
               {}, {var});
         EXPECT_EQ(ran, 2);
       },
       {}, {var});
  EXPECT_EQ(ran, 2);
  Delete(*eng, var);
}

TEST(NaiveTest, PushWaitsForACallbackOfAnotherThread) {
  const auto eng = Make(1, Kind::kNaive);
  abi::Var* var = eng->NewVariable();
  std::thread other;
  bool called = false;
  Async(*eng,
        [&](abi::RunContext, abi::OnComplete done) {
          other = std::thread([&called, done] {
            called = true;
            Call(done);
          });
        },
        {}, {var});
  EXPECT_TRUE(called);
  other.join();
  Delete(*eng, var);
}

}  // namespace
}  // namespace engine_mxnet::test
