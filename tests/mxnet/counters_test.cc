// What MXNet's programs cost the heap: a push nothing beyond what the engine's caches keep, and the arrays of a step no pages that
// an earlier step's had. A binary of its own, because it replaces malloc.
#include <sys/resource.h>

#include <array>
#include <atomic>

#include "drop_in_test.h"

namespace {
std::atomic<uint64_t> g_allocations{0};
std::atomic<uint64_t> g_freed_by_workers{0};
constinit thread_local bool t_pushes = false;  // this thread is none of the workers
}  // namespace

#if !defined(ENGINE_UNDER_TSAN) && !defined(ENGINE_UNDER_ASAN)
extern "C" {
void* __libc_malloc(size_t);
void* malloc(size_t n) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(n);
}
void __libc_free(void*);
void free(void* memory) {
  if (memory && !t_pushes) g_freed_by_workers.fetch_add(1, std::memory_order_relaxed);
  __libc_free(memory);
}
}
#endif

// What the functions of these names in libmxnet.so make of a function of C: a closure of its two words, whose type is named after them.
extern "C" {
void MXEnginePushAsync(void (*fn)(void*, const engine_mxnet::abi::OnComplete&), void* param,
                       engine_mxnet::abi::AsyncFn& made) {
  made = [fn, param](engine_mxnet::abi::RunContext, engine_mxnet::abi::OnComplete done) { fn(param, done); };
}
void MXEnginePushSync(void (*fn)(void*), void* param, engine_mxnet::abi::SyncFn& made) {
  made = [fn, param](engine_mxnet::abi::RunContext) { fn(param); };
}
}

namespace engine_mxnet::test {
namespace {

// Functions that allocate nothing themselves: the wheel's std::function keeps pointers in itself.
void Body(abi::RunContext) {}
void CallsBack(abi::RunContext, abi::OnComplete done) { Call(done); }

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
  EXPECT_LT(PerPush(*eng_, [&](int) { eng_->PushSync(&Body, {}, ab, a, {}, 0, "named"); }), 0.01);
  EXPECT_LT(PerPush(*eng_, [&](int) { eng_->PushAsync(&CallsBack, {}, none, a, {}, -3, "named", false); }), 0.01);
}

TEST_P(CountersTest, OperatorsAllocateNothing) {
  if (engine::test::kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  const abi::Vars a{NewVar()}, ab{NewVar(), NewVar()};
  abi::Opr* const op = eng_->NewOperator(&CallsBack, ab, a, abi::Property::kNormal, "again", false);
  EXPECT_LT(PerPush(*eng_, [&](int) { eng_->Push(op, {}, 0, false); }), 0.01);
  eng_->DeleteOperator(op);
}

TEST_P(CountersTest, VarMadeAndDeletedAllocatesItselfOnly) {
  if (engine::test::kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  const double of_one = PerPush(*eng_, [&](int) { eng_->DeleteVariable(&Body, {}, eng_->NewVariable()); });
  EXPECT_LT(of_one, 1.01);
}

void Count(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }

// MXEnginePushAsync and MXEnginePushSync take memory for the C function that they were given. Freed by the worker that ran it, it
// would come back to the thread that pushes as lines of another cache.
TEST_P(CountersTest, MemoryOfCFunctionsIsFreedByWhoPushes) {
  if (engine::test::kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  constexpr int kPushes = 2000;
  std::atomic<int> ran = 0;
  const abi::Vars none, a{NewVar()};
  t_pushes = true;
  // What workers freed, at their least: a queue or a cache may meet a new maximum.
  const auto freed = [&](auto&& push) {
    uint64_t least = ~uint64_t{0};
    for (int attempt = 0; attempt < 6; ++attempt) {
      const uint64_t before = g_freed_by_workers;
      for (int i = 0; i < kPushes; ++i) push();
      eng_->WaitForAll();
      least = std::min(least, g_freed_by_workers - before);
    }
    return least;
  };
  const auto async = [](void* counter, const abi::OnComplete& done) {
    Count(counter);
    Call(done);
  };
  const auto push_async = [&] {
    abi::AsyncFn made;
    MXEnginePushAsync(async, &ran, made);
    eng_->PushAsync(std::move(made), {}, none, a, {}, 0, "async", false);
  };
  const auto push_sync = [&] {
    abi::SyncFn made;
    MXEnginePushSync(&Count, &ran, made);
    eng_->PushSync(std::move(made), {}, none, a, {}, 0, "sync");
  };
  EXPECT_LT(freed(push_async), kPushes / 100);
  EXPECT_LT(freed(push_sync), kPushes / 100);
  EXPECT_EQ(ran, 2 * 6 * kPushes);
}

long PageFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// A step allocates arrays of 25 pages on a worker and frees them all, so that the top of that worker's heap is free at its end.
TEST_P(CountersTest, AStepsArraysHaveThePagesOfTheStepBefore) {
  if (engine::test::kSanitized) GTEST_SKIP() << "the sanitizer has a heap of its own";
  constexpr int kSteps = 10, kArrays = 64, kBytes = 100 << 10;
  constexpr long kPages = long{kSteps} * kArrays * kBytes / 4096;
  std::vector<std::unique_ptr<char[]>> arrays;
  const abi::Vars all{NewVar()};
  const auto step = [&](int n) {
    const auto make = [&, n](abi::RunContext) {
      for (int i = 0; i < n; ++i) arrays.push_back(std::make_unique<char[]>(kBytes));
    };
    Sync(*eng_, make, {}, all);
    Sync(
        *eng_, [&](abi::RunContext) { arrays.clear(); }, {}, all);
  };
  step(kArrays / 4);  // so that what the thread itself allocates first does not lie above all arrays
  eng_->WaitForAll();
  long least = kPages;
  for (int attempt = 0; attempt < 6; ++attempt) {  // the first use of a worker's heap has faults
    const long before = PageFaults();
    for (int i = 0; i < kSteps; ++i) step(kArrays);
    eng_->WaitForAll();
    least = std::min(least, PageFaults() - before);
  }
  EXPECT_LT(least, kPages / 4);
}

}  // namespace
}  // namespace engine_mxnet::test
