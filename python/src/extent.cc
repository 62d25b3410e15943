#include "extent.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstring>
#include <optional>
#include <utility>

#include "bindings.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// (low, high) of the addresses, or None.
std::optional<std::pair<uintptr_t, uintptr_t>> BoundsOf(nb::handle data) {
  Extent found;
  if (!ExtentOf(data.ptr(), &found)) return {};
  return std::pair(found.low, found.high);
}

}  // namespace

bool ExtentOf(PyObject* data, Extent* extent) {
  if (!PyObject_CheckBuffer(data)) return false;
  Py_buffer view;
  if (PyObject_GetBuffer(data, &view, PyBUF_STRIDED_RO) != 0) {
    PyErr_Clear();
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

void BindExtent(nb::module_& m) {
  m.def("_bounds", &BoundsOf, nb::arg("data").none(), nb::sig("def _bounds(data: object) -> tuple[int, int] | None"));
}

}  // namespace engine_python
