// IntraOp: a oneTBB arena. Each pool of an engine has one for RunContext::ParallelFor, each stage pool for
// StageParallelFor.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace engine::detail {

class IntraOp {
 public:
  explicit IntraOp(int threads);
  ~IntraOp();
  // Isolated: a thread that waits here for its pieces starts no other work meanwhile.
  void For(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body);

 private:
  struct Arena;
  std::unique_ptr<Arena> arena_;
};

// Called in a fork's child: if oneTBB had threads, they stayed in the parent. UseTbb (engine/op.h) is false from then
// on.
void LoseTbb() noexcept;

}  // namespace engine::detail
