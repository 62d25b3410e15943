#include "arguments.h"

#include "extent.h"
#include "failure.h"
#include "gil.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// Functions of engine/containers.py, set at import and kept for the life of the process.
PyObject* found_in = nullptr;  // found_in(object) -> Values in a container that this file does not know
PyObject* filled = nullptr;    // filled(object, inputs) -> the object with data in the places of Values

// While it lives, Python counts one more level; too many of them are a RecursionError.
class Level {
 public:
  explicit Level(const char* where) {
    if (Py_EnterRecursiveCall(where)) throw nb::python_error();
  }
  ~Level() { Py_LeaveRecursiveCall(); }
  Level(const Level&) = delete;
};

bool IsDeque(PyTypeObject* type) {
  static PyObject* deque = nullptr;  // the GIL guards it, and no lock of C++'s, because an import may give the GIL up
  if (!deque) deque = nb::object(nb::module_::import_("collections").attr("deque")).release().ptr();
  return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(deque));
}

// Lists, tuples, dicts and arrays of objects are looked into here. What derives from them, sets, deques, dataclasses, and slices whose ends are not
// plain, are kOther: containers.py looks into them.
enum class PartKind { kPlain, kValue, kList, kDict, kObjects, kOther };
PartKind KindOf(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (type == value_class) return PartKind::kValue;
  if (type == &PyList_Type || type == &PyTuple_Type) return PartKind::kList;
  if (type == &PyDict_Type) return PartKind::kDict;
  if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type || type == &PyBool_Type ||
      object == Py_None)
    return PartKind::kPlain;
  if (type == &PySlice_Type) {
    const auto* const slice = reinterpret_cast<PySliceObject*>(object);
    for (PyObject* const end : {slice->start, slice->stop, slice->step})
      if (KindOf(end) != PartKind::kPlain) return PartKind::kOther;
    return PartKind::kPlain;
  }
  if (PyType_IsSubtype(type, ValueBase())) return PartKind::kValue;
  if (PyType_FastSubclass(type, Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS) ||
      PyAnySet_Check(object))
    return PartKind::kOther;
  // The types of data that a program has are few, so the last ones without fields are remembered.
  static PyTypeObject* plain[64] = {};
  PyTypeObject*& known = plain[(reinterpret_cast<uintptr_t>(type) >> 6) % 64];
  if (known == type) return PartKind::kPlain;
  if (DerivesFromNdarray(type)) return HoldsObjects(object) ? PartKind::kObjects : PartKind::kPlain;
  static PyObject* const fields = PyUnicode_InternFromString("__dataclass_fields__");
  PyObject* has = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), fields);
  if (has) {
    Py_DECREF(has);
    return PartKind::kOther;
  }
  ForgetError();
  if (IsDeque(type)) return PartKind::kOther;
  Py_INCREF(type);  // so that its address is not used again
  PyTypeObject* before = std::exchange(known, type);
  Py_XDECREF(before);
  return PartKind::kPlain;
}

// Raises if the key of a dict is a Value, or a tuple or the like with one in it: it would reach the function as it is, unordered.
void RefuseKey(PyObject* key) {
  if (PyAnySet_Check(key)) return;  // of Values it is refused by itself
  Found found;
  if (Collect(key, &found))
    RaiseError("UsageError",
               "a dict has a Value as a key, or in one, which cannot be replaced by its data; give a list of pairs");
}

}  // namespace

