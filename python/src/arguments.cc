#include "arguments.h"

#include "failure.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// Functions of engine/containers.py, set at import and kept for the life of the process.
PyObject* found_in = nullptr;  // found_in(object) -> Values in containers that this file does not know
PyObject* filled = nullptr;    // filled(object, inputs) -> the object with data in the places of Values

// Containers whose items are looked at, here or by found_in: exact lists, tuples and dicts, and what derives from them.
// Dataclasses are the business of found_in too.
enum class PartKind { kPlain, kValue, kList, kDict, kOther };
PartKind KindOf(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (type == value_class) return PartKind::kValue;
  if (type == &PyList_Type || type == &PyTuple_Type) return PartKind::kList;
  if (type == &PyDict_Type) return PartKind::kDict;
  if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type || type == &PyBool_Type ||
      object == Py_None)
    return PartKind::kPlain;
  if (PyType_IsSubtype(type, ValueBase())) return PartKind::kValue;
  if (PyType_FastSubclass(type, Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS) ||
      PyAnySet_Check(object))
    return PartKind::kOther;
  // The types of data that a program has are few, so the last ones without fields are remembered.
  static PyTypeObject* plain[64] = {};
  PyTypeObject*& known = plain[(reinterpret_cast<uintptr_t>(type) >> 6) % 64];
  if (known == type) return PartKind::kPlain;
  static PyObject* const fields = PyUnicode_InternFromString("__dataclass_fields__");
  PyObject* has = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), fields);
  if (has) {
    Py_DECREF(has);
    return PartKind::kOther;
  }
  PyErr_Clear();
  Py_INCREF(type);  // so that its address is not used again
  PyTypeObject* before = std::exchange(known, type);
  Py_XDECREF(before);
  return PartKind::kPlain;
}

}  // namespace

// Adds the Values in `object`; they are borrowed from it. Whether there are any.
bool Collect(PyObject* object, Found* found) {
  switch (KindOf(object)) {
    case PartKind::kPlain: return false;
    case PartKind::kValue: found->push_back(object); return true;
    case PartKind::kList: {
      bool any = false;
      if (Py_EnterRecursiveCall(" while Values were looked for")) throw nb::python_error();
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
        any |= Collect(PySequence_Fast_GET_ITEM(object, i), found);
      Py_LeaveRecursiveCall();
      return any;
    }
    case PartKind::kDict: {
      bool any = false;
      PyObject* item;
      if (Py_EnterRecursiveCall(" while Values were looked for")) throw nb::python_error();
      for (Py_ssize_t at = 0; PyDict_Next(object, &at, nullptr, &item);) any |= Collect(item, found);
      Py_LeaveRecursiveCall();
      return any;
    }
    case PartKind::kOther: break;
  }
  nb::object more = nb::steal(PyObject_CallOneArg(found_in, object));
  if (!more.is_valid()) throw nb::python_error();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(more.ptr()); ++i) found->push_back(PyList_GET_ITEM(more.ptr(), i));
  return PyList_GET_SIZE(more.ptr()) > 0;
}

// The data that the function is given for an argument; a new reference. `inputs`: of a node, or null.
PyObject* Filled(PyObject* arg, PyObject* inputs) {
  PyObject* const args[] = {arg, inputs ? inputs : Py_None};
  PyObject* out = PyObject_Vectorcall(filled, args, 2, nullptr);
  if (!out) throw PyFailure::Fetch();
  return out;
}

nb::object TupleOf(PyObject* const* args, size_t count) {
  nb::object out = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!out.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(out.ptr(), i, Py_NewRef(args[i]));
  return out;
}

void BindArguments(nb::module_& m) {
  m.def(
      "_set_containers",
      [](nb::handle find, nb::handle fill) {
        found_in = Py_NewRef(find.ptr());
        filled = Py_NewRef(fill.ptr());
      },
      nb::arg("found_in"), nb::arg("filled"));
}

}  // namespace engine_python
