#include "intra_op.h"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>

namespace engine::detail {

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
