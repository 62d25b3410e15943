// What the function of an op is given to change and what it returns: checked, and copied where it shares memory.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bindings.h"
#include "body.h"
#include "extent.h"
#include "failure.h"
#include "gil.h"
#include "op.h"
#include "tensors.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

PyObject* unshared =
    nullptr;  // engine/alias.py: unshared(results, arguments, values, held) -> the results, copied where they share memory

// Null, without an exception, if there is none.
nb::object AttributeOf(nb::handle object, const char* name) {
  nb::object found = nb::steal(PyObject_GetAttrString(object.ptr(), name));
  if (!found.is_valid()) ForgetError();
  return found;
}

// Numbers and times of the standard library. They are known by name, so that nothing is imported for them.
bool IsPlain(PyTypeObject* type) {
  for (const char* name :
       {"decimal.Decimal", "datetime.timedelta", "datetime.datetime", "datetime.date", "datetime.time"})
    if (std::strcmp(type->tp_name, name) == 0) return true;
  if (std::strcmp(type->tp_name, "Fraction") != 0) return false;
  const nb::object module = AttributeOf(reinterpret_cast<PyObject*>(type), "__module__");
  return module.is_valid() && PyUnicode_Check(module.ptr()) &&
         PyUnicode_CompareWithASCIIString(module.ptr(), "fractions") == 0;
}

constexpr int kDeepestPart = 8;  // of frozen dataclasses and tuples in each other

bool Immutable(PyObject* data);
bool IsFrozen(PyObject* data, int depth);

// What a frozen dataclass has. A tuple there may hold arrays, so its items are looked at, too; None is data like any other.
bool IsFrozenPart(PyObject* data, int depth) {
  if (data == Py_None) return true;
  if (!PyTuple_Check(data) && !PyFrozenSet_Check(data)) return Immutable(data) || IsFrozen(data, depth);
  const nb::object items = nb::steal(PySequence_Tuple(data));
  if (!items.is_valid()) ForgetError();
  if (!items.is_valid() || depth == 0) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.ptr()); ++i)
    if (!IsFrozenPart(PyTuple_GET_ITEM(items.ptr(), i), depth - 1)) return false;
  return true;
}

