// Arrays: finds the arrays in Python's values that cross to a device, and puts the device's arrays in their places.
//
// Host: an array is whatever offers numbers by the buffer protocol (NumPy's arrays, array.array, memoryview, bytes), and a
// framework's tensor that says by DLPack that it lies on the host (PyTorch's), also inside lists, tuples and dicts.
// Scalars, and arrays of objects, pass through; a tensor that NumPy cannot have (bfloat16, sparse) is an error.
// Device: an array is an engine.DeviceArray, which crossed with a step or was made by hand from something on the host.
#pragma once

#include <memory>

#include "engine/device/array.h"
#include "handle.h"

namespace engine_python {

struct PyDeviceArray {
  engine::DeviceArray array;
  std::weak_ptr<EngineState> engine;
};

std::shared_ptr<const engine::CrossingArrays> PythonArrays(std::weak_ptr<EngineState> engine);

void BindArrays(nanobind::module_& m);

}  // namespace engine_python
