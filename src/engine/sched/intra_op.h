// IntraOp: the oneTBB arena of a pool, for RunContext::ParallelFor.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace engine::detail {

class IntraOp {
 public:
  explicit IntraOp(int threads);
  ~IntraOp();
  // Isolated: a thread that waits here for its pieces never picks up unrelated work.
  void For(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body);

 private:
  struct Arena;
  std::unique_ptr<Arena> arena_;
};

}  // namespace engine::detail
