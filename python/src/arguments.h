// Arguments: finds the Values among the arguments of an op, in containers too, and puts data in their places.
//
// Threads:   the GIL is held in every function here.
// Ownership: found Values are borrowed from the arguments, or from what a container made when it was asked for its items.
// Errors:    Collect throws nb::python_error, because it is part of a call; Filled throws PyFailure, as part of a body.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "few.h"

namespace engine_python {

struct Found : Few<PyObject*, 8> {
  std::vector<nanobind::object> made;  // keeps the Values alive that a container made when it was asked for its items
};
// Adds the Values in `object`; returns whether there are any.
bool Collect(PyObject* object, Found* found);
// Whether it is a container with Values in it.
bool HoldsValues(PyObject* object);
// `arg` with the data of Values in their places; a new reference. `inputs`: the inputs of a node, which take the Places
// (containers.py) in `arg`; null: it has none.
PyObject* Filled(PyObject* arg, PyObject* inputs);
nanobind::object TupleOf(PyObject* const* objects, size_t count);

// Owned references to the arguments of a function or to what it returned. Up to 12 need no memory of their own.
struct References {
  explicit References(size_t count) : many(count > 12 ? count : 0), all(count > 12 ? many.data() : few) {}
  ~References() {
    for (size_t i = 0; i < size; ++i) Py_DECREF(all[i]);
  }
  References(const References&) = delete;
  void Add(PyObject* taken) { all[size++] = taken; }  // takes the reference
  PyObject* few[12];
  std::vector<PyObject*> many;
  PyObject** all;
  size_t size = 0;
};

void BindArguments(nanobind::module_& m);

}  // namespace engine_python
