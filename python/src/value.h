// Value: data and the Var that orders the ops on it, as a Python object.
//
// It is a type of the C API and not of nanobind, because every call of an op makes one. `engine.Value` is its subclass in
// Python, which adds what need not be fast.
//
// Threads:   the GIL guards the fields. `data` of a pending Value belongs to the op that makes it; read it after a wait for
//            the Var, or in an op that names the Var.
// Ownership: a Value has its data, or the run whose output it is. Ops that were pushed keep their Values.
// Errors:    AddVars raises UsageError for a recorded value, which has no Var and no data.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "handle.h"

namespace engine_python {

struct Placed;

struct ValueObject {
  PyObject ob_base;
  PyObject* weak;      // list of weak references
  PyObject* data;      // null: not made yet, or still in `run`
  PyObject* run;       // the Run whose output it is, until somebody looks at it; or null
  PyObject* given;     // the Var that it was made with, which may keep a Run; or null
  PyObject* shares;    // its roots: the Values whose memory it shares (an op's alias="order"), a tuple; or null
  uint32_t output;     // of `run`
  uint64_t bytes;      // a guess at the size of data that are not there yet, for max_pending_bytes
  bool on_workers;     // the last op that changes it was pushed for the workers, so whoever awaits it may be told there
  bool fresh;          // whoever awaits it may leave a future here (await.h)
  PyObject* awaiting;  // these futures, a list; or null
  size_t young;        // not 0: nobody has asked yet where its data lie (memory.h)
  Placed* placed;      // where they lie, once somebody has; or null
  engine::Var var;     // null: a recorded value
  std::weak_ptr<EngineState> engine;
};

extern PyTypeObject* value_class;  // of the Values that calls make: engine.Value
PyTypeObject* ValueBase();         // made at import
inline bool IsValue(PyObject* object) {
  return Py_TYPE(object) == value_class || PyObject_TypeCheck(object, ValueBase());
}
inline ValueObject* AsValue(PyObject* object) { return reinterpret_cast<ValueObject*>(object); }

// A Value without data, for an op that was or will be pushed.
PyObject* NewValue(engine::Var var, const std::weak_ptr<EngineState>& engine);
// A new reference to the data, or to engine.MISSING if there are none. The caller sees to it that no op changes them now.
PyObject* DataOf(ValueObject* value);
void SetData(ValueObject* value, PyObject* data);
[[noreturn]] void RefuseRecorded();
// The roots of what shares memory with these Values: theirs, and those of them that have none. Whatever shares memory with one
// names its Var, so two views of a Value are ordered by it, and a view of a view need not name the one between, which may be
// overwritten and have other memory.
nanobind::object RootsOf(PyObject* const* values, size_t count);
// Adds the Vars that an op on the Value names: its own, and those of its roots, which may go to other Vars than its own.
// UsageError for a recorded value.
template <class Vars>
void AddVars(PyObject* value, Vars* own, Vars* of_roots) {
  ValueObject* const self = AsValue(value);
  if (!self->var) RefuseRecorded();
  own->push_back(self->var);
  if (!self->shares) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->shares); ++i)
    of_roots->push_back(AsValue(PyTuple_GET_ITEM(self->shares, i))->var);
}
template <class Vars>
void AddVars(PyObject* value, Vars* vars) {
  AddVars(value, vars, vars);
}
// engine.MISSING: stands for data that were never made, because the op that should have made them failed.
PyObject* Missing();

}  // namespace engine_python
