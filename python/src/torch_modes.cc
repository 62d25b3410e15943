#include "torch_modes.h"

#include "bindings.h"
#include "body.h"
#include "failure.h"
#include "gil.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// The modes of whoever pushed: None, the defaults; False, no grad mode and else the defaults; else what torch_modes.py made.
PyObject* modes = nullptr;

// Functions of PyTorch, kept for the life of the process. They are null before it is imported; `set_grad` comes last.
PyObject *grad = nullptr, *inference = nullptr, *autocast = nullptr, *set_grad = nullptr;
// Functions of engine/torch_modes.py.
PyObject *captured = nullptr, *entered = nullptr;

PyObject* Attribute(PyObject* object, const char* name) {
  PyObject* const found = PyObject_GetAttrString(object, name);
  if (!found) ForgetError();
  return found;
}

// False: PyTorch is being imported, and does not have them yet.
bool Find(PyObject* torch) {
  nb::object inner = nb::steal(Attribute(torch, "_C"));
  if (!inner.is_valid()) return false;
  grad = Attribute(torch, "is_grad_enabled");
  inference = Attribute(torch, "is_inference_mode_enabled");
  autocast = Attribute(inner.ptr(), "_is_any_autocast_enabled");
  nb::object set = nb::steal(Attribute(inner.ptr(), "_set_grad_enabled"));
  if (!grad || !inference || !autocast || !set.is_valid()) return false;
  nb::object slow = nb::steal(PyImport_ImportModule("engine.torch_modes"));
  if (!slow.is_valid()) throw nb::python_error();
  captured = Attribute(slow.ptr(), "captured");
  entered = Attribute(slow.ptr(), "entered");
  set_grad = set.release().ptr();
  return true;
}

bool Imported() {
  if (set_grad) return true;
  // An import of PyTorch adds hundreds of modules, so nobody looks for it as long as there are as many as before.
  static Py_ssize_t looked_at = -1;
  PyObject* const all = PyImport_GetModuleDict();
  const Py_ssize_t size = PyDict_Size(all);
  if (size == looked_at) return false;
  PyObject* const torch = PyDict_GetItemString(all, "torch");
  if (torch && torch != Py_None) return Find(torch);
  looked_at = size;
  return false;
}

bool Says(PyObject* function) {
  nb::object said = nb::steal(PyObject_CallNoArgs(function));
  if (!said.is_valid()) throw nb::python_error();
  return said.ptr() == Py_True;
}

nb::object Carried() {
  PyObject* value = nullptr;
  if (PyContextVar_Get(modes, Py_None, &value) < 0) throw nb::python_error();
  return nb::steal(value);
}

void SetGrad(bool on) {
  nb::object done = nb::steal(PyObject_CallOneArg(set_grad, on ? Py_True : Py_False));
  if (!done.is_valid()) throw nb::python_error();
}

// Sets the modes, and returns what to restore afterwards.
PyObject* Entered() {
  nb::object wanted = Carried();
  const bool plain = (wanted.is_none() || wanted.ptr() == Py_False) && !Says(inference) && !Says(autocast);
  if (!plain) {
    nb::object stack = nb::steal(PyObject_CallOneArg(entered, wanted.ptr()));
    if (!stack.is_valid()) throw nb::python_error();
    return stack.is_none() ? nullptr : stack.release().ptr();
  }
  const bool has = Says(grad);
  if (has == wanted.is_none()) return nullptr;
  SetGrad(!has);
  return Py_NewRef(has ? Py_True : Py_False);
}

}  // namespace

void CarryTorchModes(PyObject* context) {
  if (!Imported()) return;
  nb::object now = nb::none();
  if (Says(inference) || Says(autocast)) {
    now = nb::steal(PyObject_CallNoArgs(captured));
    if (!now.is_valid()) throw nb::python_error();
  } else if (!Says(grad)) {
    now = nb::borrow(Py_False);
  }
  if (now.is(Carried())) return;
  if (PyContext_Enter(context) < 0) throw nb::python_error();
  nb::object token = nb::steal(PyContextVar_Set(modes, now.ptr()));
  if (PyContext_Exit(context) < 0 || !token.is_valid()) throw nb::python_error();
}

void TorchModes::Enter() {
  if (!Imported()) return;
  try {
    before_ = PyRef::Steal(Entered());
  } catch (nb::python_error& error) {
    error.restore();
    throw PyFailure::Fetch();
  }
}

void TorchModes::Restore() noexcept {
  PyObject* const before = before_.get();
  nb::object done = nb::steal(PyBool_Check(before) ? PyObject_CallOneArg(set_grad, before)
                                                   : PyObject_CallMethod(before, "close", nullptr));
  if (!done.is_valid()) PyErr_WriteUnraisable(before);
  before_.Clear();
}

void BindTorchModes() { modes = PyContextVar_New("engine.torch_modes", nullptr); }

}  // namespace engine_python
