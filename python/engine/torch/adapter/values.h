// Values: Python's objects as IValues, and back.
//
// Threads:   every function needs the GIL, but Wrapped.
// Errors:    FromPython returns false with a Python exception set.
#pragma once

#include <Python.h>

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

// Of torch/csrc/autograd/python_variable.h, which would bring pybind11 and most of torch with it.
struct THPVariable {
  PyObject_HEAD at::Tensor cdata;
  PyObject* backward_hooks;  // dicts, or null
  PyObject* post_accumulate_grad_hooks;
};
extern TORCH_PYTHON_API PyObject* THPVariableClass;
TORCH_PYTHON_API PyObject* THPVariable_Wrap(const at::TensorBase& tensor);

namespace engine_torch {

using c10::IValue;

inline bool IsTensor(PyObject* object) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(THPVariableClass));
}
inline const at::Tensor& TensorOf(PyObject* object) { return reinterpret_cast<THPVariable*>(object)->cdata; }

// A number where an operator takes a tensor takes no part in type promotion.
inline at::Tensor Wrapped(const IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

inline bool FromPython(PyObject* object, IValue& value) {
  const auto is = [&](PyTypeObject& type) { return Py_TYPE(object) == &type; };
  if (IsTensor(object)) {
    value = TensorOf(object);
  } else if (object == Py_None) {
    value = IValue();
  } else if (PyBool_Check(object)) {
    value = object == Py_True;
  } else if (PyLong_Check(object)) {
    value = static_cast<int64_t>(PyLong_AsLongLong(object));
  } else if (PyFloat_Check(object)) {
    value = PyFloat_AS_DOUBLE(object);
  } else if (PyComplex_Check(object)) {
    value = c10::complex<double>(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
  } else if (PyUnicode_Check(object)) {
    const char* text = PyUnicode_AsUTF8(object);
    if (!text) return false;
    value = std::string(text);
  } else if (is(THPDtypeType)) {
    value = reinterpret_cast<THPDtype*>(object)->scalar_type;
  } else if (is(THPDeviceType)) {
    value = reinterpret_cast<THPDevice*>(object)->device;
  } else if (is(THPLayoutType)) {
    value = reinterpret_cast<THPLayout*>(object)->layout;
  } else if (is(THPMemoryFormatType)) {
    value = reinterpret_cast<THPMemoryFormat*>(object)->memory_format;
  } else if (PyList_Check(object) || PyTuple_Check(object)) {  // tensors, which is all that nodes hand on in lists
    c10::List<at::Tensor> tensors;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      IValue item;
      if (!FromPython(PySequence_Fast_GET_ITEM(object, i), item)) return false;
      if (!item.isTensor())
        return PyErr_Format(PyExc_TypeError, "engine.torch: a list of something else than tensors"), false;
      tensors.push_back(std::move(item).toTensor());
    }
    value = std::move(tensors);
  } else {
    PyErr_Format(PyExc_TypeError, "engine.torch: a value of type %s", Py_TYPE(object)->tp_name);
    return false;
  }
  return !PyErr_Occurred();
}

// A new reference; null with an exception set.
inline PyObject* ToPython(const IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) Py_RETURN_NONE;
    return THPVariable_Wrap(tensor);
  }
  if (value.isNone()) Py_RETURN_NONE;
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isInt()) return PyLong_FromLongLong(value.toInt());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return PyComplex_FromDoubles(number.real(), number.imag());
  }
  if (value.isSymInt()) return PyLong_FromLongLong(value.toSymInt().expect_int());
  if (value.isTensorList()) {
    const auto tensors = value.toTensorVector();
    PyObject* list = PyList_New(static_cast<Py_ssize_t>(tensors.size()));
    for (size_t i = 0; list && i < tensors.size(); ++i)
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), THPVariable_Wrap(tensors[i]));
    return list;
  }
  PyErr_Format(PyExc_TypeError, "engine.torch: an operator's value of type %s", value.tagKind().c_str());
  return nullptr;
}

}  // namespace engine_torch
