// StagePool: limits how many producers run at once, over all stages that share it; and has their intra-op arena.
//
// A pool has seats, not threads: each stage has its own threads, and a thread has a seat from Begin until its item is
// finished. A producer that waits for room, or takes from another stage, gives its seat up meanwhile, so that stages
// that feed each other on one pool cannot starve each other.
//
// Threads:   every method may be called on any thread. Ownership: pools live as long as the process; their stages share
//            them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/intra_op.h"
#include "base/sync.h"
#include "engine/spi/staging_area.h"

namespace engine::detail {

class StagePool {
 public:
  explicit StagePool(StagePoolOptions options)
      : options_(std::move(options)), intra_op_(options_.intra_op_threads_num) {}

  // Takes a seat for the calling thread. Returns false if `give_up()` is true, or if no seat is free and `wait` is
  // false.
  bool Enter(bool wait, const std::function<bool()>& give_up);
  void Leave();
  // Makes the waiting threads call their `give_up` again.
  void Nudge();
  void ParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body);
  const StagePoolOptions& options() const { return options_; }

  // The pool in which the calling thread has a seat; null: none.
  static StagePool* Current();

  // Gives up the calling thread's seat, which it has had since Begin, while the thread waits for something else.
  class Lend {
   public:
    Lend() = default;
    void Begin() {
      pool_ = Current();
      if (pool_) pool_->Leave();
    }
    ~Lend() {
      if (pool_) pool_->Enter(true, [] { return false; });
    }
    Lend(const Lend&) = delete;

   private:
    StagePool* pool_ = nullptr;
  };

 private:
  const StagePoolOptions options_;
  Mutex mu_;
  CondVar changed_;
  int taken_ GUARDED_BY(mu_) = 0;
  int waiting_ GUARDED_BY(mu_) = 0;
  IntraOp intra_op_;
};

// The pool of a handle that is not empty. In a fork's child the pool is the child's own.
std::shared_ptr<StagePool> FindStagePool(engine::StagePool handle);

// Changes in a fork's child. What was made under another number has lost its threads.
uint32_t ForkGeneration();

}  // namespace engine::detail