// A number or time as above, or a frozen dataclass that has fields, of which none can be changed in place either.
// `depth`: how deeply it is looked into; what lies deeper may be changed.
bool IsFrozen(PyObject* data, int depth) {
  PyTypeObject* const type = Py_TYPE(data);
  if (IsPlain(type)) return true;
  // dataclass(frozen=True) gives the class a __setattr__. Without one, nothing costly is asked.
  if (depth == 0 || type->tp_setattro == PyObject_GenericSetAttr) return false;
  // Of the class itself: one that derives from a dataclass and is none can have more attributes, which are not frozen.
  const nb::object own = AttributeOf(reinterpret_cast<PyObject*>(type), "__dict__");
  if (!own.is_valid()) return false;
  const nb::object parameters = nb::steal(PyMapping_GetItemString(own.ptr(), "__dataclass_params__"));
  if (!parameters.is_valid()) ForgetError();
  if (!parameters.is_valid() || !AttributeOf(parameters, "frozen").is(Py_True)) return false;
  const nb::object fields = AttributeOf(reinterpret_cast<PyObject*>(type), "__dataclass_fields__");
  if (!fields.is_valid() || !PyDict_Check(fields.ptr()) || PyDict_Size(fields.ptr()) == 0) return false;
  const nb::object names = nb::steal(PyDict_Keys(fields.ptr()));
  if (!names.is_valid()) ForgetError();
  for (Py_ssize_t i = 0; names.is_valid() && i < PyList_GET_SIZE(names.ptr()); ++i) {
    const nb::object value = nb::steal(PyObject_GetAttr(data, PyList_GET_ITEM(names.ptr(), i)));
    if (!value.is_valid()) ForgetError();  // a field that only __init__ takes
    if (value.is_valid() && !IsFrozenPart(value.ptr(), depth - 1)) return false;
  }
  // It may have attributes that are no fields, such as cached properties. One with slots has no __dict__.
  const nb::object attributes = AttributeOf(data, "__dict__");
  const nb::object values = nb::steal(
      attributes.is_valid() && PyDict_Check(attributes.ptr()) ? PyDict_Values(attributes.ptr()) : PyList_New(0));
  if (!values.is_valid()) ForgetError();
  for (Py_ssize_t i = 0; values.is_valid() && i < PyList_GET_SIZE(values.ptr()); ++i)
    if (!IsFrozenPart(PyList_GET_ITEM(values.ptr(), i), depth - 1)) return false;
  return names.is_valid() && values.is_valid();
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

// Whether it is an object of a class of the engine's own that is no container: to Python such data never change (engine/extents.py: fixed).
bool IsEngines(PyTypeObject* type) {
  constexpr unsigned long kContainers = Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS;
  if (type->tp_flags & kContainers) return false;
  const auto kind = nb::borrow(reinterpret_cast<PyObject*>(type));
  const nb::object module = AttributeOf(kind, "__module__");
  if (!module.is_valid() || !PyUnicode_Check(module.ptr())) return false;
  const char* name = PyUnicode_AsUTF8(module.ptr());
  if (!name) ForgetError();
  if (!name || std::strncmp(name, "engine", 6) != 0 || (name[6] != '.' && name[6] != '\0')) return false;
  const nb::object fields = AttributeOf(kind, "__dataclass_fields__"), own = AttributeOf(kind, "__name__");
  return !fields.is_valid() && own.is_valid() && PyUnicode_Check(own.ptr()) &&
         PyUnicode_CompareWithASCIIString(own.ptr(), "DeviceArray") != 0;
}

// Looks at what a function has returned: whether anybody else has some of it.
class Results {
 public:
  // Whether the caller is the only owner of `data`, so that it shares memory with nothing. True for numbers and texts,
  // for arrays that nobody else knows and views of such, and for containers of these. What others have is noted.
  bool Own(PyObject* data, int depth = 0) {
    PyTypeObject* const type = Py_TYPE(data);
    if (!MayHaveMemory(data)) return true;
    if (Py_REFCNT(data) > 1) return Held(data);
    if (IsNdarray(type) && !HoldsObjects(data)) return OwnArray(data, data);
    if (type == &PyByteArray_Type) return true;
    if (PyMemoryView_Check(data)) return OwnBuffer(data, data);
    if (IsTensor(type)) return SharesNothing(data);
    if (depth == kDeepest) return false;
    if (IsEngines(type)) return true;
    if (IsNdarray(type)) {
      std::vector<PyObject*> objects;
      bool own = ObjectsIn(data, &objects) && OwnArray(data, data);
      for (PyObject* item : objects) own &= Own(item, depth + 1);
      return own;
    }
    bool own = type == &PyList_Type || type == &PyTuple_Type || type == &PyDict_Type;
    if (type == &PyDict_Type) {
      PyObject* item;
      for (Py_ssize_t at = 0; PyDict_Next(data, &at, nullptr, &item);) own &= Own(item, depth + 1);
    } else if (own) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(data); ++i)
        own &= Own(PySequence_Fast_GET_ITEM(data, i), depth + 1);
    }
    return own;
  }
  // Their ids, as a set of Python's.
  nb::object held() const {
    nb::object made = nb::steal(PySet_New(nullptr));
    for (PyObject* one : held_) {
      nb::object id = nb::steal(PyLong_FromVoidPtr(one));
      if (!id.is_valid() || PySet_Add(made.ptr(), id.ptr()) != 0) throw PyFailure::Fetch();
    }
    return made;
  }

 private:
  // How deeply nested containers are looked into here; deeper ones are looked into in Python.
  static constexpr int kDeepest = 32;
  bool Held(PyObject* data) {
    held_.push_back(data);
    return false;
  }
  // `array` is what `data` is a view of, or is `data`.
  bool OwnArray(PyObject* array, PyObject* data) {
    nb::object owner = nb::steal(BaseOf(array));
    for (; owner.is_valid() && !owner.is_none(); owner = nb::steal(BaseOf(owner.ptr()))) {
      if (!IsNdarray(Py_TYPE(owner.ptr()))) {
        if (PyMemoryView_Check(owner.ptr())) return OwnBuffer(owner.ptr(), data);
        return PyBytes_CheckExact(owner.ptr());
      }
      if (Py_REFCNT(owner.ptr()) > 2) return Held(data);  // the view has one reference, and this has one
    }
    ForgetError();
    return owner.is_valid();
  }
  bool OwnBuffer(PyObject* view, PyObject* data) {
    // All views of one buffer share what Python keeps of it, and that alone has a reference to the buffer.
    if (reinterpret_cast<PyMemoryViewObject*>(view)->mbuf->exports > 1) return Held(data);
    PyObject* const of = PyMemoryView_GET_BASE(view);
    if (!of) return false;
    if (PyBytes_CheckExact(of)) return true;
    if (Py_REFCNT(of) > 1) return Held(data);
    return IsNdarray(Py_TYPE(of)) ? OwnArray(of, data) : PyByteArray_CheckExact(of);
  }
  std::vector<PyObject*> held_;
};

