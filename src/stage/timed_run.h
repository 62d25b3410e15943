// TimedRun: what a run writes its nodes' times to, for as long as it runs: whoever waits for it may be refused the wait, or
// interrupted.
//
// Threads:   one.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/plan.h"

namespace engine::detail {

class TimedRun {
 public:
  TimedRun(Engine& eng, size_t nodes) : eng_(eng), times_(std::make_unique<std::vector<NodeTime>>(nodes)) {}
  ~TimedRun() {
    if (!run_ || run_->done()) return;
    std::vector<NodeTime>* const kept = times_.release();
    try {
      // An Operator, because the caller's bulk or capture must not take this op.
      eng_.Push(eng_.NewOperator({.name = "times of a step", .reads = {run_->var()}, .run_always = true},
                                 [kept] { delete kept; }));
    } catch (...) {  // no memory, or no more pushes: they stay, because the run writes them
    }
  }
  TimedRun(const TimedRun&) = delete;
  void Of(engine::Run& run) { run_ = &run; }
  std::span<NodeTime> times() { return *times_; }

 private:
  Engine& eng_;
  std::unique_ptr<std::vector<NodeTime>> times_;
  engine::Run* run_ = nullptr;
};

}  // namespace engine::detail
