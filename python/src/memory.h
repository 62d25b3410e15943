// Memory: which Values have data at which addresses, so that what shares memory with one is found.
//
// A Value whose data were set is young until somebody asks. Only then is it looked at and put into the cells, so a call of an op
// pays a few instructions for an array, and nothing for a number or None.
//
// Threads:   the GIL is held.
// Ownership: a Value leaves by itself when it goes, or gets other data.
// Errors:    what cannot be asked for its memory has none.
#pragma once

#include <nanobind/nanobind.h>

#include "value.h"

namespace engine_python {

// The Value has other data.
void Noted(ValueObject* value);
// An op has changed its data in place, which may have got other parts.
void Changed(ValueObject* value);
// It is not found any more.
void Forgotten(ValueObject* value);

}  // namespace engine_python
