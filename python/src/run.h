// Run: plans and runs as Python holds them.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/plan.h"
#include "failure.h"
#include "gil.h"
#include "handle.h"

namespace engine_python {

struct PyPlan {
  engine::Plan plan;
  std::weak_ptr<EngineState> engine;
  mutable uint64_t shape = 0;  // class of the last run's arguments under cost_model; guarded by the GIL
};

// A run in flight. The times that it fills must outlive it, so that dropping one that has them waits.
struct PyRun {
  engine::Run run;
  std::weak_ptr<EngineState> engine;
  std::vector<engine::NodeTime> times;
  PyRun() = default;
  PyRun(PyRun&&) = default;
  ~PyRun() {
    if (times.empty() || run.done()) return;
    try {
      WithoutGil([&] { run.Wait(); });
    } catch (...) {  // said by whoever waits for what it wrote
    }
  }
};

// `f`, with what it throws raised in Python.
template <class F>
auto Translated(F&& f) {
  try {
    return f();
  } catch (const nanobind::python_error&) {
    throw;
  } catch (...) {
    Raise(std::current_exception());
  }
}

}  // namespace engine_python
