// Run: plans and runs in Python.
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
  mutable uint64_t shape = 0;  // shape class of the last run's arguments under cost_model; the GIL guards it
};

// A run in flight. Its array of times must outlive it, so dropping a run that has one waits for the run.
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
    } catch (...) {  // whoever waits for what the run wrote gets the error
    }
  }
};

// Vars for the outputs of a plan's run, and afterwards the Values that have them.
std::vector<engine::Var> OutputVars(const engine::Graph& graph, EngineState& state);
nanobind::object OutputValues(std::vector<engine::Var> vars, nanobind::handle run,
                              const std::weak_ptr<EngineState>& engine);

// Calls `f`, and raises in Python what it throws.
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
