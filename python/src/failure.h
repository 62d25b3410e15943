// Failure: exceptions on their way through the engine, out of Python and back into it.
//
// Ownership: a PyFailure holds the Python exception and may die on any thread.
// Errors:    Raise is the one place where C++ exceptions become Python ones: what a body raised comes back with its
//            type, attributes and traceback; what the engine itself says is of a class of engine.errors.
#pragma once

#include <Python.h>

#include <exception>
#include <string>

#include "gil.h"

namespace engine_python {

// What a Python body raised. Its text is made once, under the GIL, for reports that C++ writes.
class PyFailure : public std::exception {
 public:
  explicit PyFailure(PyObject* raised);  // GIL held
  static PyFailure Fetch();              // the error indicator, which it clears. GIL held
  PyObject* get() const noexcept { return exception_->get(); }
  const char* what() const noexcept override { return text_->c_str(); }

 private:
  SharedPyRef exception_;
  std::shared_ptr<const std::string> text_;
};

// The module engine.errors, whose classes and helper Raise uses. Kept for the life of the process.
void SetErrorsModule(PyObject* module);
// Throws nb::python_error with the Python exception that stands for `thrown`. GIL held.
[[noreturn]] void Raise(const std::exception_ptr& thrown);
// The same as a new reference, not raised.
PyObject* ToPython(const std::exception_ptr& thrown);
// Throws nb::python_error with a copy of what `failure` holds, and `note` added to it. GIL held.
[[noreturn]] void RaiseWithNote(const PyFailure& failure, const std::string& note);
// Throws the class `name` of engine.errors, or TypeError.
[[noreturn]] void RaiseError(const char* name, const std::string& text);
[[noreturn]] void RaiseTypeError(const std::string& text);

}  // namespace engine_python
