// oneTBB task_group: independent tasks only.
// Threads:   an arena with one slot for the pushing thread, which also runs tasks while it waits.
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>

#include "runner.h"

namespace {

using namespace perf;

class TbbTaskGroup {
 public:
  explicit TbbTaskGroup(const Config& config)
      : threads_(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(config.Team())),
        arena_(config.Team(), 1) {}

  std::string WhyNot(std::string_view name) const {
    if (name == kIndependent || name == kRoundtripWarm || name == kRoundtripCold) return {};
    return "task_group knows no order between tasks";
  }

  template <class F>
  void Session(F&& body) {
    arena_.execute(body);
  }
  template <class AnyOp>
  void Push(const AnyOp&) {
    group_.run(Body);
  }
  void PushBlocked(VarId, Gate& gate) {
    group_.run([&gate] { gate.wait(); });
  }
  void WaitAll() { group_.wait(); }
  void Wait(VarId) { group_.wait(); }

 private:
  tbb::global_control threads_;
  tbb::task_arena arena_;
  tbb::task_group group_;
};

}  // namespace

int main(int argc, char** argv) { return perf::Main<TbbTaskGroup>(argc, argv); }
