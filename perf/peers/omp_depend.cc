// OpenMP tasks with depend clauses; built twice, against libgomp (g++) and against libomp (clang++).
// Threads:   a team, one of which pushes and helps when it waits.
// Order:     the runtime finds the dependencies, among the tasks of one parent only.
#include <omp.h>

#include "runner.h"

namespace {

using namespace perf;

class OmpDepend {
 public:
  explicit OmpDepend(const Config& config) : team_(config.Team()), workers_(config.workers) { omp_set_dynamic(0); }

  std::string WhyNot(std::string_view name) const {
    if (name == kOverlap) return "depend orders only siblings: tasks of two pushing threads never see each other";
    return {};
  }

  template <class F>
  void Session(F&& body) {
#pragma omp parallel num_threads(team_)
#pragma omp single
    body();
  }

  // The threads that push are members of the team, because no other thread can push.
  template <class F>
  Answer Pushers(int k, std::size_t n, F&& push_share) {
    Answer answer;
#pragma omp parallel num_threads(k + workers_)
    {
      const int id = omp_get_thread_num();
#pragma omp barrier
      const Meter meter;
      if (id < k) push_share(id);
#pragma omp barrier  // also completes all tasks of the team
      if (id == 0) answer = meter.Stop(n);
    }
    return answer;
  }

  // A clause cannot name a member, hence `v`; g++ does not count a clause as a use.
  void Push(const Free&) {
#pragma omp task
    Body();
  }
  void Push(const Writer& op) {
    [[maybe_unused]] char* v = vars_;
    const VarId w = op.updates[0];
#pragma omp task depend(inout : v[w])
    Body();
  }
  void Push(const Reader& op) {
    [[maybe_unused]] char* v = vars_;
    const VarId r = op.reads[0];
#pragma omp task depend(in : v[r])
    Body();
  }
  void Push(const DagOp& op) {
    [[maybe_unused]] char* v = vars_;
    const VarId a = op.reads[0], b = op.reads[1], w = op.updates[0];
#pragma omp task depend(in : v[a], v[b]) depend(inout : v[w])
    Body();
  }
  void PushBlocked(VarId w, Gate& gate) {
    [[maybe_unused]] char* v = vars_;
    Gate* held = &gate;
#pragma omp task depend(inout : v[w]) firstprivate(held)
    held->wait();
  }

  void WaitAll() {
#pragma omp taskwait
  }
  void Wait(VarId) { WaitAll(); }

#ifndef __clang__
  // Beyond 64 tasks for each thread libgomp stops deferring: the push itself waits for the task's dependencies, and
  // here that is for ever.
  std::size_t MaxPending() const { return 32 * static_cast<std::size_t>(team_); }
#endif

 private:
  int team_;
  int workers_;
  char vars_[kAllVars] = {};
};

}  // namespace

int main(int argc, char** argv) { return Main<OmpDepend>(argc, argv); }
