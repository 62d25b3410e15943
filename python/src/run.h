// Run: plans and runs in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
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
  // Its nodes are calls of Python on the thread that runs it, and nothing else orders them: an in-order run never waits, so it
  // may keep the GIL from its first node to its last.
  bool keeps_gil = false;
  bool stateless = false;      // its nodes name no Vars
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
    if (times.empty() || !run || run.done()) return;
    try {
      WithoutGil([&] { run.Wait(); });
    } catch (...) {  // whoever waits for what the run wrote gets the error
    }
    if (!run.done())
      (void)new std::vector(std::move(times));  // the wait was refused, and the run goes on to write them
  }
};

struct RunArguments {
  std::optional<std::string> policy = {};
  std::optional<int> priority = {};
  nanobind::handle cancel = {};  // null or None: the current scope
  std::optional<double> deadline = {};
  bool timed = false;
  std::vector<engine::Var> ready = {};  // by input: a Var that the nodes which take it wait for, or null
};
// Starts a run. `outputs`: gets a Var for each output; null: the run does not wait for Values among its inputs.
PyRun StartRun(const PyPlan& plan, nanobind::sequence inputs, const RunArguments& arguments,
               std::vector<engine::Var>* outputs = nullptr);

// The Vars of a run's outputs, made before it starts; and the Values with these Vars, made when it has started.
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
