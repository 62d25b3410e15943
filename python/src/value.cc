#include "value.h"

#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "await.h"
#include "bindings.h"
#include "failure.h"
#include "memory.h"
#include "run.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {

PyTypeObject* value_class = nullptr;

namespace {

PyTypeObject* base = nullptr;
PyObject* missing = nullptr;

void Construct(ValueObject* self) {
  self->weak = self->data = self->run = self->given = self->shares = nullptr;
  self->output = 0;
  self->bytes = 0;
  self->on_workers = self->fresh = false;
  self->awaiting = nullptr;
  self->young = 0;
  self->placed = nullptr;
  ::new (&self->var) engine::Var;
  ::new (&self->engine) std::weak_ptr<EngineState>;
}

PyObject* New(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self) Construct(AsValue(self));
  return self;
}

// Value(data, var)
int Init(PyObject* object, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"data", "var", nullptr};
  PyObject *data = nullptr, *var = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO", const_cast<char**>(names), &data, &var)) return -1;
  ValueObject* self = AsValue(object);
  if (var && var != Py_None) {
    if (!nb::isinstance<PyVar>(var)) {
      PyErr_Format(PyExc_TypeError, "Value: var is a %s; a Var is expected", Py_TYPE(var)->tp_name);
      return -1;
    }
    const auto& from = *nb::inst_ptr<PyVar>(var);
    self->var = from.var;
    self->engine = from.engine;
    Py_XSETREF(self->given, Py_NewRef(var));
  }
  if (data) SetData(self, data);
  return 0;
}

int Traverse(PyObject* object, visitproc visit, void* arg) {
  ValueObject* self = AsValue(object);
  Py_VISIT(self->data);
  Py_VISIT(self->run);
  Py_VISIT(self->given);
  Py_VISIT(self->shares);
  Py_VISIT(self->awaiting);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int Clear(PyObject* object) {
  ValueObject* self = AsValue(object);
  Forgotten(self);
  Py_CLEAR(self->data);
  Py_CLEAR(self->run);
  Py_CLEAR(self->given);
  Py_CLEAR(self->shares);
  Py_CLEAR(self->awaiting);
  return 0;
}

void Dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  ValueObject* self = AsValue(object);
  PyTypeObject* type = Py_TYPE(object);
  Forgotten(self);  // first of all: a callback of a weak reference may ask which Values have some memory
  if (self->weak) PyObject_ClearWeakRefs(object);
  Clear(object);
  self->var.~Var();
  self->engine.~weak_ptr();
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* GetVar(PyObject* object, void*) {
  try {
    Aged(AsValue(object));  // whoever has the Var may push ops on it
    if (PyObject* const given = AsValue(object)->given) return Py_NewRef(given);
    return nb::cast(PyVar{AsValue(object)->var, AsValue(object)->engine}).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
}

PyObject* GetSettled(PyObject* object, void*) {
  try {
    std::vector<engine::Var> vars;
    AddVars(object, &vars);
    for (engine::Var& var : vars)
      if (!Settled({std::move(var), AsValue(object)->engine})) Py_RETURN_FALSE;
    Py_RETURN_TRUE;
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
}

PyObject* GetData(PyObject* object, void*) { return DataOf(AsValue(object)); }
int PutData(PyObject* object, PyObject* data, void*) {
  SetData(AsValue(object), data);
  return 0;
}

PyObject* GetShares(PyObject* object, void*) {
  PyObject* const shares = AsValue(object)->shares;
  return Py_NewRef(shares ? shares : Py_None);
}
int PutShares(PyObject* object, PyObject* shares, void*) {
  if (!shares || (shares != Py_None && !PyTuple_CheckExact(shares))) {
    PyErr_SetString(PyExc_TypeError, "_shares: a tuple of Values or None is expected");
    return -1;
  }
  Py_XSETREF(AsValue(object)->shares, shares == Py_None ? nullptr : Py_NewRef(shares));
  return 0;
}

PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ValueObject, weak), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyGetSetDef getset[] = {
    {"var", &GetVar, nullptr, "The Var that orders the ops on the data.", nullptr},
    {"_settled", &GetSettled, nullptr, nullptr, nullptr},
    {"_shares", &GetShares, &PutShares, nullptr, nullptr},
    {"_data", &GetData, &PutData, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMethodDef methods[] = {
    {"__class_getitem__", &Py_GenericAlias, METH_O | METH_CLASS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
template <class F>
void* Slot(F* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

PyTypeObject* ValueBase() { return base; }
PyObject* Missing() { return missing; }

PyObject* NewValue(engine::Var var, const std::weak_ptr<EngineState>& engine) {
  PyObject* made = value_class->tp_alloc(value_class, 0);
  if (!made) throw nb::python_error();
  Construct(AsValue(made));
  AsValue(made)->var = std::move(var);
  AsValue(made)->engine = engine;
  return made;
}

PyObject* DataOf(ValueObject* value) {
  if (value->run) {
    auto* run = nb::inst_ptr<PyRun>(value->run);
    if (engine::Value* output = run->run.Settled(value->output)) {
      value->data = Py_NewRef(output->Get<PyRef>().get());
      Py_CLEAR(value->run);
      Noted(value);
    }
  }
  return Py_NewRef(value->data ? value->data : missing);
}

nb::object RootsOf(PyObject* const* values, size_t count) {
  std::vector<PyObject*> roots;
  const auto add = [&](PyObject* value) {
    if (std::find(roots.begin(), roots.end(), value) == roots.end()) roots.push_back(value);
  };
  for (size_t i = 0; i < count; ++i) {
    PyObject* const shares = AsValue(values[i])->shares;
    if (!shares) add(values[i]);
    for (Py_ssize_t j = 0; shares && j < PyTuple_GET_SIZE(shares); ++j) add(PyTuple_GET_ITEM(shares, j));
  }
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(roots.size())));
  if (!made.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < roots.size(); ++i) PyTuple_SET_ITEM(made.ptr(), i, Py_NewRef(roots[i]));
  return made;
}

void RefuseRecorded() {
  RaiseError("UsageError",
             "a value of a function that is being recorded was given to an op outside of it: it has no data; call the "
             "recorded function, and use what that returns");
}

void SetData(ValueObject* value, PyObject* data) {
  PyObject* before = std::exchange(value->data, Py_XNewRef(data));
  Py_CLEAR(value->run);
  Noted(value);
  Py_XDECREF(before);
}

void BindValue(nb::module_& m) {
  PyType_Slot slots[] = {
      {Py_tp_new, Slot(&New)},
      {Py_tp_init, Slot(&Init)},
      {Py_tp_dealloc, Slot(&Dealloc)},
      {Py_tp_traverse, Slot(&Traverse)},
      {Py_tp_clear, Slot(&Clear)},
      {Py_tp_members, members},
      {Py_tp_getset, getset},
      {Py_tp_methods, methods},
      {0, nullptr},
  };
  PyType_Spec spec{"engine._core.ValueBase", sizeof(ValueObject), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (!type) throw nb::python_error();
  base = reinterpret_cast<PyTypeObject*>(type);
  m.attr("ValueBase") = nb::steal(type);
  m.def(
      "_set_value_class",
      [](nb::handle cls, nb::handle none) {
        value_class = reinterpret_cast<PyTypeObject*>(Py_NewRef(cls.ptr()));
        missing = Py_NewRef(none.ptr());
      },
      nb::arg("cls"), nb::arg("missing"));
}

}  // namespace engine_python
