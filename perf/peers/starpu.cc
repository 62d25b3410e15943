// StarPU: starpu_task_insert on registered 4-byte variables, default scheduler, no performance models.
// Threads:   `workers` CPU workers of StarPU's own; the pushing thread is not one of them.
// Order:     StarPU's implicit data dependencies.
#include <starpu.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "runner.h"

namespace {

using namespace perf;

void RunEmpty(void**, void*) { Body(); }
void RunBlocked(void**, void* gate) { static_cast<Gate*>(gate)->wait(); }

starpu_codelet MakeCodelet(starpu_cpu_func_t function) {
  starpu_codelet codelet;
  starpu_codelet_init(&codelet);
  codelet.cpu_funcs[0] = function;
  codelet.nbuffers = STARPU_VARIABLE_NBUFFERS;
  return codelet;
}

class StarPu {
 public:
  explicit StarPu(const Config& config) : empty_(MakeCodelet(RunEmpty)), blocked_(MakeCodelet(RunBlocked)) {
    setenv("STARPU_SILENT", "1", 1);
    setenv("STARPU_NCPU", std::to_string(config.workers).c_str(), 1);
    if (starpu_init(nullptr) != 0) throw std::runtime_error("starpu_init failed");
    values_.resize(kAllVars);
    handles_.resize(kAllVars);
    for (VarId v = 0; v < kAllVars; ++v) {
      starpu_variable_data_register(&handles_[v], STARPU_MAIN_RAM, reinterpret_cast<uintptr_t>(&values_[v]),
                                    sizeof(values_[v]));
    }
  }
  ~StarPu() {
    for (starpu_data_handle_t handle : handles_) starpu_data_unregister(handle);
    starpu_shutdown();
  }
  StarPu(const StarPu&) = delete;
  StarPu& operator=(const StarPu&) = delete;

  std::string WhyNot(std::string_view name) const {
    // Seen in most runs of 200,000 ops: all submitting threads have returned, no task is ready, and the wait never
    // ends.
    if (name == kOverlap) return "pushes of overlapping sets from several threads deadlock in StarPU";
    return {};
  }

  void Push(const Free&) { starpu_task_insert(&empty_, 0); }
  void Push(const Writer& op) { starpu_task_insert(&empty_, STARPU_RW, handles_[op.updates[0]], 0); }
  void Push(const Reader& op) { starpu_task_insert(&empty_, STARPU_R, handles_[op.reads[0]], 0); }
  void Push(const DagOp& op) {
    starpu_task_insert(&empty_, STARPU_R, handles_[op.reads[0]], STARPU_R, handles_[op.reads[1]], STARPU_RW,
                       handles_[op.updates[0]], 0);
  }
  void PushBlocked(VarId v, Gate& gate) {
    // The pointer itself is passed by value, because StarPU packs the argument and gives the body a buffer.
    starpu_task_insert(&blocked_, STARPU_RW, handles_[v], STARPU_CL_ARGS_NFREE, &gate, sizeof(&gate), 0);
  }
  void WaitAll() { starpu_task_wait_for_all(); }
  void Wait(VarId v) {
    starpu_data_acquire(handles_[v], STARPU_R);
    starpu_data_release(handles_[v]);
  }

 private:
  starpu_codelet empty_;
  starpu_codelet blocked_;
  std::vector<int> values_;
  std::vector<starpu_data_handle_t> handles_;
};

}  // namespace

int main(int argc, char** argv) { return perf::Main<StarPu>(argc, argv); }
