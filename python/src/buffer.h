// Buffer: memory of a device, as it is given to a collective: an engine.DeviceArray, what has __cuda_array_interface__, or a
// Value of one. GIL held. Errors: TypeError or UsageError that begins with `what`.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/comm.h"
#include "handle.h"

namespace engine_python {

struct Buffer {
  void* address = nullptr;
  size_t count = 0;
  engine::DataType type = {};
  std::shared_ptr<const void> owner = {};  // keeps the memory
  std::optional<PyVar> var = {};           // of the Value that it was given in
};

struct GivenBuffer {
  nanobind::handle given;
  nanobind::handle dtype;  // None, or what the bytes are to be taken for
  bool written;
  int device;  // where it must be
};
Buffer ReadBuffer(const GivenBuffer& from, const StatePtr& state, const std::string& what);

}  // namespace engine_python
