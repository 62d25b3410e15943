// Whether what a step looks at before each run is as it was: the same objects in the same places, and tensors that look the same.
// Where it is not, Python decides whether that makes a difference.
//
// Threads:   any, with the GIL.
// Ownership: the list of places is Python's, a tuple, so the garbage collector sees what it holds.
#pragma once

#include <Python.h>

#include <cstdint>

#include "values.h"

namespace engine_torch {

// The kinds of places in glance.py.
enum class Glance : long { kItem, kItems, kElements, kType, kSize, kEmpty, kCell, kAttribute, kClass };

// What a dict or another mapping gives by a key, or null. Only to be compared: a mapping that makes its values has let it go.
inline PyObject* Lookup(PyObject* held, PyObject* key) {
  if (PyDict_CheckExact(held)) return PyDict_GetItemWithError(held, key);
  PyObject* found = PyObject_GetItem(held, key);
  if (!found && PyErr_ExceptionMatches(PyExc_KeyError)) PyErr_Clear();
  Py_XDECREF(found);
  return found;
}

// An attribute of an object, or null. As with Lookup, only to be compared.
inline PyObject* Attribute(PyObject* held, PyObject* name) {
  PyObject* found = PyObject_GetAttr(held, name);
  if (!found && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
  Py_XDECREF(found);
  return found;
}

// Whether a dict holds exactly these items, in this order.
inline bool HasItems(PyObject* held, PyObject* keys, PyObject* values) {
  if (PyDict_GET_SIZE(held) != PyTuple_GET_SIZE(keys)) return false;
  Py_ssize_t at = 0, i = 0;
  PyObject *key, *value;
  for (; PyDict_Next(held, &at, &key, &value); ++i)
    if (key != PyTuple_GET_ITEM(keys, i) || value != PyTuple_GET_ITEM(values, i)) return false;
  return true;
}

inline bool HasElements(PyObject* held, PyObject* elements) {
  if (PyList_GET_SIZE(held) != PyTuple_GET_SIZE(elements)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(held); ++i)
    if (PyList_GET_ITEM(held, i) != PyTuple_GET_ITEM(elements, i)) return false;
  return true;
}

// as_noted(places: tuple, missing) -> bool. Of each place four parts: kind, what holds it, key, value; a value that is `missing`: it
// must not be there.
inline PyObject* AsNoted(PyObject*, PyObject* args) {
  PyObject *places, *missing;
  if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &places, &missing)) return nullptr;
  const Py_ssize_t count = PyTuple_GET_SIZE(places);
  for (Py_ssize_t i = 0; i + 3 < count; i += 4) {
    PyObject *held = PyTuple_GET_ITEM(places, i + 1), *key = PyTuple_GET_ITEM(places, i + 2);
    PyObject* const value = PyTuple_GET_ITEM(places, i + 3);
    bool same = false;
    switch (static_cast<Glance>(PyLong_AsLong(PyTuple_GET_ITEM(places, i)))) {
      case Glance::kItem: {
        PyObject* const found = Lookup(held, key);
        same = found ? found == value : value == missing;
        break;
      }
      case Glance::kItems: same = HasItems(held, key, value); break;
      case Glance::kElements: same = HasElements(held, value); break;
      case Glance::kType: {
        PyObject* const found = PyDict_GetItemWithError(held, key);
        same = found && reinterpret_cast<PyObject*>(Py_TYPE(found)) == value;
        break;
      }
      case Glance::kSize: same = PyDict_GET_SIZE(held) == PyLong_AsSsize_t(value); break;
      case Glance::kEmpty: same = PyDict_GetItemWithError(held, key) == value && PyDict_GET_SIZE(value) == 0; break;
      case Glance::kCell: {
        PyObject* const found = PyCell_GET(held);
        same = found ? found == value : value == missing;
        break;
      }
      case Glance::kAttribute: {
        PyObject* const found = Attribute(held, key);
        same = found ? found == value : value == missing;
        break;
      }
      case Glance::kClass: same = reinterpret_cast<PyObject*>(Py_TYPE(held)) == value; break;
    }
    if (PyErr_Occurred()) return nullptr;
    if (!same) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// looks(tensors: list) -> number. Another one where a tensor's memory, shape, type or requires_grad is another, or one has got hooks.
// Thousands are looked at before each step, for which Python's attributes take too long.
inline PyObject* Looks(PyObject*, PyObject* list) {
  if (!PyList_Check(list)) return PyErr_SetString(PyExc_TypeError, "looks takes a list"), nullptr;
  uint64_t seen = 0;
  const auto add = [&](uint64_t part) { seen = (seen ^ part) * 0x9E3779B97F4A7C15u, seen ^= seen >> 29; };
  const auto some = [](PyObject* dict) { return dict && dict != Py_None && PyObject_Size(dict) > 0; };
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    const auto* tensor = reinterpret_cast<THPVariable*>(PyList_GET_ITEM(list, i));
    const at::Tensor& value = tensor->cdata;
    const bool lies = value.layout() == at::kStrided;
    add(lies ? reinterpret_cast<uintptr_t>(value.unsafeGetTensorImpl()->data()) : 1);
    if (lies) {
      for (const int64_t size : value.sizes()) add(static_cast<uint64_t>(size));
      for (const int64_t stride : value.strides()) add(static_cast<uint64_t>(stride));
    }
    add(uint64_t(value.scalar_type()) << 3 | uint64_t(value.requires_grad()) << 2 |
        uint64_t(some(tensor->backward_hooks)) << 1 | uint64_t(some(tensor->post_accumulate_grad_hooks)));
  }
  PyErr_Clear();
  return PyLong_FromUnsignedLongLong(seen);
}

}  // namespace engine_torch
