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

// The leaves of `data` in the order of torch's pytree. False without an exception: there is something in it that is not usual.
inline bool TakeApart(PyObject* data, PyObject* plain, PyObject* leaves, PyObject* keys, std::string& how) {
  if (Py_EnterRecursiveCall(" in the arguments of a step")) return false;
  const auto inside = [&] {
    if (PyTuple_CheckExact(data) || PyList_CheckExact(data)) {
      how += PyTuple_CheckExact(data) ? '(' : '[';
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(data); ++i)
        if (!TakeApart(PySequence_Fast_GET_ITEM(data, i), plain, leaves, keys, how)) return false;
      how += ')';
      return true;
    }
    if (PyDict_CheckExact(data)) {
      how += '{';
      Py_ssize_t at = 0;
      PyObject *key, *value;
      while (PyDict_Next(data, &at, &key, &value))
        if (PyList_Append(keys, key) < 0 || !TakeApart(value, plain, leaves, keys, how)) return false;
      how += ')';
      return true;
    }
    if (PySet_Contains(plain, reinterpret_cast<PyObject*>(Py_TYPE(data))) <= 0) return false;
    how += '*';
    return PyList_Append(leaves, data) == 0;
  };
  const bool taken = inside();
  Py_LeaveRecursiveCall();
  return taken;
}

// flatten(data, plain: set of types) -> (leaves, what tells structures apart), or None.
inline PyObject* Flatten(PyObject*, PyObject* args) {
  PyObject *data, *plain;
  if (!PyArg_ParseTuple(args, "OO", &data, &plain)) return nullptr;
  std::string how;
  PyObject *leaves = PyList_New(0), *keys = PyList_New(0), *result = nullptr;
  if (leaves && keys && TakeApart(data, plain, leaves, keys, how)) {
    PyObject *structure = AsBytes(how), *names = PyList_AsTuple(keys);
    if (structure && names) result = Py_BuildValue("O(OO)", leaves, structure, names);
    Py_XDECREF(structure);
    Py_XDECREF(names);
  }
  Py_XDECREF(leaves);
  Py_XDECREF(keys);
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

using Addresses = std::pair<uint64_t, uint64_t>;  // the first, and the one behind the last

// From the first to the last element; the same number twice: there is none.
inline Addresses Used(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
  if (tensor.numel() == 0) return {begin, begin};
  uint64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += static_cast<uint64_t>((tensor.size(i) - 1) * tensor.stride(i));
  return {begin, begin + (last + 1) * tensor.element_size()};
}

// meets(tensors: list, memory: ranges that lie apart, in order, as bytes, among) -> bool: whether a tensor has some of this memory
// or, if `among`, two of them share an element, or may. None: one of them is not strided.
inline PyObject* Meets(PyObject*, PyObject* args) {
  PyObject *list, *memory;
  int among;
  if (!PyArg_ParseTuple(args, "O!O!p", &PyList_Type, &list, &PyBytes_Type, &memory, &among)) return nullptr;
  const auto* const first = reinterpret_cast<const Addresses*>(PyBytes_AS_STRING(memory));
  const auto* const last = first + static_cast<size_t>(PyBytes_GET_SIZE(memory)) / sizeof(Addresses);
  std::vector<Addresses> found;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* const item = PyList_GET_ITEM(list, i);
    if (!IsTensor(item) || TensorOf(item).layout() != at::kStrided) Py_RETURN_NONE;
    const auto used = Used(TensorOf(item));
    if (used.first == used.second) continue;
    // The last range that begins before the end.
    const auto* behind = std::partition_point(first, last, [&](const Addresses& r) { return r.first < used.second; });
    if (behind != first && behind[-1].second > used.first) Py_RETURN_TRUE;
    found.push_back(used);
  }
  if (!among) Py_RETURN_FALSE;
  std::ranges::sort(found);
  const auto meet = [](const Addresses& before, const Addresses& after) { return after.first < before.second; };
  return PyBool_FromLong(std::ranges::adjacent_find(found, meet) != found.end());
}

}  // namespace engine_torch
