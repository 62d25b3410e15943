// Arrays: what Python's values have of arrays when they cross to a device, and what they are there.
//
// Host:      whatever offers numbers by the buffer protocol (NumPy's arrays, array.array, memoryview, bytes), also in lists,
//            tuples and dicts. Scalars, and what holds objects, pass through.
// Device:    engine.DeviceArray, as it crossed with a step, or as it was made by hand of something on the host.
#pragma once

#include <memory>

#include "engine/device/array.h"
#include "handle.h"

namespace engine_python {

struct PyDeviceArray {
  engine::DeviceArray array;
  std::weak_ptr<EngineState> engine;
};

std::shared_ptr<const engine::BoundaryArrays> PythonArrays(std::weak_ptr<EngineState> engine);

void BindArrays(nanobind::module_& m);

}  // namespace engine_python