bool Collect(PyObject* object, Found* found) {
  switch (KindOf(object)) {
    case PartKind::kPlain: return false;
    case PartKind::kValue: found->push_back(object); return true;
    case PartKind::kList: {
      bool any = false;
      const Level level(" while Values were looked for");
      const PyTypeObject* plain = nullptr;  // most long lists have items of one type, which is looked at once,
      bool arrays = false;                  // and so have arrays in them
      const PyObject* dtype = nullptr;
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
        PyObject* const item = PySequence_Fast_GET_ITEM(object, i);
        if (Py_TYPE(item) == plain && (!arrays || (dtype && DtypeOf(item) == dtype))) continue;
        if (KindOf(item) == PartKind::kPlain) {
          plain = Py_TYPE(item);
          arrays = DerivesFromNdarray(plain);
          dtype = arrays ? DtypeOf(item) : nullptr;
        } else {
          any |= Collect(item, found);
        }
      }
      return any;
    }
    case PartKind::kDict: {
      bool any = false;
      PyObject *key, *item;
      const Level level(" while Values were looked for");
      for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &item);) {
        if (KindOf(key) != PartKind::kPlain) RefuseKey(key);
        any |= Collect(item, found);
      }
      return any;
    }
    case PartKind::kObjects: {
      const Level level(" while Values were looked for");
      std::vector<PyObject*> objects;
      if (!ObjectsIn(object, &objects)) break;
      bool any = false;
      for (PyObject* item : objects) any |= Collect(item, found);
      return any;
    }
    case PartKind::kOther: break;
  }
  nb::object more = nb::steal(PyObject_CallOneArg(found_in, object));
  if (!more.is_valid()) throw nb::python_error();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(more.ptr()); ++i) found->push_back(PyList_GET_ITEM(more.ptr(), i));
  const bool any = PyList_GET_SIZE(more.ptr()) > 0;
  if (any) found->made.push_back(std::move(more));  // a container may make its items anew each time that it is asked
  return any;
}

bool HoldsValues(PyObject* object) {
  const PartKind kind = KindOf(object);
  if (kind == PartKind::kPlain || kind == PartKind::kValue || PyAnySet_Check(object)) return false;
  Found found;
  return Collect(object, &found);
}

namespace {

// Whether a list, a tuple, a dict or a dataclass among the arguments of a call holds Values. A Value itself is none of them.
bool AnyHolds(nb::tuple args, nb::dict kwargs) {
  for (nb::handle arg : args)
    if (HoldsValues(arg.ptr())) return true;
  PyObject* item;
  for (Py_ssize_t at = 0; PyDict_Next(kwargs.ptr(), &at, nullptr, &item);)
    if (HoldsValues(item)) return true;
  return false;
}

// As Filled, for lists, tuples and dicts. Empty: there is a container in `item` that only containers.py can look into.
nb::object FilledHere(PyObject* item) {
  switch (KindOf(item)) {
    case PartKind::kPlain: return nb::borrow(item);
    case PartKind::kValue: return nb::steal(DataOf(AsValue(item)));
    case PartKind::kOther: return {};
    case PartKind::kObjects: return HoldsValues(item) ? nb::object() : nb::borrow(item);
    case PartKind::kList: {
      const Level level(" while Values were replaced");
      const Py_ssize_t size = PySequence_Fast_GET_SIZE(item);
      const bool is_list = PyList_CheckExact(item);
      nb::object made = nb::steal(is_list ? PyList_New(size) : PyTuple_New(size));
      bool known = made.is_valid(), changed = false;
      for (Py_ssize_t i = 0; known && i < size; ++i) {
        PyObject* const old = PySequence_Fast_GET_ITEM(item, i);
        nb::object part = FilledHere(old);
        known = part.is_valid();
        changed |= part.ptr() != old;
        (is_list ? PyList_SET_ITEM(made.ptr(), i, part.release().ptr())
                 : PyTuple_SET_ITEM(made.ptr(), i, part.release().ptr()));
      }
      return !known ? nb::object() : changed ? made : nb::borrow(item);
    }
    case PartKind::kDict: {
      const Level level(" while Values were replaced");
      nb::object made;  // once something has changed
      bool known = true;
      PyObject *key, *old;
      for (Py_ssize_t at = 0; known && PyDict_Next(item, &at, &key, &old);) {
        nb::object part = FilledHere(old);
        known = part.is_valid();
        if (!known || part.ptr() == old) continue;
        if (!made.is_valid()) made = nb::steal(PyDict_Copy(item));
        known = made.is_valid() && PyDict_SetItem(made.ptr(), key, part.ptr()) == 0;
      }
      return !known ? nb::object() : made.is_valid() ? made : nb::borrow(item);
    }
  }
  return {};
}

}  // namespace

PyObject* Filled(PyObject* arg, PyObject* inputs) {
  if (!inputs) {
    try {
      if (nb::object here = FilledHere(arg); here.is_valid()) return here.release().ptr();
    } catch (nb::python_error& error) {
      error.restore();
      throw PyFailure::Fetch();
    }
    ForgetError();
  }
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
  m.def("_any_holds", &AnyHolds, nb::arg("args"), nb::arg("kwargs"),
        nb::sig("def _any_holds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool"));
}

}  // namespace engine_python
