// Handle: what Python has of an engine and of a Var.
//
// Ownership: Python's Engine objects share one EngineState; when the last one goes, the engine is shut down. A Var has
//            only a weak reference to its engine, so that a forgotten Var does not keep threads alive.
// Threads:   the GIL guards the fields of EngineState; the engine guards itself.
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "byte_bound.h"
#include "engine/engine.h"

namespace engine_python {

// A wait by a helper thread for the main thread, which looks for signals meanwhile. `mutex` guards the rest; when `done`, the
// helper does not touch it any more.
struct HelpedWait {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::exception_ptr thrown;
};

struct EngineState {
  EngineState(engine::EngineOptions options, uint64_t max_pending_bytes)
      : engine(std::move(options)), bytes(std::make_shared<ByteBound>(max_pending_bytes)) {}
  engine::Engine engine;
  bool caller_runs = false;  // a policy under which pushes run ops may be in force, so pushes give the GIL up
  bool shut_down = false;
  std::shared_ptr<ByteBound> bytes;  // of pending calls of ops
  // Each wait_all that a signal handler ended by raising (Ctrl-C): its helper may take an error from the engine, which is the
  // next wait_all's to raise.
  std::vector<std::shared_ptr<HelpedWait>> abandoned;
};
using StatePtr = std::shared_ptr<EngineState>;

struct PyEngine {
  StatePtr state;
};

struct PyVar {
  engine::Var var;
  std::weak_ptr<EngineState> engine;
};

// Makes an engine without the GIL. Its destruction gives the GIL up, too.
StatePtr NewState(engine::EngineOptions options, uint64_t max_pending_bytes = 0);
// The engine of the module's functions. It is made with EngineOptions::FromEnv on first use.
StatePtr DefaultState();
bool HasDefaultState();
void SetDefaultState(StatePtr state);
// The state of an Engine; for None that of the default one. Otherwise TypeError that begins with `what`.
StatePtr StateOf(nanobind::handle engine, const char* what);
// All engines that are alive. For exit.
std::vector<StatePtr> LiveStates();
// In the child of a fork: calls that the parent has pending do not count, because they never end here.
void ForgetPendingCalls();

// The Var of `object`, which is a Var or has one as its `var` (a Value); null for anything else.
nanobind::object FindVar(nanobind::handle object);
// As FindVar, but raises TypeError, which begins with what(), if there is no Var.
[[noreturn]] void RaiseNoVar(nanobind::handle object, const std::string& what);
template <class What>
PyVar VarOf(nanobind::handle object, What&& what) {
  nanobind::object found = FindVar(object);
  if (!found.is_valid()) RaiseNoVar(object, what());
  return *nanobind::inst_ptr<PyVar>(found);
}
// ShutdownError: the engine of `what` is gone.
[[noreturn]] void RaiseNoEngine(const std::string& what);
// The engine of a Var; ShutdownError if that engine is gone.
StatePtr EngineOf(const PyVar& var);

}  // namespace engine_python
