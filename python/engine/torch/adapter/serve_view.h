// Views of a served program: where a tensor of one call lies, as functions of the number of rows of the request.
//
// All sizes, strides and offsets are `a * rows + c`, because a served program has one size that differs from call to call.
// So a view costs nothing while a request is answered.
//
// Threads:   parsing needs the GIL; all else may be called by any thread.
#pragma once

#include "make.h"

namespace engine_torch::serve {

struct Affine {
  int64_t a = 0, c = 0;
  int64_t operator()(int64_t rows) const { return a * rows + c; }
};

struct View {
  int32_t storage = 0;
  at::ScalarType dtype = at::kFloat;
  Affine offset;  // in elements
  std::vector<Affine> sizes, strides;
};

// Resolved for one number of rows.
struct Place {
  int32_t storage = 0;
  int64_t offset = 0;  // in bytes
  std::vector<int64_t> sizes, strides;
  char* In(char* const* bases) const { return bases[storage] + offset; }
};

inline Place Resolved(const View& view, int64_t rows) {
  Place place{view.storage, view.offset(rows) * static_cast<int64_t>(c10::elementSize(view.dtype)), {}, {}};
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    place.sizes.push_back(view.sizes[i](rows));
    place.strides.push_back(view.strides[i](rows));
  }
  return place;
}

inline int64_t Count(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

inline bool ParseAffine(PyObject* spec, Affine& affine) {
  long long a, c;
  if (!PyArg_ParseTuple(spec, "LL", &a, &c)) return false;
  affine = {a, c};
  return true;
}

inline bool ParseAffines(PyObject* spec, std::vector<Affine>& into) {
  return Each(spec, [&](PyObject* item, Py_ssize_t) { return ParseAffine(item, into.emplace_back()); });
}

// (storage, dtype, offset, sizes, strides)
inline bool ParseView(PyObject* spec, View& view) {
  PyObject *dtype, *offset, *sizes, *strides;
  IValue type;
  if (!PyArg_ParseTuple(spec, "iOOOO", &view.storage, &dtype, &offset, &sizes, &strides) || !FromPython(dtype, type))
    return false;
  view.dtype = type.toScalarType();
  return ParseAffine(offset, view.offset) && ParseAffines(sizes, view.sizes) && ParseAffines(strides, view.strides);
}

inline bool ParseViews(PyObject* spec, std::vector<View>& into) {
  return Each(spec, [&](PyObject* item, Py_ssize_t) { return ParseView(item, into.emplace_back()); });
}

// The dimensions that several tensors of equal sizes are walked through together, innermost last: those that lie behind
// each other in all tensors are one, and those of size 1 are none.
struct Walk {
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides;  // by tensor

  Walk(const std::vector<int64_t>& of, const std::vector<const Place*>& places) : strides(places.size()) {
    for (size_t d = 0; d < of.size(); ++d) {
      if (of[d] == 1) continue;
      bool joins = !sizes.empty();
      for (size_t i = 0; joins && i < places.size(); ++i) joins = strides[i].back() == places[i]->strides[d] * of[d];
      if (joins) {
        sizes.back() *= of[d];
      } else {
        sizes.push_back(of[d]);
      }
      for (size_t i = 0; i < places.size(); ++i) {
        if (joins)
          strides[i].back() = places[i]->strides[d];
        else
          strides[i].push_back(places[i]->strides[d]);
      }
    }
    while (sizes.size() < 2) {
      sizes.insert(sizes.begin(), 1);
      for (auto& by : strides) by.insert(by.begin(), 0);
    }
  }

  // Calls f(offset by tensor, in elements) for each index of all dimensions but the two innermost.
  template <class F>
  void Outer(F&& f) const {
    for (const int64_t size : sizes)
      if (size == 0) return;
    const size_t dims = sizes.size() - 2;
    std::vector<int64_t> at(dims), offsets(strides.size());
    while (true) {
      f(offsets.data());
      size_t d = dims;
      while (d > 0) {
        --d;
        for (size_t i = 0; i < strides.size(); ++i) offsets[i] += strides[i][d];
        if (++at[d] < sizes[d]) break;
        for (size_t i = 0; i < strides.size(); ++i) offsets[i] -= strides[i][d] * sizes[d];
        at[d] = 0;
        if (d == 0) return;
      }
      if (dims == 0) return;
    }
  }
  int64_t rows() const { return sizes[sizes.size() - 2]; }
  int64_t inner() const { return sizes.back(); }
  int64_t row_stride(size_t tensor) const { return strides[tensor][sizes.size() - 2]; }
  int64_t stride(size_t tensor) const { return strides[tensor].back(); }
};

}  // namespace engine_torch::serve
