#include "extent.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>

#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// (low, high) of the addresses, or None.
std::optional<std::pair<uintptr_t, uintptr_t>> BoundsOf(nb::handle data) {
  Extent found;
  if (!ExtentOf(data.ptr(), &found)) return {};
  return std::pair(found.low, found.high);
}

// Null: they are not as extent.h says.
const ArrayFields* FieldsOf(PyObject* array) {
  const auto* const fields = reinterpret_cast<const ArrayFields*>(array);
  static const bool known = array_fields_known = [&] {
    const bool may_be = Py_TYPE(array)->tp_basicsize >= static_cast<Py_ssize_t>(sizeof(ArrayFields));
    nb::object dtype = nb::steal(PyObject_GetAttrString(array, "dtype"));
    if (!dtype.is_valid()) ForgetError();
    return may_be && dtype.is_valid() && dtype.ptr() == fields->dtype;
  }();
  return known ? fields : nullptr;
}

void AddObjects(const Py_buffer& view, char* at, int dimension, std::vector<PyObject*>* objects) {
  if (dimension == view.ndim) {
    PyObject* const object = *reinterpret_cast<PyObject**>(at);
    objects->push_back(object ? object : Py_None);
    return;
  }
  for (Py_ssize_t i = 0; i < view.shape[dimension]; ++i, at += view.strides[dimension])
    AddObjects(view, at, dimension + 1, objects);
}

}  // namespace

bool array_fields_known = false;

bool ExtentOf(PyObject* data, Extent* extent) {
  if (!PyObject_CheckBuffer(data)) return false;
  Py_buffer view;
  if (PyObject_GetBuffer(data, &view, PyBUF_STRIDED_RO) != 0) {
    ForgetError();
    return false;
  }
  extent->low = extent->high = reinterpret_cast<uintptr_t>(view.buf);
  if (view.len > 0) extent->high += static_cast<uintptr_t>(view.strides ? view.itemsize : view.len);
  for (int i = 0; view.len > 0 && view.strides && i < view.ndim; ++i) {
    const Py_ssize_t reach = view.strides[i] * (view.shape[i] - 1);  // from the first element on, or down from it
    (reach < 0 ? extent->low : extent->high) += static_cast<uintptr_t>(reach);
  }
  PyBuffer_Release(&view);
  return true;
}

bool IsNdarray(const PyTypeObject* type) {
  static const PyTypeObject* known = nullptr;  // the GIL guards it
  if (type == known) return true;
  if (std::strcmp(type->tp_name, "numpy.ndarray") != 0) return false;
  known = type;
  return true;
}

bool DerivesFromNdarray(const PyTypeObject* type) {
  while (type && !IsNdarray(type)) type = type->tp_base;
  return type;
}

PyObject* BaseOf(PyObject* array) {
  const ArrayFields* const fields = FieldsOf(array);
  if (!fields) return PyObject_GetAttrString(array, "base");
  return Py_NewRef(fields->base ? fields->base : Py_None);
}

bool HoldsObjects(PyObject* array) {
  static PyObject* plain[16] = {};  // types of items without objects; a program has few
  const auto place = [](PyObject* dtype) -> PyObject*& {
    return plain[(reinterpret_cast<uintptr_t>(dtype) >> 5) % 16];
  };
  if (const ArrayFields* const fields = FieldsOf(array); fields && fields->dtype == place(fields->dtype)) return false;
  nb::object dtype = nb::steal(PyObject_GetAttrString(array, "dtype")), holds, kind;
  if (dtype.is_valid()) holds = nb::steal(PyObject_GetAttrString(dtype.ptr(), "hasobject"));
  if (holds.ptr() == Py_True) kind = nb::steal(PyObject_GetAttrString(dtype.ptr(), "kind"));
  ForgetError();
  // Those of other kinds that say so, such as texts of any length, have memory that is nobody else's.
  if (kind.is_valid() && (nb::cast<std::string_view>(kind) == "O" || nb::cast<std::string_view>(kind) == "V"))
    return true;
  if (dtype.is_valid()) Py_XDECREF(std::exchange(place(dtype.ptr()), dtype.inc_ref().ptr()));
  return false;
}

bool ObjectsIn(PyObject* array, std::vector<PyObject*>* objects) {
  Py_buffer view;
  if (PyObject_GetBuffer(array, &view, PyBUF_FULL_RO) != 0) {
    ForgetError();
    return false;
  }
  const bool known = view.format && std::strcmp(view.format, "O") == 0;
  if (known) AddObjects(view, static_cast<char*>(view.buf), 0, objects);
  PyBuffer_Release(&view);
  return known;
}

void BindExtent(nb::module_& m) {
  m.def("_bounds", &BoundsOf, nb::arg("data").none(), nb::sig("def _bounds(data: object) -> tuple[int, int] | None"));
}

}  // namespace engine_python
