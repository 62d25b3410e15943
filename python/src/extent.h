// Extent: where the memory of a buffer begins and ends.
//
// Threads: the GIL is held.
// Errors:  none; what cannot be asked has no extent.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace engine_python {

struct Extent {
  uintptr_t low = 0, high = 0;  // the first byte, and the one behind the last
};

// False: it is a number, text or None, which never change.
inline bool MayHaveMemory(PyObject* data) {
  PyTypeObject* const type = Py_TYPE(data);
  return !(type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type || type == &PyBool_Type ||
           type == &PyBytes_Type || type == &PyComplex_Type || data == Py_None);
}
// What the buffer protocol says of `data`, with strides of either sign. False: it exports no buffer with one address.
bool ExtentOf(PyObject* data, Extent* extent);
// NumPy may not be imported, so its class is known by name at first, and by address from then on.
bool IsNdarray(const PyTypeObject* type);
bool DerivesFromNdarray(const PyTypeObject* type);
// Of an ndarray or what derives from it: what it is a view of, as a new reference; null: an exception of Python's is set.
PyObject* BaseOf(PyObject* array);
// Whether its items are objects, which may have memory elsewhere, or have some in their fields.
bool HoldsObjects(PyObject* array);
// Adds its items, borrowed, in the order of their indices. False: they are no objects, though they may have some in fields.
bool ObjectsIn(PyObject* array, std::vector<PyObject*>* objects);

// The beginning of an ndarray, as NumPy's headers compile it into every extension that uses them. Its attributes are read here, because
// the look-up of a name costs as much as all else that is looked at between two small nodes.
struct ArrayFields {
  PyObject ob_base;
  char* data;
  int dimensions;
  Py_ssize_t *shape, *strides;
  PyObject *base, *dtype;
};
// Whether they are as above, which a NumPy to come might change. It is known once one array was looked at.
extern bool array_fields_known;
// The type of its items, borrowed; null: it is not known at once.
inline const PyObject* DtypeOf(PyObject* array) {
  return array_fields_known ? reinterpret_cast<const ArrayFields*>(array)->dtype : nullptr;
}

}  // namespace engine_python
