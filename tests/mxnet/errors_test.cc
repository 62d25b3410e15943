// Errors with MXNet's meaning: an op behind a failure is skipped and carries it on; a wait takes it from all who carry it.
#include <atomic>

#include "drop_in_test.h"

namespace engine_mxnet::test {
namespace {

WITH_WORKERS(ErrorsTest);

TEST_P(ErrorsTest, OpBehindAFailureIsSkippedAndItsVarsCarryIt) {
  abi::Var *a = NewVar(), *b = NewVar(), *c = NewVar();
  std::atomic<int> ran = 0;
  Fail(*eng_, a);
  Sync(*eng_, [&](abi::RunContext) { ++ran; }, {a}, {b});
  Sync(*eng_, [&](abi::RunContext) { ++ran; }, {}, {b, c});  // what it would change carries a failure, too
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(c); }), "broken");
  EXPECT_EQ(ran, 0);
}

TEST_P(ErrorsTest, WaitTakesTheFailureFromAllThatShareIt) {
  abi::Var *a = NewVar(), *b = NewVar();
  std::atomic<int> ran = 0;
  Fail(*eng_, a);
  Sync(*eng_, [&](abi::RunContext) { ++ran; }, {a}, {b});
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(b); }), "broken");
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(b); }), "");
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(a); }), "");
  EXPECT_EQ(TextOf([&] { eng_->WaitForAll(); }), "");
  Sync(*eng_, [&](abi::RunContext) { ++ran; }, {a}, {b});
  eng_->WaitForVar(b);
  EXPECT_EQ(ran, 1);
}

TEST_P(ErrorsTest, WaitThrowsTheObjectThatWasThrown) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  abi::Var* a = NewVar();
  Sync(*eng_, [](abi::RunContext) { throw Mine("mine"); }, {}, {a});
  EXPECT_THROW(eng_->WaitForVar(a), Mine);
}

TEST_P(ErrorsTest, WhatIsNoStdExceptionBecomesAnErrorThatNamesItsOp) {
  abi::Var* a = NewVar();
  Sync(
      *eng_, [](abi::RunContext) { throw 7; }, {}, {a}, abi::Property::kNormal, "odd");
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(a); }), "op 'odd' threw what is no std::exception");
}

TEST_P(ErrorsTest, WaitForAllThrowsTheFirstAndClearsAll) {
  abi::Var *a = NewVar(), *b = NewVar();
  const auto dropped = FailuresOf(*eng_).counts().dropped;
  Fail(*eng_, a, "first");
  TextOf([&] { eng_->WaitForVar(b); });
  while (a->version() == 0) std::this_thread::yield();
  Sync(*eng_, [](abi::RunContext) { throw dmlc::Error("second"); }, {}, {b});
  EXPECT_EQ(TextOf([&] { eng_->WaitForAll(); }), "first");
  EXPECT_EQ(TextOf([&] { eng_->WaitForAll(); }), "");
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(a); }), "");
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(b); }), "");
  EXPECT_EQ(FailuresOf(*eng_).counts().dropped, dropped + 1);
}

TEST_P(ErrorsTest, FailureOfAnOpThatWritesNothingIsNotLost) {
  abi::Var* a = NewVar();
  Sync(*eng_, [](abi::RunContext) { throw dmlc::Error("reader"); }, {a}, {});
  EXPECT_EQ(TextOf([&] { eng_->WaitForAll(); }), "reader");
  const auto log = FailuresOf(*eng_).log();
  EXPECT_EQ(log.back().what, "reader");
  EXPECT_TRUE(log.back().taken);
}

TEST_P(ErrorsTest, NoSkipRunsBehindAFailureAndPassesItOn) {
  abi::Var *a = NewVar(), *b = NewVar();
  std::atomic<int> ran = 0;
  Fail(*eng_, a);
  Sync(
      *eng_, [&](abi::RunContext) { ++ran; }, {a}, {b}, abi::Property::kNoSkip);
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(b); }), "broken");
  EXPECT_EQ(ran, 1);
}

TEST_P(ErrorsTest, NoSkipThatTakesTheFailurePassesNothingOn) {  // as MXNet's custom operators do
  abi::Var *a = NewVar(), *b = NewVar();
  Fail(*eng_, a);
  std::string taken;
  Sync(
      *eng_, [&](abi::RunContext) { taken = TextOf([&] { eng_->Throw(a); }); }, {a}, {b}, abi::Property::kNoSkip);
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(b); }), "");
  EXPECT_EQ(taken, "broken");
}

