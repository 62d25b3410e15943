// What a push of MXNet's costs the heap: nothing beyond what the engine's caches keep. A binary of its own, because it replaces
// malloc.
#include <array>
#include <atomic>

#include "drop_in_test.h"

namespace {
std::atomic<uint64_t> g_allocations{0};
}  // namespace

#if !defined(ENGINE_UNDER_TSAN) && !defined(ENGINE_UNDER_ASAN)
extern "C" {
void* __libc_malloc(size_t);
void* malloc(size_t n) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(n);
}
}
#endif

namespace engine_mxnet::test {
namespace {

// As libmxnet.so makes its functions: the wheel's std::function keeps up to 16 bytes in itself.
struct Body {
  void operator()(abi::RunContext) const {}
};
struct CallsBack {
  void operator()(abi::RunContext, abi::OnComplete done) const { Call(done); }
};

WITH_WORKERS(CountersTest);

// Allocations of one of `n` pushes, at their least: on a busy machine a queue or a cache may meet a new maximum.
template <class Push>
double PerPush(abi::Engine& eng, Push&& push) {
  constexpr int kPushes = 2000;
  double least = 1e9;
  for (int attempt = 0; attempt < 6; ++attempt) {
    const uint64_t before = g_allocations;
    for (int i = 0; i < kPushes; ++i) push(i);
    eng.WaitForAll();
    if (attempt) least = std::min(least, static_cast<double>(g_allocations - before) / kPushes);
  }
  return least;
}

TEST_P(CountersTest, PushesAllocateNothing) {
  if (engine::test::kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  const abi::Vars none, a{NewVar()}, ab{NewVar(), NewVar()};
  EXPECT_LT(PerPush(*eng_, [&](int) { eng_->PushSync(Body(), {}, ab, a, {}, 0, "named"); }), 0.01);
  EXPECT_LT(PerPush(*eng_, [&](int) { eng_->PushAsync(CallsBack(), {}, none, a, {}, -3, "named", false); }), 0.01);
}

TEST_P(CountersTest, OperatorsAllocateNothing) {
  if (engine::test::kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  const abi::Vars a{NewVar()}, ab{NewVar(), NewVar()};
  abi::Opr* const op = eng_->NewOperator(CallsBack(), ab, a, abi::Property::kNormal, "again", false);
  EXPECT_LT(PerPush(*eng_, [&](int) { eng_->Push(op, {}, 0, false); }), 0.01);
  eng_->DeleteOperator(op);
}

TEST_P(CountersTest, VarMadeAndDeletedAllocatesItselfOnly) {
  if (engine::test::kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  const double of_one = PerPush(*eng_, [&](int) { eng_->DeleteVariable(Body(), {}, eng_->NewVariable()); });
  EXPECT_LT(of_one, 1.01);
}

}  // namespace
}  // namespace engine_mxnet::test
