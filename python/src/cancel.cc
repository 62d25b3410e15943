#include "cancel.h"

#include "failure.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// The open scopes as a tuple, the innermost last. It is a context variable and not a thread-local, because tasks of one
// event loop open and close their scopes in any order.
PyObject* open_scopes = nullptr;

nb::tuple OpenScopes() {
  PyObject* value = nullptr;
  if (PyContextVar_Get(open_scopes, nullptr, &value) < 0) throw nb::python_error();
  return value ? nb::steal<nb::tuple>(value) : nb::tuple();
}

void SetOpenScopes(nb::handle scopes) {
  nb::object token = nb::steal(PyContextVar_Set(open_scopes, scopes.ptr()));
  if (!token.is_valid()) throw nb::python_error();
}

}  // namespace

nb::object ScopeFor(nb::handle given, const Where& at) {
  if (given.is_none()) {
    nb::tuple scopes = OpenScopes();
    return scopes.size() ? nb::object(scopes[scopes.size() - 1]) : nb::object();
  }
  if (!nb::isinstance<engine::CancelScope>(given)) {
    RaiseTypeError(at.Text() + "cancel is a " + Py_TYPE(given.ptr())->tp_name + "; a CancelScope is expected");
  }
  return nb::borrow(given);
}

void CloseScopes() {
  if (OpenScopes().size()) SetOpenScopes(nb::tuple());
}

void BindCancel(nb::module_& m) {
  open_scopes = PyContextVar_New("engine.cancel_scopes", nullptr);
  nb::class_<engine::CancelScope>(
      m, "CancelScope",
      "Ops that are pushed inside `with scope:` (or with cancel=scope) are skipped if they have not started\n"
      "when cancel() is called. Waits for what they would have written raise CancelledError. Any thread may\n"
      "cancel.")
      .def(nb::init<>())
      .def("cancel", &engine::CancelScope::Cancel,
           "Skips the ops of the scope that have not started. Cannot be undone.")
      .def("__repr__",
           [](const engine::CancelScope& self) {
             return self.cancelled() ? "<engine.CancelScope: cancelled>" : "<engine.CancelScope: open>";
           })
      .def_prop_ro("cancelled", &engine::CancelScope::cancelled, "True after cancel().")
      .def(
          "__enter__",
          [](nb::object self) {
            SetOpenScopes(OpenScopes() + nb::make_tuple(self));
            return self;
          },
          nb::sig("def __enter__(self) -> CancelScope"))
      .def(
          "__exit__",
          [](nb::handle, nb::args) {
            nb::tuple scopes = OpenScopes();
            SetOpenScopes(nb::steal(PyTuple_GetSlice(scopes.ptr(), 0, PyTuple_GET_SIZE(scopes.ptr()) - 1)));
          },
          nb::sig("def __exit__(self, *exc: object) -> None"));
}

}  // namespace engine_python