TEST_P(ErrorsTest, CallbackWithAnErrorFailsItsOp) {
  abi::Var* a = NewVar();
  const dmlc::Error said("said");
  Async(*eng_, [&](abi::RunContext, abi::OnComplete done) { Call(done, &said); }, {}, {a});
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(a); }), "said");
  abi::OnComplete kept{};
  Gate left;
  Async(*eng_,
        [&](abi::RunContext, abi::OnComplete done) {
          kept = done;
          left.Open();
        },
        {}, {a});
  left.Wait();
  Call(kept, &said);  // after its function has returned, or nearly
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(a); }), "said");
}

TEST_P(ErrorsTest, AsynchronousFunctionThatThrowsFailsItsOp) {
  abi::Var* a = NewVar();
  Async(*eng_, [](abi::RunContext, abi::OnComplete) { throw dmlc::Error("before"); }, {}, {a});
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(a); }), "before");
  Async(*eng_,
        [](abi::RunContext, abi::OnComplete done) {
          Call(done);
          throw dmlc::Error("after");
        },
        {}, {a});
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(a); }), "after");
}

TEST_P(ErrorsTest, LogKeepsTheLastFailuresAndWhatWasSkippedForThem) {
  abi::Var *a = NewVar(), *b = NewVar();
  Sync(
      *eng_, [](abi::RunContext) { throw dmlc::Error("logged"); }, {}, {a}, abi::Property::kNormal, "culprit");
  for (int i = 0; i < 3; ++i) Sync(*eng_, [](abi::RunContext) {}, {a}, {b});
  TextOf([&] { eng_->WaitForVar(b); });
  const auto entry = FailuresOf(*eng_).log().back();
  EXPECT_EQ(entry.op, "culprit");
  EXPECT_EQ(entry.what, "logged");
  EXPECT_EQ(entry.skipped, 3u);
  EXPECT_TRUE(entry.taken);
}

TEST_P(ErrorsTest, WaitForAllClearsAlsoWhatIsBeyondThoseThatItCanThrow) {
  abi::Vars vars;
  std::atomic<int> ran = 0;
  for (int i = 0; i < 100; ++i) Fail(*eng_, vars.emplace_back(NewVar()), "one of many");
  EXPECT_EQ(TextOf([&] { eng_->WaitForAll(); }), "one of many");
  for (abi::Var* var : vars) {
    EXPECT_EQ(TextOf([&] { eng_->WaitForVar(var); }), "");
    Sync(*eng_, [&](abi::RunContext) { ++ran; }, {}, {var});
  }
  eng_->WaitForAll();
  EXPECT_EQ(ran, 100);
  const auto counts = FailuresOf(*eng_).counts();
  EXPECT_EQ(counts.failed, 100u);
  EXPECT_EQ(counts.dropped, 99u);
  EXPECT_EQ(counts.unlisted, 36u);
  EXPECT_EQ(FailuresOf(*eng_).log().size(), 64u);
}

TEST_P(ErrorsTest, WaitForAllThrowsEvenIfOnlyFailuresAreLeftThatItDidNotKeep) {
  abi::Vars vars;
  const auto fail = [&](int n) {
    for (int i = 0; i < n; ++i) {
      Fail(*eng_, vars.emplace_back(NewVar()));
      while (vars.back()->version() == 0) std::this_thread::yield();  // in this order
    }
  };
  const auto take = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) EXPECT_EQ(TextOf([&] { eng_->WaitForVar(vars[i]); }), "broken");
  };
  fail(64 + 1 + 64);  // kept; in neither list; the last ones, which the log has
  take(0, 64);
  take(65, 129);
  EXPECT_NE(TextOf([&] { eng_->WaitForAll(); }), "");
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(vars[64]); }), "");
  EXPECT_EQ(TextOf([&] { eng_->WaitForAll(); }), "");
}

TEST_P(ErrorsTest, EachEngineHasItsOwnFailures) {
  const auto other = Make(GetParam());
  abi::Var *mine = NewVar(), *its = other->NewVariable();
  Fail(*eng_, mine, "mine");
  Sync(*other, [](abi::RunContext) { throw dmlc::Error("its"); }, {}, {});  // names no Var
  Fail(*other, its, "its");
  EXPECT_EQ(TextOf([&] { eng_->WaitForAll(); }), "mine");
  EXPECT_EQ(TextOf([&] { other->WaitForAll(); }), "its");
  EXPECT_EQ(FailuresOf(*eng_).counts().failed, 1u);
  EXPECT_EQ(FailuresOf(*other).counts().failed, 2u);
  Delete(*other, its);
}

}  // namespace
}  // namespace engine_mxnet::test
