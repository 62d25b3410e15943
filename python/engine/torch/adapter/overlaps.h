// Whether tensors share memory, as overlaps.py has it: by the addresses of their elements.
//
// Threads:   any, with the GIL.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "values.h"

namespace engine_torch {

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
