// Handle: what Python holds of an engine and of a Var.
//
// Ownership: Engine objects of Python share one EngineState; the last to go shuts the engine down. A Var knows its
//            engine weakly, so that a forgotten Var doesn't keep threads alive.
// Threads:   the GIL guards the fields of EngineState; the engine guards itself.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace engine_python {

struct EngineState {
  explicit EngineState(engine::EngineOptions options) : engine(std::move(options)) {}
  engine::Engine engine;
  bool caller_runs = false;  // a policy under which pushes run ops may be in force: they give the GIL up
  bool shut_down = false;
  // Errors that an abandoned wait_all (Ctrl-C) took from the engine after its caller had left.
  std::vector<std::exception_ptr> orphans;
};
using StatePtr = std::shared_ptr<EngineState>;

struct PyEngine {
  StatePtr state;
};

struct PyVar {
  engine::Var var;
  std::weak_ptr<EngineState> engine;
};

// Makes an engine, with the GIL given up; destroying it gives the GIL up as well.
StatePtr NewState(engine::EngineOptions options);
// The engine behind the module's functions, made with EngineOptions::FromEnv on first use.
StatePtr DefaultState();
bool HasDefaultState();
void SetDefaultState(StatePtr state);
// Of an Engine, or of the default one for None; TypeError that begins with `what` otherwise.
StatePtr StateOf(nanobind::handle engine, const char* what);
// Every engine that is alive; for exit.
std::vector<StatePtr> LiveStates();

// The Var of `object`: a Var, or what has one as its `var` (a Value); null otherwise.
nanobind::object FindVar(nanobind::handle object);
// As FindVar; raises TypeError that begins with what() where there is none.
[[noreturn]] void RaiseNoVar(nanobind::handle object, const std::string& what);
template <class What>
PyVar VarOf(nanobind::handle object, What&& what) {
  nanobind::object found = FindVar(object);
  if (!found.is_valid()) RaiseNoVar(object, what());
  return *nanobind::inst_ptr<PyVar>(found);
}
// The engine of a Var; ShutdownError if it is gone.
StatePtr EngineOf(const PyVar& var);

}  // namespace engine_python
