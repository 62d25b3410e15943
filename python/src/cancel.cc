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
    RaiseTypeError(at.Text() + "cancel is " + ATypeOf(given.ptr()) + "; a CancelScope is expected");
  }
  return nb::borrow(given);
}

void CloseScopes() {
  if (OpenScopes().size()) SetOpenScopes(nb::tuple());
}

nb::object ExchangeScopes(nb::object scopes) {
  nb::tuple before = OpenScopes();
  SetOpenScopes(scopes);
  return before;
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
          // Its own, wherever it is: a generator may be closed inside of a scope that was opened behind its own.
          [](nb::handle self, nb::args) {
            nb::tuple scopes = OpenScopes();
            const auto size = static_cast<Py_ssize_t>(nb::len(scopes));
            Py_ssize_t at = size - 1;
            while (at >= 0 && !scopes[static_cast<size_t>(at)].is(self)) --at;
            if (at < 0)
              RaiseError("UsageError",
                         "CancelScope: the block ends in another thread or task than it was entered in, or inside of a "
                         "recording that "
                         "began meanwhile; leave it where it was entered");
            nb::object inner = nb::steal(PyTuple_GetSlice(scopes.ptr(), at + 1, size));
            SetOpenScopes(nb::steal<nb::tuple>(PyTuple_GetSlice(scopes.ptr(), 0, at)) + inner);
          },
          nb::sig("def __exit__(self, *exc: object) -> None"));
}

}  // namespace engine_python
