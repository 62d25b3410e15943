// The arguments of a step, as Python's arguments.py has them, for the usual ones: tensors, numbers and texts in tuples, lists and dicts. A
// step looks at them in each call, for which the interpreter takes a few microseconds a tensor.
//
// Threads: any, with the GIL.
#pragma once

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "values.h"

namespace engine_torch {

// What tells apart, as bytes.
struct Told {
  std::string bytes;
  template <class T>
  void Add(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
};

inline PyObject* AsBytes(const std::string& bytes) {
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}

// What arguments are taken apart into.
struct Parts {
  PyObject* plain;   // set of the types of leaves
  PyObject* named;   // set of the named tuples' types
  PyObject* leaves;  // list
  PyObject* keys;    // list: the keys of dicts, the types of named tuples
  std::string how;   // the structure
};

// The leaves of `data` in the order of torch's pytree. False without an exception: there is something in it that is not usual.
inline bool TakeApart(PyObject* data, Parts& parts) {
  if (Py_EnterRecursiveCall(" in the arguments of a step")) return false;
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(data));
  const auto each = [&](char begin) {
    parts.how += begin;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(data); ++i)
      if (!TakeApart(PySequence_Fast_GET_ITEM(data, i), parts)) return false;
    parts.how += ')';
    return true;
  };
  const auto inside = [&] {
    if (PyTuple_CheckExact(data)) return each('(');
    if (PyList_CheckExact(data)) return each('[');
    if (PyDict_CheckExact(data)) {
      parts.how += '{';
      Py_ssize_t at = 0;
      PyObject *key, *value;
      while (PyDict_Next(data, &at, &key, &value))
        if (PyList_Append(parts.keys, key) < 0 || !TakeApart(value, parts)) return false;
      parts.how += ')';
      return true;
    }
    if (PyTuple_Check(data))
      return PySet_Contains(parts.named, type) > 0 && PyList_Append(parts.keys, type) == 0 && each('<');
    parts.how += '*';
    return PySet_Contains(parts.plain, type) > 0 && PyList_Append(parts.leaves, data) == 0;
  };
  const bool taken = inside();
  Py_LeaveRecursiveCall();
  return taken;
}

// flatten(data, plain: set of types, named: set of named tuples' types) -> (leaves, what tells structures apart), or None.
inline PyObject* Flatten(PyObject*, PyObject* args) {
  PyObject* data;
  Parts parts;
  if (!PyArg_ParseTuple(args, "OOO", &data, &parts.plain, &parts.named)) return nullptr;
  parts.leaves = PyList_New(0), parts.keys = PyList_New(0);
  PyObject* result = nullptr;
  if (parts.leaves && parts.keys && TakeApart(data, parts)) {
    PyObject *structure = AsBytes(parts.how), *keys = PyList_AsTuple(parts.keys);
    if (structure && keys) result = Py_BuildValue("O(OO)", parts.leaves, structure, keys);
    Py_XDECREF(structure);
    Py_XDECREF(keys);
  }
  Py_XDECREF(parts.leaves);
  Py_XDECREF(parts.keys);
  if (!result && !PyErr_Occurred()) Py_RETURN_NONE;
  return result;
}

// Whether a leaf is of one of these classes of tensors, and can be told by what is added here.
inline bool Tell(PyObject* leaf, PyObject* classes, Told& told) {
  if (!IsTensor(leaf) || PySet_Contains(classes, reinterpret_cast<PyObject*>(Py_TYPE(leaf))) <= 0) return false;
  const at::Tensor& tensor = TensorOf(leaf);
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (tensor.layout() != at::kStrided || tensor.is_nested() || impl->has_symbolic_sizes_strides()) return false;
  if (tensor.requires_grad() && !tensor.is_leaf() && at::GradMode::is_enabled()) return false;  // refused there
  PyObject* const own = PyObject_GenericGetDict(leaf, nullptr);  // attributes that the program gave it
  const bool plain = own && PyDict_GET_SIZE(own) == 0;
  Py_XDECREF(own);
  if (!plain) return PyErr_Clear(), false;
  told.Add(reinterpret_cast<uintptr_t>(Py_TYPE(leaf)));
  told.Add(tensor.dim());
  for (const int64_t size : tensor.sizes()) told.Add(size);
  for (const int64_t stride : tensor.strides()) told.Add(stride);
  told.Add(tensor.scalar_type());
  told.Add(tensor.device());
  told.Add(static_cast<char>(tensor.requires_grad() | tensor.is_conj() << 1 | tensor.is_neg() << 2));
  return true;
}

// signatures(leaves: list, classes: set, signature) -> tuple. Equal where those of Python's `signature` and `repeated` are; that is called for
// what is no ordinary tensor.
inline PyObject* Signatures(PyObject*, PyObject* args) {
  PyObject *leaves, *classes, *signature;
  if (!PyArg_ParseTuple(args, "O!OO", &PyList_Type, &leaves, &classes, &signature)) return nullptr;
  Told told;
  PyObject* others = PyList_New(1);  // the first one is for what is told in bytes
  if (!others) return nullptr;
  std::vector<std::pair<PyObject*, Py_ssize_t>> tensors;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(leaves); ++i) {
    PyObject* const leaf = PyList_GET_ITEM(leaves, i);
    if (IsTensor(leaf)) tensors.emplace_back(leaf, static_cast<Py_ssize_t>(tensors.size()));
    if (Tell(leaf, classes, told)) continue;
    told.Add(uintptr_t{0});  // no type's address
    PyObject* other = PyObject_CallOneArg(signature, leaf);
    const bool added = other && PyList_Append(others, other) == 0;
    Py_XDECREF(other);
    if (!added) return Py_DECREF(others), nullptr;
  }
  // Where tensors are one object: for each of them the number of the first.
  std::ranges::sort(tensors);
  std::vector<Py_ssize_t> first(tensors.size());
  bool repeated = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool again = i && tensors[i].first == tensors[i - 1].first;
    first[static_cast<size_t>(tensors[i].second)] =
        again ? first[static_cast<size_t>(tensors[i - 1].second)] : tensors[i].second;
    repeated |= again;
  }
  if (repeated)
    for (const Py_ssize_t number : first) told.Add(number);
  PyObject* bytes = AsBytes(told.bytes);
  if (!bytes) return Py_DECREF(others), nullptr;
  PyList_SET_ITEM(others, 0, bytes);
  PyObject* result = PyList_AsTuple(others);
  Py_DECREF(others);
  return result;
}

}  // namespace engine_torch
