// TimedRun: what a run writes its nodes' times to, for as long as it runs: whoever waits for it may be refused the wait.
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
  // `run`: it is empty until it has started, and lives longer than this.
  TimedRun(Engine& eng, size_t nodes, const engine::Run& run)
      : eng_(eng), run_(run), times_(std::make_unique<std::vector<NodeTime>>(nodes)) {}
  ~TimedRun() { KeepForRun(); }
  TimedRun(const TimedRun&) = delete;
  std::span<NodeTime> times() { return *times_; }

  // Where the run has not ended: the times go when it has, and this has none any more.
  void KeepForRun() noexcept {
    if (!times_ || !run_ || run_.done()) return;
    std::vector<NodeTime>* const kept = times_.release();
    try {
      // An Operator, because the caller's bulk or capture must not take this op.
      eng_.Push(eng_.NewOperator({.name = "times of a step", .reads = {run_.var()}, .run_always = true},
                                 [kept] { delete kept; }));
    } catch (...) {  // no memory, or no more pushes: they stay, because the run writes them
    }
  }

 private:
  Engine& eng_;
  const engine::Run& run_;
  std::unique_ptr<std::vector<NodeTime>> times_;
};

}  // namespace engine::detail
