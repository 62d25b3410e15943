// IntraOp: a oneTBB arena. A pool of the engine has one for RunContext::ParallelFor, a stage pool for StageParallelFor.
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

// In the child of a fork: oneTBB's threads are gone, if there were any. UseTbb (engine/op.h) says so from then on.
void LoseTbb() noexcept;

}  // namespace engine::detail
