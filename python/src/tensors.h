// Tensors: what the engine asks PyTorch's for itself. PyTorch may not be imported.
//
// Threads: the GIL is held.
// Errors:  none; what cannot be asked is not known.
#pragma once

#include <Python.h>

namespace engine_python {

// Whether it is torch.Tensor itself.
bool IsTensor(const PyTypeObject* type);
// Whether a tensor that one reference is to shares its memory with nobody: PyTorch allocated it, no other tensor, array or buffer has
// it, and it has no gradient. False: it may share it.
bool SharesNothing(PyObject* tensor);

}  // namespace engine_python
