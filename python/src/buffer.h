// Buffer: device memory that is given to a collective: an engine.DeviceArray, an object with __cuda_array_interface__,
// or a Value of one. The GIL is held. Errors: TypeError or UsageError that begins with `what`.
#pragma once

#include <memory>
#include <string>

#include "engine/comm.h"
#include "handle.h"

namespace engine_python {

struct Buffer {
  void* address = nullptr;
  size_t count = 0;
  engine::DataType type = {};
  std::shared_ptr<const void> owner = {};  // keeps the memory alive
  PyObject* value = nullptr;               // the Value that was given, borrowed; or null
};

struct GivenBuffer {
  nanobind::handle given;
  nanobind::handle dtype;  // None, or the type that the bytes are taken for
  bool written;
  int device;  // the device on which the memory must be
};
Buffer ReadBuffer(const GivenBuffer& from, const StatePtr& state, const std::string& what);

}  // namespace engine_python
