// PythonHost: what stages of Python programs do around their waits, and where their sources run.
//
// Producers are daemon threads of Python's own, so that one which is stuck in its source cannot keep the interpreter from
// ending. They hold the GIL but where they wait. One host for each engine.data.Stage and SmartStage.
//
// Threads:   all with the GIL held; it guards the fields but `taken_`.
// Ownership: the stage and its producers share it; `cancel` is the Python object's that has the stage.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "engine/spi/stage_host.h"
#include "engine/stage.h"
#include "failure.h"

namespace engine_python {

class PythonHost final : public engine::StageHost, public std::enable_shared_from_this<PythonHost> {
 public:
  // `engine`: whose device lane the options name, kept alive.
  static std::shared_ptr<PythonHost> Make(nanobind::handle engine);

  void Spawn(const std::string& name, std::function<void()> produce) override;
  void Await(const Attempt& attempt) override;
  void Take(const Attempt& attempt) override;
  bool Put(const std::function<bool()>& put) override;

  // What ends the stage when the interpreter ends; empty: it has gone.
  std::function<void()> cancel;

 private:
  friend void CancelStages();
  friend void ForgetProducers();
  void LetTakerRun(uint32_t before);
  void MindTakers(uint32_t before);

  PyRef engine_;
  int producers_ = 0;  // inside their loops
  int takers_ = 0;     // that sleep in Take
  std::chrono::steady_clock::time_point taking_since_{};
  bool fresh_ = true;                                    // nothing was put yet
  std::chrono::steady_clock::time_point woken_since_{};  // taking_since_ of the consumer for whom the last item was put
  int hand_overs_ = 0;  // of the GIL, before it is asked anew whether the source keeps it
  // Takes that have ended. release, with the acquire in LetTakerRun: nothing but the order of the two.
  std::atomic<uint32_t> taken_{0};
};

// Ctrl-C while a stage waited.
struct PyGivenUp final : engine::WaitGivenUp {
  explicit PyGivenUp(PyFailure raised) : failure(std::move(raised)) {}
  PyFailure failure;
};

// Fields of StageOptions, by the names of engine.data.staged's options.
engine::StageOptions StageOptionsOf(const nanobind::dict& given, std::shared_ptr<PythonHost> host);
nanobind::dict StatsOf(const engine::StageStats& stats);
// True for exceptions of the classes in the tuple `types`.
engine::ExceptionFilter FilterOf(nanobind::handle types);

// Calls a Python function of the source, with one argument or none; the result is a new reference. What it raises is thrown
// as PyFailure; at the end of the interpreter it may not come back.
PyObject* CallSource(const PyRef& function, PyObject* argument = nullptr);
// An item that holds a reference to `object`, which it takes over.
engine::StageItem ItemOf(PyObject* object, bool sized);

// Raises in Python what a call of the stage threw; what its source raised comes as a copy of its own with a note.
// `label`: "stage 'x': ".
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

// At exit, after the engines have ended: cancels every stage and waits a while for producers to leave their sources.
void CancelStages();
// In the child of a fork: producers are the parent's.
void ForgetProducers();

}  // namespace engine_python
