// Extent: where the memory of a buffer begins and ends.
//
// Threads: the GIL is held.
// Errors:  none; what cannot be asked has no extent.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace engine_python {

struct Extent {
  uintptr_t low = 0, high = 0;  // the first byte, and the one behind the last
};

// What the buffer protocol says of `data`, with strides of either sign. False: it exports no buffer with one address.
bool ExtentOf(PyObject* data, Extent* extent);
// NumPy may not be imported, so its class is known by name at first, and by address from then on.
bool IsNdarray(const PyTypeObject* type);

}  // namespace engine_python
