// Taskflow's dynamic tasks: silent_dependent_async, with the edges found by hand.
// Threads:   the executor's workers; the pushing thread is not one of them.
#include <taskflow/taskflow.hpp>

#include <mutex>
#include <vector>

#include "hand_deps.h"
#include "runner.h"

namespace {

using namespace perf;

class TaskflowDynamic {
 public:
  explicit TaskflowDynamic(const Config& config) : executor_(static_cast<std::size_t>(config.workers)) {}

  std::string WhyNot(std::string_view) const { return {}; }

  void Push(const Free&) { executor_.silent_async(Body); }
  template <class AnyOp>
  void Push(const AnyOp& op) {
    Submit(op, Body);
  }
  // Threads that share Vars must find the edges and submit under one lock, because they read and replace the last
  // writer.
  template <class AnyOp>
  void PushShared(const AnyOp& op) {
    const std::scoped_lock lock(mutex_);
    Submit(op, Body);
  }
  void PushBlocked(VarId v, Gate& gate) {
    Submit(Writer{{}, {v}}, [&gate] { gate.wait(); });
  }
  void WaitAll() { executor_.wait_for_all(); }
  void Wait(VarId) { executor_.wait_for_all(); }

 private:
  template <class AnyOp, class F>
  void Submit(const AnyOp& op, F&& body) {
    thread_local std::vector<tf::AsyncTask> before;
    before.clear();
    deps_.Collect(op, before);
    deps_.Record(op, executor_.silent_dependent_async(body, before.begin(), before.end()));
  }

  tf::Executor executor_;
  HandDeps<tf::AsyncTask> deps_;
  std::mutex mutex_;
};

}  // namespace

int main(int argc, char** argv) { return perf::Main<TaskflowDynamic>(argc, argv); }
