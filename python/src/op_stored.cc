// What the function of an op puts into the containers that it updates.
#include <unordered_set>
#include <vector>

#include "bindings.h"
#include "extent.h"
#include "failure.h"
#include "gil.h"
#include "op.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// engine/alias.py: separated(parts, arguments) replaces parts that share memory with the arguments
PyObject* separated = nullptr;
PyTypeObject* deque = nullptr;  // collections.deque

// A dict with the names of a dataclass's fields, borrowed; null: it is none.
PyObject* FieldsOf(PyObject* data) {
  static PyObject* const name = PyUnicode_InternFromString("__dataclass_fields__");
  PyObject* const fields = _PyType_Lookup(Py_TYPE(data), name);  // which has a cache, and raises nothing
  return fields && PyDict_Check(fields) ? fields : nullptr;
}

bool IsContainer(PyObject* data) {
  if (DerivesFromNdarray(Py_TYPE(data))) return HoldsObjects(data);
  return PyList_Check(data) || PyTuple_Check(data) || PyDict_Check(data) || PyAnySet_Check(data) ||
         PyObject_TypeCheck(data, deque) || FieldsOf(data);
}

// Where an item stands: `key` is that of a dict or the name of a field, borrowed; null: it is the item `index`.
struct Place {
  PyObject* container;
  PyObject* key;
  Py_ssize_t index;
};

template <class F>
void EachItem(PyObject* container, F&& item);

// Of an array of structures: each item of each field, which is an array, too.
template <class F>
void EachField(PyObject* array, F&& item) {
  nb::object dtype = nb::steal(PyObject_GetAttrString(array, "dtype")), names;
  if (dtype.is_valid()) names = nb::steal(PyObject_GetAttrString(dtype.ptr(), "names"));
  for (Py_ssize_t i = 0; names.is_valid() && PyTuple_Check(names.ptr()) && i < PyTuple_GET_SIZE(names.ptr()); ++i) {
    nb::object field = nb::steal(PyObject_GetItem(array, PyTuple_GET_ITEM(names.ptr(), i)));
    if (field.is_valid() && DerivesFromNdarray(Py_TYPE(field.ptr())) && HoldsObjects(field.ptr()))
      EachItem(field.ptr(), item);
  }
  ForgetError();
}

// Calls item(place, data) for each item of the container. After an exception of Python's the rest is not looked at.
template <class F>
void EachItem(PyObject* container, F&& item) {
  if (PyList_Check(container) || PyTuple_Check(container)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i)
      item(Place{container, nullptr, i}, PySequence_Fast_GET_ITEM(container, i));
  } else if (PyDict_Check(container)) {
    PyObject *key, *data;
    for (Py_ssize_t i = 0; PyDict_Next(container, &i, &key, &data);) item(Place{container, key, 0}, data);
  } else if (DerivesFromNdarray(Py_TYPE(container))) {
    std::vector<PyObject*> objects;
    if (!ObjectsIn(container, &objects)) return EachField(container, item);
    for (size_t i = 0; i < objects.size(); ++i) item(Place{container, nullptr, static_cast<Py_ssize_t>(i)}, objects[i]);
  } else if (PyAnySet_Check(container) || PyObject_TypeCheck(container, deque)) {
    nb::object iterator = nb::steal(PyObject_GetIter(container));
    for (Py_ssize_t i = 0; iterator.is_valid(); ++i) {
      PyObject* const data = PyIter_Next(iterator.ptr());
      if (!data) break;
      Py_DECREF(data);  // the container has it
      item(Place{container, nullptr, i}, data);
    }
  } else if (PyObject* const fields = FieldsOf(container)) {
    PyObject* name;
    for (Py_ssize_t i = 0; PyDict_Next(fields, &i, &name, nullptr);) {
      nb::object field = nb::steal(PyObject_GetAttr(container, name));
      if (!field.is_valid()) ForgetError();
      if (!field.is_valid() || Py_REFCNT(field.ptr()) == 1) continue;  // a property made it
      PyObject* const data = field.ptr();
      field.reset();
      item(Place{container, name, 0}, data);
    }
  }
  ForgetError();
}

constexpr int kDeepest = 32;  // of containers in each other; what lies deeper is not looked at

// Calls item(place, data) for all in the container; where it says true, that is a container to be looked into.
template <class F>
void Walk(PyObject* container, std::unordered_set<PyObject*>* seen, F&& item, int depth = 0) {
  if (depth == kDeepest || !seen->insert(container).second) return;
  EachItem(container, [&](const Place& place, PyObject* data) {
    if (item(place, data)) Walk(data, seen, item, depth + 1);
  });
}

}  // namespace

void Stored::Watch(const GivenArguments& given, size_t at) {
  PyObject* const container = given.all[at];
  bool others = false;
  for (size_t i = 0; i < given.count; ++i) others |= given.all[i] != container && MayHaveMemory(given.all[i]);
  if (!others || !IsContainer(container)) return;
  Watched& watched = watched_.emplace_back(Watched{container, {}});
  std::unordered_set<PyObject*> seen;
  Walk(container, &seen, [&](const Place&, PyObject* data) {
    if (!MayHaveMemory(data)) return false;
    const bool inside = IsContainer(data);
    watched.before.push_back({nb::borrow(data), inside});
    return inside;
  });
}

nb::object Stored::Run(const OpCore& op, const GivenArguments& given, PyObject* names) {
  try {
    nb::object result = engine_python::Run(op, given.all, given.count, names);
    Separate(given);
    return result;
  } catch (...) {
    try {
      Separate(given);  // what it put there before it failed
    } catch (const PyFailure&) {
    }
    throw;
  }
}

void Stored::Separate(const GivenArguments& given) {
  for (const Watched& watched : watched_) {
    nb::list parts;
    std::unordered_set<PyObject*> seen, before;
    size_t next = 0;  // most items stand where they stood, and are not touched
    Walk(watched.container, &seen, [&](const Place& place, PyObject* data) {
      if (next < watched.before.size() && watched.before[next].data.ptr() == data) return watched.before[next++].inside;
      if (IsOwn(data)) return false;  // numbers and the like, too
      if (before.empty())
        for (const Part& one : watched.before) before.insert(one.data.ptr());
      if (before.contains(data)) return IsContainer(data);
      const nb::object key = place.key ? nb::borrow(place.key) : nb::object(nb::int_(place.index));
      parts.append(nb::make_tuple(nb::handle(place.container), key, nb::handle(data)));
      return false;
    });
    if (parts.size() == 0) continue;
    nb::list arguments;
    for (size_t i = 0; i < given.count; ++i)
      if (given.all[i] != watched.container) arguments.append(nb::handle(given.all[i]));
    PyObject* const both[] = {parts.ptr(), arguments.ptr()};
    if (!nb::steal(PyObject_Vectorcall(separated, both, 2, nullptr)).is_valid()) throw PyFailure::Fetch();
  }
  watched_.clear();  // what the function took out and returned is its own again
}

void BindOpStored(nb::module_& m) {
  deque = reinterpret_cast<PyTypeObject*>(nb::module_::import_("collections").attr("deque").inc_ref().ptr());
  m.def(
      "_set_separated", [](nb::handle separate) { separated = Py_NewRef(separate.ptr()); }, nb::arg("separated"));
}

}  // namespace engine_python