// Whether an array lies in one of the arguments.
bool LiesIn(PyObject* data, const GivenArguments& given) {
  Extent extent, of;
  if (!IsNdarray(Py_TYPE(data)) || !ExtentOf(data, &extent)) return false;
  for (size_t i = 0; i < given.count; ++i)
    if (given.IsValue(i) && IsNdarray(Py_TYPE(given.all[i])) && ExtentOf(given.all[i], &of) && of.low <= extent.low &&
        extent.high <= of.high)
      return true;
  return false;
}

[[noreturn]] void Refuse(const OpCore& op, const char* what, PyObject* data) {
  PyErr_Format(PyExc_TypeError, what, op.name.c_str(), Py_TYPE(data)->tp_name);
  throw PyFailure::Fetch();
}

}  // namespace

void CheckUpdated(const OpCore& op, PyObject* data) {
  if (Immutable(data) || IsFrozen(data, kDeepestPart))
    Refuse(op,
           "op '%s' updates an argument that is a %s, which cannot be changed in place: return the new value as an "
           "output, "
           "or keep it in an array",
           data);
}

// The outputs in `result`, as new references; takes over `result`.
void Outputs(const OpCore& op, nb::object result, const GivenArguments& given, PyObject** out) {
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
  Results results;
  bool own = true;
  for (size_t i = 0; i < op.outputs; ++i) own &= results.Own(out[i]) || (!op.copies && LiesIn(out[i], given));
  if (own) return;
  nb::object outputs = nb::steal(PyTuple_New(op.outputs)), values = nb::steal(PyList_New(0)),
             arguments = nb::steal(PyList_New(0)), held = op.copies ? results.held() : nb::steal(PySet_New(nullptr));
  for (size_t i = 0; i < op.outputs; ++i) PyTuple_SET_ITEM(outputs.ptr(), i, std::exchange(out[i], nullptr));
  for (size_t i = 0; i < given.count; ++i)
    if (PyList_Append((!op.copies && given.IsValue(i) ? values : arguments).ptr(), given.all[i]) != 0)
      throw PyFailure::Fetch();
  PyObject* const all[] = {outputs.ptr(), arguments.ptr(), values.ptr(), held.ptr()};
  nb::object fresh = nb::steal(PyObject_Vectorcall(unshared, all, 4, nullptr));
  if (!fresh.is_valid()) throw PyFailure::Fetch();
  for (size_t i = 0; i < op.outputs; ++i) out[i] = Py_NewRef(PyTuple_GET_ITEM(fresh.ptr(), i));
}

bool IsOwn(PyObject* data) { return Results().Own(data); }

nb::object Run(const OpCore& op, PyObject* const* args, size_t count, PyObject* names) {
  const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0;
  return CheckedResult(nb::steal(PyObject_Vectorcall(op.fn.get(), args, count - named, names)), op.name);
}

void BindOpResults(nb::module_& m) {
  m.def(
      "_set_unshared", [](nb::handle copy) { unshared = Py_NewRef(copy.ptr()); }, nb::arg("unshared"));
}

}  // namespace engine_python
