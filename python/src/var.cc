// The binding of Var.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "failure.h"
#include "handle.h"
#include "push.h"
#include "site.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

PyVar NewVar(nb::handle name, nb::handle engine) {
  const std::string text = name.is_none() ? std::string() : Text(name, "Var: name");
  const StatePtr state = StateOf(engine, "Var");
  try {
    return {state->engine.NewVar(KeptName(text).c_str()), state};
  } catch (...) {
    Raise(std::current_exception());
  }
}

}  // namespace

void BindVar(nb::module_& m) {
  nb::class_<PyVar>(m, "Var", nb::is_weak_referenceable(),
                    "What ops are ordered by: a name for some data, which the Var does not contain. When its last\n"
                    "reference goes, the variable ends behind the ops that are pending on it. Any thread may use it.")
      .def(
          "__init__", [](PyVar* self, nb::handle name, nb::handle engine) { new (self) PyVar(NewVar(name, engine)); },
          nb::arg("name") = nb::none(), nb::arg("engine") = nb::none(),
          nb::sig("def __init__(self, name: str | None = None, engine: Engine | None = None) -> None"))
      .def_prop_ro(
          "name", [](const PyVar& self) { return std::string(self.var.name()); }, "What messages call it.")
      .def_prop_ro(
          "version",
          [](const PyVar& self) {
            if (recording) RefuseWhileRecording("a look at a version", CallerSite());
            return self.var.version();
          },
          "How many writes have completed; failed and skipped ones count too.")
      .def_prop_ro(
          "engine", [](const PyVar& self) { return PyEngine{EngineOf(self)}; },
          "The engine of the Var. ShutdownError if that engine is gone.")
      .def(
          "wait", [](const PyVar& self, nb::handle timeout) { return WaitVar(self, TimeoutOf(timeout)); },
          nb::arg("timeout") = nb::none(), nb::sig("def wait(self, timeout: float | None = None) -> bool"),
          "Waits until every write of this Var that was pushed so far has ended; False after `timeout` seconds.\n"
          "Gives the GIL up; Ctrl-C interrupts it. Raises, at every call, what the failed op raised, with a\n"
          "note that says which op it was and where it was pushed. Inside an op, a wait for a Var of that op is\n"
          "refused (UsageError).")
      .def(
          "delete",
          [](const PyVar& self) {
            try {
              engine::Var var = self.var;
              EngineOf(self)->engine.Delete(var, CallerSite());
            } catch (...) {
              Raise(std::current_exception());
            }
          },
          "Ends the variable behind the ops that are pending on it; every later use of it is refused (UsageError).")
      .def(
          "wait_to_write", [](const PyVar& self) { WaitToWrite(self); },
          "Waits for the writers and the readers: afterwards the caller may reuse what the Var stands for.")
      .def_prop_ro(
          "settled", [](const PyVar& self) { return Settled(self); },
          "Whether every write of this Var that was pushed so far has ended. Does not wait.")
      .def(
          "_outcome", [](const PyVar& self, nb::handle timeout) { return Outcome(self, TimeoutOf(timeout)); },
          nb::arg("timeout") = nb::none(),
          nb::sig("def _outcome(self, timeout: float | None = None) -> tuple[bool, BaseException | None]"),
          "As wait, but returns the error instead of raising it: (in time, error).")
      .def(
          "__await__",
          [](nb::handle self) { return nb::module_::import_("engine.aio").attr("of_var")(self).attr("__await__")(); },
          nb::sig("def __await__(self) -> Generator[object, None, None]"), "Waits as `wait` does, in a coroutine.")
      .def(
          "__eq__",
          [](const PyVar& self, nb::handle other) {
            return nb::isinstance<PyVar>(other) && nb::inst_ptr<PyVar>(other)->var == self.var;
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object) -> bool"))
      .def("__hash__",
           [](const PyVar& self) { return static_cast<Py_hash_t>(reinterpret_cast<uintptr_t>(self.var.core()) >> 4); })
      .def("__repr__", [](const PyVar& self) {
        return std::string("Var('") + self.var.name() + "', version=" + std::to_string(self.var.version()) + ")";
      });
}

}  // namespace engine_python
