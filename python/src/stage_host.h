// PythonHost: what stages of Python programs do around their waits, and the threads on which their sources run.
//
// Producers are daemon threads that Python makes, so that a producer that is stuck in its source cannot keep the
// interpreter from ending. They hold the GIL except where they wait. Each engine.data.Stage and SmartStage has a host.
//
// Threads:   all, with the GIL held, which guards the fields.
// Ownership: the stage and its producers share the host; `cancel` belongs to the Python object that has the stage.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <string>

#include "engine/spi/stage_host.h"
#include "engine/stage.h"
#include "failure.h"
#include "policy.h"

namespace engine_python {

class PythonHost final : public engine::StageHost, public std::enable_shared_from_this<PythonHost> {
 public:
  // `engine`, whose device lanes the options name, is kept alive.
  static std::shared_ptr<PythonHost> Make(nanobind::handle engine);

  void Spawn(const std::string& name, std::function<void()> produce) override;
  void Await(const Attempt& attempt) override;
  void Take(const Attempt& attempt) override;

  // Ends the stage when the interpreter ends; empty: the stage is gone.
  std::function<void()> cancel;

 private:
  friend void CancelStages();
  friend void ForgetProducers();

  PyRef engine_;
  CarriedContext carried_;  // of whoever made the stage: each producer begins in a copy
  int producers_ = 0;       // how many are inside their loops
};

// Somebody pressed Ctrl-C while a stage waited.
struct PyGivenUp final : engine::WaitGivenUp {
  explicit PyGivenUp(PyFailure raised) : failure(std::move(raised)) {}
  PyFailure failure;
};

// StageOptions from the options of engine.data.staged, by name.
engine::StageOptions StageOptionsOf(const nanobind::dict& given, std::shared_ptr<PythonHost> host);
nanobind::dict StatsOf(const engine::StageStats& stats);
// A filter that is true for exceptions of the classes in the tuple `types`.
engine::ExceptionFilter FilterOf(nanobind::handle types);

// Calls a Python function of the source with one argument or none, and returns a new reference. An exception is thrown
// as PyFailure. While the interpreter ends, the call may never return.
PyObject* CallSource(const PyRef& function, PyObject* argument = nullptr);
// An item that takes over a reference to `object`.
engine::StageItem ItemOf(PyObject* object, bool sized);

// Raises in Python what a call of the stage threw; an exception of the source as a copy with a note. `label`: "stage
// 'x': ".
[[noreturn]] void RaiseOf(const std::string& label, const std::exception_ptr& thrown);
template <class Label, class F>
auto Raising(Label&& label, F&& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const nanobind::python_error&) {
    throw;
  } catch (...) {
    RaiseOf(label(), std::current_exception());
  }
}

// Called at exit, after the engines have ended: cancels every stage, and waits a while for producers to leave their
// sources.
void CancelStages();
// Called in a fork's child: the producers stayed in the parent.
void ForgetProducers();

}  // namespace engine_python
