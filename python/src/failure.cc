#include "failure.h"

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "body.h"
#include "engine/device/device.h"
#include "engine/error.h"
#include "gil.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// A KeyboardInterrupt ended a body on the main thread, and no call has raised it yet. The GIL guards it.
bool interrupted = false;
PyObject* errors = nullptr;  // never dropped, because it is needed until the very end of the process

nb::object ErrorClass(const char* name) { return nb::handle(errors).attr(name); }

// "ValueError: text (body.py:3 in load)". Never fails.
std::string Describe(PyObject* exception) {
  nb::object text = nb::steal(PyObject_CallMethod(errors, "describe", "O", exception));
  const char* utf8 = text.is_valid() ? PyUnicode_AsUTF8(text.ptr()) : nullptr;
  if (utf8) return utf8;
  ForgetError();
  return Py_TYPE(exception)->tp_name;
}

// The exception as the engine keeps it: a copy without the frames' locals (errors.py).
PyRef Kept(PyObject* raised) {
  PyObject* kept = PyObject_CallMethod(errors, "kept", "O", raised);
  if (kept) return PyRef::Steal(kept);
  ForgetError();
  return PyRef::Borrow(raised);
}

// The text of an exception; one of a C++ body may have none.
const char* TextOf(const std::exception& error) {
  const char* const text = error.what();
  return text ? text : "a C++ exception without a text";
}

nb::object PathOf(const engine::OpError& error) {
  nb::list path;
  for (const auto& hop : error.path()) {
    path.append(nb::make_tuple(hop.op.c_str(), hop.site.file, hop.site.line));
  }
  return path;
}

// The class of engine.errors for an exception that the engine made itself; "OpError" for one of a C++ body.
const char* ClassNameOf(const std::exception& error) {
#define ENGINE_NAME_ERROR(Class, ...) \
  if (dynamic_cast<const engine::Class*>(&error)) return #Class;
  ENGINE_ERRORS(ENGINE_NAME_ERROR)
#undef ENGINE_NAME_ERROR
  return dynamic_cast<const engine::Error*>(&error) ? "Error" : "OpError";
}

nb::object FromOpError(const engine::OpError& error) {
  const nb::object path = PathOf(error);
  const char* name = "OpError";
  std::string text = TextOf(error);
  try {
    if (error.cause()) std::rethrow_exception(error.cause());
  } catch (const PyFailure& failure) {
    return nb::handle(errors).attr("at_wait")(nb::handle(failure.get()), error.op().c_str(), error.site().file,
                                              error.site().line, path);
  } catch (const std::exception& cause) {
    name = ClassNameOf(cause);
    text = TextOf(cause);
  } catch (...) {
    text = "an exception that is no std::exception";
  }
  return nb::handle(errors).attr("from_engine")(ErrorClass(name), text.c_str(), error.op().c_str(), error.site().file,
                                                error.site().line, path);
}

nb::object Convert(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const engine::OpError& error) {
    return FromOpError(error);
  } catch (const PyFailure& failure) {
    return nb::borrow(failure.get());
  } catch (nb::python_error& error) {
    return nb::borrow(error.value());
  } catch (const std::bad_alloc&) {
    return nb::handle(PyExc_MemoryError)();
  } catch (const std::exception& error) {
    return ErrorClass(ClassNameOf(error))(TextOf(error));
  } catch (...) {
    return ErrorClass("Error")("an exception that is no std::exception");
  }
}

[[noreturn]] void RaiseObject(const nb::object& exception) {
  if (PyErr_GivenExceptionMatches(exception.ptr(), PyExc_KeyboardInterrupt) && WaitsForSignals()) interrupted = false;
  // This also takes over the exception's own traceback, and chains the exception that is being handled as its context.
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

}  // namespace

PyObject* LightTraceback(PyObject* traceback) {
  std::vector<nb::object> entries;
  for (nb::object at = nb::borrow(traceback); at.is_valid() && !at.is_none(); at = at.attr("tb_next"))
    entries.push_back(at);
  static PyObject* type = nullptr;  // the GIL guards it, and no lock of C++'s, because an import may give the GIL up
  if (!type) type = nb::object(nb::module_::import_("types").attr("TracebackType")).release().ptr();
  nb::object next = nb::none();
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    nb::object old = entry->attr("tb_frame"), code = old.attr("f_code");
    // The new frame has no closure, and Python reads that of a frame that has not begun when it is asked for the locals.
    const nb::object closed_over = code.attr("co_freevars");
    if (nb::len(closed_over) > 0) code = code.attr("replace")(nb::arg("co_freevars") = nb::tuple());
    const nb::dict globals = nb::borrow<nb::dict>(old.attr("f_globals"));
    nb::dict known;  // what finds the source of a module in an archive
    for (const char* name : {"__name__", "__file__", "__loader__", "__spec__", "__builtins__"})
      if (globals.contains(name)) known[name] = globals[name];
    nb::object frame = nb::steal(reinterpret_cast<PyObject*>(
        PyFrame_New(PyThreadState_Get(), reinterpret_cast<PyCodeObject*>(code.ptr()), known.ptr(), nullptr)));
    if (!frame.is_valid()) throw nb::python_error();
    next = nb::handle(type)(next, frame, entry->attr("tb_lasti"), entry->attr("tb_lineno"));
  }
  return next.release().ptr();
}

PyFailure::PyFailure(PyObject* raised)
    : exception_(std::make_shared<const PyRef>(Kept(raised))),
      text_(std::make_shared<const std::string>(Describe(raised))) {}

void RaiseInterrupt() {
  if (!interrupted || !WaitsForSignals()) return;
  interrupted = false;
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw nb::python_error();
}

PyFailure PyFailure::Fetch() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace) PyException_SetTraceback(value, trace);
  if (OnMainThread() && PyErr_GivenExceptionMatches(value, PyExc_KeyboardInterrupt)) interrupted = true;
  nb::object owned_type = nb::steal(type), owned_value = nb::steal(value), owned_trace = nb::steal(trace);
  return PyFailure(value);
}

void SetErrorsModule(PyObject* module) { errors = Py_NewRef(module); }

PyObject* ToPython(const std::exception_ptr& thrown) { return Convert(thrown).release().ptr(); }

void Raise(const std::exception_ptr& thrown) { RaiseObject(Convert(thrown)); }

void RaiseWithNote(const PyFailure& failure, const std::string& note) {
  RaiseObject(nb::handle(errors).attr("noted")(nb::handle(failure.get()), note.c_str()));
}

void RaiseError(const char* name, const std::string& text) {
  PyErr_SetString(ErrorClass(name).ptr(), text.c_str());
  throw nb::python_error();
}

std::string ATypeOf(PyObject* object) {
  const std::string name = Py_TYPE(object)->tp_name;
  return (std::string_view("aeiouAEIOU").find(name[0]) == std::string_view::npos ? "a " : "an ") + name;
}

void RaiseTypeError(const std::string& text) {
  PyErr_SetString(PyExc_TypeError, text.c_str());
  throw nb::python_error();
}

}  // namespace engine_python
