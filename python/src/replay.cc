// Replay: the short way of a call of a hybridized function. It starts a run if the arguments are surely those that a recording
// is for. Else it answers None, and the caller takes the long way (engine/graphs.py), which makes another recording or says what
// is wrong. A `Known` (graphs.py) is a tuple of Python's, so that the collector sees through it; it is read by place.
//
// Threads:   the GIL is held.
// Ownership: everything belongs to the tuple, which the caller holds.
#include "arguments.h"
#include "bindings.h"
#include "extent.h"
#include "gil.h"
#include "push.h"
#include "run.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

enum Field : Py_ssize_t { kPlan, kReturned, kTypes, kStates, kValues, kLinks, kFields };

// `given`: gets what the run is given in the argument's place; borrowed.
bool Fits(PyObject* known, Py_ssize_t place, PyObject* argument, PyObject** given) {
  *given = argument;
  PyObject* const state = PyTuple_GET_ITEM(PyTuple_GET_ITEM(known, kStates), place);
  if (state != Py_None) {
    *given = Py_None;  // ops find it by its Var
    return argument == state;
  }
  if (IsValue(argument)) return PyTuple_GET_ITEM(PyTuple_GET_ITEM(known, kValues), place) == Py_True;
  return reinterpret_cast<PyObject*>(Py_TYPE(argument)) == PyTuple_GET_ITEM(PyTuple_GET_ITEM(known, kTypes), place) &&
         !HoldsValues(argument);
}

// Whether what leads to the state that the function uses is what it was. A look-up that fails says no.
bool Hold(PyObject* links) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(links); ++i) {
    PyObject* const link = PyTuple_GET_ITEM(links, i);
    nb::object now = nb::steal(PyObject_CallNoArgs(PyTuple_GET_ITEM(link, 0)));
    if (!now.is_valid()) {
      ForgetError();
      return false;
    }
    if (now.ptr() != PyTuple_GET_ITEM(link, 1)) return false;
  }
  return true;
}

nb::object Replay(nb::tuple known, nb::tuple args, nb::handle owner) {
  PyObject* const types = PyTuple_GET_ITEM(known.ptr(), kTypes);
  const Py_ssize_t n = PyTuple_GET_SIZE(args.ptr());
  if (recording || n != PyTuple_GET_SIZE(types)) return nb::none();
  nb::object inputs = nb::steal(PyTuple_New(n + !owner.is_none()));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* given;
    if (!Fits(known.ptr(), i, PyTuple_GET_ITEM(args.ptr(), i), &given)) return nb::none();
    PyTuple_SET_ITEM(inputs.ptr(), i, Py_NewRef(given));
  }
  if (!owner.is_none()) PyTuple_SET_ITEM(inputs.ptr(), n, Py_NewRef(owner.ptr()));
  if (!Hold(PyTuple_GET_ITEM(known.ptr(), kLinks))) return nb::none();
  const auto& plan = *nb::inst_ptr<PyPlan>(PyTuple_GET_ITEM(known.ptr(), kPlan));
  std::vector<engine::Var> vars;
  nb::object run = nb::cast(StartRun(plan, nb::borrow<nb::sequence>(inputs), {}, &vars));
  return OutputValues(std::move(vars), run, plan.engine);
}

}  // namespace

void BindReplay(nb::module_& m) {
  m.def(
      "_replay", &Replay, nb::arg("known"), nb::arg("args"), nb::arg("owner") = nb::none(),
      nb::sig(
          "def _replay(known: tuple[Any, ...], args: tuple[Any, ...], owner: object = None) -> tuple[Any, ...] | None"),
      "A Value for each output of a run; None: the arguments may be for another recording.");
}

}  // namespace engine_python
