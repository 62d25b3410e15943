#include "tensors.h"

#include <nanobind/nanobind.h>

#include <cstring>

#include "gil.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

struct Names {
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* grad = PyUnicode_InternFromString("grad");
  PyObject* untyped_storage = PyUnicode_InternFromString("untyped_storage");
  PyObject* resizable = PyUnicode_InternFromString("resizable");
  PyObject* cdata = PyUnicode_InternFromString("_cdata");
};
const Names& Spelt() {
  static const Names names;
  return names;
}

nb::object Attribute(PyObject* object, PyObject* name) { return nb::steal(PyObject_GetAttr(object, name)); }
nb::object Called(PyObject* object, PyObject* method) { return nb::steal(PyObject_CallMethodNoArgs(object, method)); }

PyObject* users_of = nullptr;  // torch._C._storage_Use_Count
long users_alone = -1;  // what it says of the storage of a tensor that shares it with nobody; -1: it says nothing

long UsersOf(PyObject* storage) {
  const nb::object at = Attribute(storage, Spelt().cdata);
  if (!at.is_valid()) return -1;
  const nb::object count = nb::steal(PyObject_CallOneArg(users_of, at.ptr()));
  return count.is_valid() ? PyLong_AsLong(count.ptr()) : -1;
}

void FindUsers() {
  const nb::object torch = nb::steal(PyImport_ImportModule("torch"));
  if (!torch.is_valid()) return;
  const nb::object inner = nb::steal(PyObject_GetAttrString(torch.ptr(), "_C"));
  if (!inner.is_valid()) return;
  PyObject* const count = PyObject_GetAttrString(inner.ptr(), "_storage_Use_Count");
  if (!count) return;
  users_of = count;
  const nb::object tensor = nb::steal(PyObject_CallMethod(torch.ptr(), "empty", "i", 1));
  const nb::object storage = tensor.is_valid() ? Called(tensor.ptr(), Spelt().untyped_storage) : nb::object();
  if (storage.is_valid()) users_alone = UsersOf(storage.ptr());
}

}  // namespace

bool IsTensor(const PyTypeObject* type) {
  static const PyTypeObject* known = nullptr;  // the GIL guards it
  if (type == known) return true;
  if (known || std::strcmp(type->tp_name, "Tensor") != 0) return false;
  PyObject* const torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (!torch) return false;
  const nb::object found = nb::steal(PyObject_GetAttrString(torch, "Tensor"));
  if (found.ptr() == reinterpret_cast<const PyObject*>(type)) known = type;
  ForgetError();
  return known != nullptr;
}

bool SharesNothing(PyObject* tensor) {
  const Names& names = Spelt();
  const bool alone = [&] {
    // The GIL guards it. C++'s own guard of a static would be a lock that is held while Python code gives the GIL up.
    static bool looked = false;
    if (!looked) {
      FindUsers();  // two threads may do it, with the same result
      ForgetError();
      looked = true;
    }
    if (users_alone < 0) return false;
    if (Attribute(tensor, names.requires_grad).ptr() != Py_False || Attribute(tensor, names.grad).ptr() != Py_None)
      return false;
    const nb::object storage = Called(tensor, names.untyped_storage);  // a sparse tensor has none
    // What PyTorch has not allocated, such as an array's memory, cannot be resized.
    return storage.is_valid() && UsersOf(storage.ptr()) == users_alone &&
           Called(storage.ptr(), names.resizable).ptr() == Py_True;
  }();
  ForgetError();
  return alone;
}

}  // namespace engine_python
