#include "base/intra_op.h"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>

#include "engine/op.h"

namespace engine::detail {

namespace {
// relaxed: handlers of a fork read the first, and the second changes while a child has one thread.
constinit std::atomic<bool> g_tbb_used{false};
constinit std::atomic<bool> g_tbb_lost{false};
}  // namespace

bool UseTbb() noexcept {
  if (g_tbb_lost.load(std::memory_order_relaxed)) return false;
  if (!g_tbb_used.load(std::memory_order_relaxed)) g_tbb_used.store(true, std::memory_order_relaxed);
  return true;
}
void LoseTbb() noexcept { g_tbb_lost.store(g_tbb_used.load(std::memory_order_relaxed), std::memory_order_relaxed); }

struct IntraOp::Arena {
  explicit Arena(int threads) : arena(threads) {}
  oneapi::tbb::task_arena arena;
};

IntraOp::IntraOp(int threads) : arena_(std::make_unique<Arena>(std::max(1, threads))) {}
IntraOp::~IntraOp() = default;

void IntraOp::For(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body) {
  using Range = oneapi::tbb::blocked_range<size_t>;
  arena_->arena.execute([&] {
    oneapi::tbb::this_task_arena::isolate([&] {
      oneapi::tbb::parallel_for(Range(0, n, std::max<size_t>(1, grain)),
                                [&](const Range& r) { body(r.begin(), r.end()); });
    });
  });
}

}  // namespace engine::detail
