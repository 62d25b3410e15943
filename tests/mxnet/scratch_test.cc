// Scratch memory: each thread's own, each function's own while it runs; and the Vars of MXNet's spaces order nothing.
#include "mxnet/scratch.h"

#include <atomic>
#include <cstring>

#include "drop_in_test.h"

namespace engine_mxnet::test {
namespace {

WITH_WORKERS(ScratchTest);

const char kSpace[2] = {};  // two of MXNet's spaces

TEST_P(ScratchTest, OneSpaceHasOneMemoryWhileAFunctionRunsAndAnotherSpaceAnother) {
  Sync(*eng_,
       [](abi::RunContext) {
         void* const first = ScratchMemory(&kSpace[0], 100);
         std::memset(first, 1, 100);
         EXPECT_EQ(ScratchMemory(&kSpace[0], 60), first);
         EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
         void* const second = ScratchMemory(&kSpace[1], 1000);
         EXPECT_NE(second, first);
         std::memset(second, 2, 1000);
         std::memset(ScratchMemory(&kSpace[0], 5000), 3, 5000);  // grows
         EXPECT_EQ(static_cast<char*>(second)[999], 2);
       },
       {}, {NewVar()});
  eng_->WaitForAll();
}

TEST_P(ScratchTest, AFunctionInsideAnotherOneHasOtherMemoryAndTheNextOneHasTheSame) {
  std::vector<void*> seen;  // of a naive engine: on this thread
  const auto naive = Make(GetParam(), Kind::kNaive);
  abi::Var* const var = naive->NewVariable();
  const auto note = [&](abi::RunContext) { seen.push_back(ScratchMemory(&kSpace[0], 100)); };
  Sync(*naive, note, {}, {var});
  Sync(*naive, note, {}, {var});
  EXPECT_EQ(seen[0], seen[1]);
  const auto other = Make(GetParam(), Kind::kNaive);
  Sync(*naive,
       [&](abi::RunContext context) {
         note(context);
         Sync(*other, note, {}, {});
         note(context);
       },
       {}, {var});
  EXPECT_EQ(seen[2], seen[0]);
  EXPECT_NE(seen[3], seen[2]);
  EXPECT_EQ(seen[4], seen[2]);
  Delete(*naive, var);
}

TEST_P(ScratchTest, MemoryOutsideFunctionsStaysBesideTheirs) {
  const auto naive = Make(GetParam(), Kind::kNaive);
  std::thread([&] {
    void* const outside = ScratchMemory(&kSpace[0], 100);
    void* inside = nullptr;
    Sync(*naive, [&](abi::RunContext) { inside = ScratchMemory(&kSpace[0], 100); }, {}, {});
    EXPECT_NE(inside, outside);
    EXPECT_EQ(ScratchMemory(&kSpace[0], 100), outside);
  }).join();
}

TEST_P(ScratchTest, OpsThatShareASpaceDoNotWaitForEachOther) {
  abi::Var *space = NewVar(), *a = NewVar(), *b = NewVar();
  static_cast<Var*>(space)->scratch = true;
  Gate gate, ran, ran_again;
  Sync(*eng_, [&](abi::RunContext) { gate.Wait(); }, {}, {a, space});
  Sync(
      *eng_, [&](abi::RunContext) { ran.Open(); }, {}, {b, space}, abi::Property::kCpuPrioritized);
  abi::Opr* const op = eng_->NewOperator(
      [&](abi::RunContext, abi::OnComplete done) {
        ran_again.Open();
        Call(done);
      },
      {}, {b, space}, abi::Property::kCpuPrioritized, "again", false);
  eng_->Push(op, {}, 0, false);
  ran.Wait();
  ran_again.Wait();
  gate.Open();
  eng_->WaitForAll();
  EXPECT_EQ(space->version(), 0u);
  eng_->DeleteOperator(op);
}

TEST_P(ScratchTest, AnOpThatNamesASpaceOnlyMayFail) {
  abi::Var* space = NewVar();
  static_cast<Var*>(space)->scratch = true;
  Fail(*eng_, space);
  abi::Opr* const op = eng_->NewOperator([](abi::RunContext, abi::OnComplete) { throw dmlc::Error("again"); }, {},
                                         {space}, abi::Property::kNormal, "again", false);
  EXPECT_EQ(TextOf([&] { eng_->WaitForAll(); }), "broken");
  eng_->Push(op, {}, 0, false);
  EXPECT_EQ(TextOf([&] { eng_->WaitForAll(); }), "again");
  eng_->DeleteOperator(op);
}

}  // namespace
}  // namespace engine_mxnet::test
