// No malloc and no slab once runs are warm, whatever the plan has: values, Vars, asynchronous nodes, other placements.
// A binary of its own, because it replaces the allocation functions of libc.
#include <cstdlib>

#include "engine/plan.h"
#include "support/engine_test.h"

namespace {
std::atomic<uint64_t> g_allocations{0};
}

#if !defined(ENGINE_UNDER_TSAN) && !defined(ENGINE_UNDER_ASAN)
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t n) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(n, size);
}
void* aligned_alloc(size_t align, size_t n) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(align, n);
}
}
#endif

namespace engine::test {
namespace {

// Once they are warm. A thread that is held up may make a queue or a cache meet a new maximum; that ends by itself.
template <class Runs>
void ExpectNoAllocations(Engine& eng, const Runs& runs) {
  runs(300);
  uint64_t mallocs = 0, slabs = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const uint64_t slabs_before = eng.stats().slab_allocations, before = g_allocations;
    runs(300);
    mallocs = g_allocations - before;
    slabs = eng.stats().slab_allocations - slabs_before;
    if (mallocs <= 8 && slabs == 0) break;
  }
  EXPECT_LE(mallocs, 8u);
  EXPECT_EQ(slabs, 0u);
}

class PlanCountersTest : public testing::TestWithParam<std::tuple<int, Policy>> {};
INSTANTIATE_TEST_SUITE_P(All, PlanCountersTest,
                         testing::Combine(testing::Values(0, 1, 2, 4),
                                          testing::Values(Policy::kThreaded, Policy::kInline)));

TEST_P(PlanCountersTest, ARunAllocatesNothingAfterWarmUp) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  const auto [workers, policy] = GetParam();
  Engine eng(Quiet(workers));
  std::vector<Var> vars;
  for (int i = 0; i < 60; ++i) vars.push_back(eng.NewVar());  // more than an op's largest block holds
  Graph graph;
  const ValueId x = graph.Input<int>("x");
  std::vector<ValueId> values{x};
  for (size_t i = 0; i < 60; ++i) {
    const std::vector<Var> reads{vars[i / 3]}, updates{vars[i]};  // named: a VarSet is a view
    const NodeDesc desc{.name = "n",
                        .inputs = {values[i / 2]},
                        .outputs = 1,
                        .reads = reads,
                        .updates = updates,
                        .place = i % 10 == 9 ? Io() : Cpu()};
    const auto add = [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + 1); };
    values.push_back((i % 7 == 6 ? graph.AddAsync(desc,
                                                  [add](NodeContext& ctx, Completion done) {
                                                    add(ctx);
                                                    done();
                                                  })
                                 : graph.Add(desc, add))[0]);
  }
  graph.Output(values.back());
  const Plan plan = graph.Compile(eng);
  const auto runs = [&, p = policy](int count) {
    engine::Run before;
    for (int i = 0; i < count; ++i) {
      Value inputs[] = {i};
      engine::Run next = plan.Start(inputs, {.policy = p});
      if (before) before.Wait();
      before = std::move(next);
    }
    before.Wait();
  };
  ExpectNoAllocations(eng, runs);
  // Two runs are in flight, and a thread lets go of a frame a moment after the run has ended.
  const EngineOptions options = Quiet(workers);
  EXPECT_LE(plan.frames(), 2u + 1 + options.workers + options.io_threads);
}

// Each read of a Var that was written takes a group, and more of them than a magazine holds are taken at once.
TEST_P(PlanCountersTest, ARunThatReadsManyVarsAllocatesNothingAfterWarmUp) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer allocates by itself";
  const auto [workers, policy] = GetParam();
  Engine eng(Quiet(workers));
  std::vector<Var> vars;
  for (int i = 0; i < 100; ++i) vars.push_back(eng.NewVar());
  const Var sum = eng.NewVar();
  int written = 0, read = 0;
  Graph writes, graph;
  writes.Add({.name = "writes all", .writes = vars}, [&] { ++written; });
  graph.Add({.name = "reads all", .reads = vars, .updates = {sum}}, [&] { read += written; });
  graph.Add({.name = "reads forty", .reads = std::span(vars).first(40), .updates = {sum}}, [&] { read += written; });
  const Plan write = writes.Compile(eng), plan = graph.Compile(eng);
  const auto runs = [&, p = policy](int count) {
    for (int i = 0; i < count; ++i) {
      write.Start({}, {.policy = p});
      plan.Start({}, {.policy = p});
      eng.Push({.name = "reads some", .reads = std::span(vars).first(5), .updates = {sum}}, [&] { read += written; });
      if (i % 4 == 3) eng.Wait(sum);
    }
    eng.Wait(sum);
  };
  ExpectNoAllocations(eng, runs);
  EXPECT_EQ(read, 3 * written * (written + 1) / 2);
}

}  // namespace
}  // namespace engine::test
