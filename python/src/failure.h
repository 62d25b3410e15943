// Failure: exceptions on their way out of Python, through the engine, and back into Python.
//
// Ownership: a PyFailure has the Python exception, and may be destroyed on any thread.
// Errors:    only Raise turns C++ exceptions into Python ones. An exception of a body comes back with its type,
//            attributes and traceback; one of the engine itself has a class of engine.errors.
#pragma once

#include <Python.h>

#include <exception>
#include <string>

#include "gil.h"

namespace engine_python {

// PyFailure: an exception of a Python body. Its text is made once, under the GIL, for reports that C++ writes.
class PyFailure : public std::exception {
 public:
  explicit PyFailure(PyObject* raised);  // GIL held
  static PyFailure Fetch();              // takes and clears the error indicator. GIL held
  PyObject* get() const noexcept { return exception_->get(); }
  const char* what() const noexcept override { return text_->c_str(); }

 private:
  SharedPyRef exception_;
  std::shared_ptr<const std::string> text_;
};

// The traceback with new frames, which know file, function and line and nothing of the old frames' locals: these would live
// as long as the error does, and they often refer to what has the error. Throws nb::python_error if that fails.
PyObject* LightTraceback(PyObject* traceback);
// Raises KeyboardInterrupt if one ended a body on the main thread, where its program would otherwise not hear of it:
// the op has failed with it, and the call that ran the op fails, too. GIL held.
void RaiseInterrupt();
// The module engine.errors, whose classes and functions Raise uses. Kept for the life of the process.
void SetErrorsModule(PyObject* module);
// Throws nb::python_error with the Python exception for `thrown`. GIL held.
[[noreturn]] void Raise(const std::exception_ptr& thrown);
// That exception as a new reference, not raised.
PyObject* ToPython(const std::exception_ptr& thrown);
// Throws nb::python_error with a copy of the exception in `failure`, to which `note` is added. GIL held.
[[noreturn]] void RaiseWithNote(const PyFailure& failure, const std::string& note);
// Throws nb::python_error with a new exception: of the class `name` of engine.errors, or a TypeError. GIL held.
[[noreturn]] void RaiseError(const char* name, const std::string& text);
[[noreturn]] void RaiseTypeError(const std::string& text);
// What an object is, for messages: "a list", "an int". GIL held.
std::string ATypeOf(PyObject* object);

}  // namespace engine_python
