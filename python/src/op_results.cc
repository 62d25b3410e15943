// What the function of an op is given to change and what it returns: checked, and copied where it shares memory.
#include <cstring>
#include <string>

#include "arguments.h"
#include "bindings.h"
#include "body.h"
#include "failure.h"
#include "op.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

PyObject* unshared =
    nullptr;  // engine/alias.py: unshared(results, arguments) -> the results, copied where they share memory

// NumPy may not be imported, so its class is known by name at first, and by address from then on.
bool IsNdarray(const PyTypeObject* type) {
  static const PyTypeObject* known = nullptr;  // the GIL guards it
  if (type == known) return true;
  if (std::strcmp(type->tp_name, "numpy.ndarray") != 0) return false;
  known = type;
  return true;
}

// Whether `data` cannot be changed in place. None can: it stands for something outside of Python, which the op changes.
bool Immutable(PyObject* data) {
  PyTypeObject* const type = Py_TYPE(data);
  if (PyLong_Check(data) || PyFloat_Check(data) || PyComplex_Check(data) || PyUnicode_Check(data) ||
      PyBytes_Check(data) || PyTuple_Check(data) || PyFrozenSet_Check(data))
    return true;
  // NumPy's scalars cannot be assigned to; its arrays can.
  return std::strncmp(type->tp_name, "numpy.", 6) == 0 && !IsNdarray(type) &&
         !(type->tp_as_mapping && type->tp_as_mapping->mp_ass_subscript) && PyObject_HasAttrString(data, "dtype");
}

// The attribute `base` of an array: by its getter, because the look-up of the name costs as much as all else that is looked at
// between two small nodes.
PyObject* BaseOf(PyObject* array) {
  static const PyGetSetDef* const getter = [&]() -> const PyGetSetDef* {
    nb::object found = nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(array)), "base"));
    if (!found.is_valid()) PyErr_Clear();
    if (!found.is_valid() || !PyObject_TypeCheck(found.ptr(), &PyGetSetDescr_Type)) return nullptr;
    return reinterpret_cast<PyGetSetDescrObject*>(found.ptr())->d_getset;  // NumPy's class has it for ever
  }();
  return getter ? getter->get(array, getter->closure) : PyObject_GetAttrString(array, "base");
}

// Whether `data` may share memory with something: numbers and texts do not, nor does an array that nobody else knows and
// that is no view.
bool MayShare(PyObject* data) {
  PyTypeObject* const type = Py_TYPE(data);
  if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type || type == &PyBool_Type ||
      type == &PyBytes_Type || type == &PyComplex_Type || data == Py_None)
    return false;
  if (Py_REFCNT(data) == 1 && IsNdarray(type)) {
    nb::object owner = nb::steal(BaseOf(data));
    if (owner.is_valid() && owner.is_none()) return false;
    PyErr_Clear();
  }
  return true;
}

[[noreturn]] void Refuse(const OpCore& op, const char* what, PyObject* data) {
  PyErr_Format(PyExc_TypeError, what, op.name.c_str(), Py_TYPE(data)->tp_name);
  throw PyFailure::Fetch();
}

}  // namespace

void CheckUpdated(const OpCore& op, PyObject* data) {
  if (Immutable(data))
    Refuse(op,
           "op '%s' updates an argument that is a %s, which cannot be changed in place: return the new value as an "
           "output, "
           "or keep it in an array",
           data);
}

// The outputs in `result`, as new references; takes over `result`.
void Outputs(const OpCore& op, nb::object result, PyObject* const* args, size_t count, PyObject** out) {
  if (op.outputs == 0) {
    if (result.is_none()) return;
    Refuse(op, "op '%s' returned a %s although it only updates; if it has a result, say outputs=1", result.ptr());
  }
  if (op.outputs > 1) {
    const bool sequence = PyTuple_Check(result.ptr()) || PyList_Check(result.ptr());
    if (!sequence)
      Refuse(op, ("op '%s' returned a %s; " + std::to_string(op.outputs) + " outputs are expected").c_str(),
             result.ptr());
    const auto size = static_cast<size_t>(PySequence_Fast_GET_SIZE(result.ptr()));
    if (size != op.outputs)
      Refuse(op,
             ("op '%s' returned a %s of " + std::to_string(size) + "; " + std::to_string(op.outputs) +
              " outputs are expected")
                 .c_str(),
             result.ptr());
    for (size_t i = 0; i < size; ++i) out[i] = Py_NewRef(PySequence_Fast_GET_ITEM(result.ptr(), i));
    result.reset();  // so that arrays that nobody else knows have one reference again
  } else {
    out[0] = result.release().ptr();
  }
  if (!op.copies) return;
  bool may = false;
  for (size_t i = 0; i < op.outputs; ++i) may |= MayShare(out[i]);
  if (!may) return;
  nb::object outputs = nb::steal(PyTuple_New(op.outputs)),
             given = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < op.outputs; ++i) PyTuple_SET_ITEM(outputs.ptr(), i, out[i]);
  for (size_t i = 0; i < op.outputs; ++i) out[i] = nullptr;
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(given.ptr(), i, Py_NewRef(args[i]));
  PyObject* const both[] = {outputs.ptr(), given.ptr()};
  nb::object fresh = nb::steal(PyObject_Vectorcall(unshared, both, 2, nullptr));
  if (!fresh.is_valid()) throw PyFailure::Fetch();
  for (size_t i = 0; i < op.outputs; ++i) out[i] = Py_NewRef(PyTuple_GET_ITEM(fresh.ptr(), i));
}

nb::object Run(const OpCore& op, PyObject* const* args, size_t count, PyObject* names) {
  const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0;
  return CheckedResult(nb::steal(PyObject_Vectorcall(op.fn.get(), args, count - named, names)), op.name);
}

void BindOpResults(nb::module_& m) {
  m.def(
      "_set_unshared", [](nb::handle copy) { unshared = Py_NewRef(copy.ptr()); }, nb::arg("unshared"));
}

}  // namespace engine_python
