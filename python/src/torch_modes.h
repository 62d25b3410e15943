// TorchModes: PyTorch's grad, inference and autocast modes go with a push as context variables do. PyTorch keeps them for each
// thread, so they travel as a variable of the context that the body gets, and are set while the body runs.
//
// Threads: the GIL is held in every function here.
// Cost:    nothing but a look at how many modules there are, until the program has imported PyTorch.
#pragma once

#include <nanobind/nanobind.h>

#include "gil.h"

namespace engine_python {

// Puts this thread's modes into `context`, a copy of the current one, if a body would have others without that.
void CarryTorchModes(PyObject* context);

// Sets the modes of the context that the thread is in; what the thread had is back when this ends. Throws PyFailure.
class TorchModes {
 public:
  TorchModes() = default;
  ~TorchModes() {
    if (before_) Restore();
  }
  TorchModes(const TorchModes&) = delete;
  void Enter();
  void Restore() noexcept;  // at most once

 private:
  PyRef
      before_;  // a bool: the grad mode; else what has `close` (engine/torch_modes.py). Null: there is nothing to be done
};

void BindTorchModes();

}  // namespace engine_python
