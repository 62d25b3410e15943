#include "op.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "bindings.h"
#include "body.h"
#include "cancel.h"
#include "failure.h"
#include "policy.h"
#include "push.h"
#include "run.h"
#include "site.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// Functions of engine/ops.py and engine/alias.py, set at import and kept for the life of the process.
PyObject* found_in = nullptr;  // found_in(object) -> Values in containers that this file does not know
PyObject* filled = nullptr;    // filled(object, inputs) -> the object with data in the places of Values
PyObject* unshared = nullptr;  // unshared(results, arguments) -> the results, copied where they share memory

struct OpObject {
  PyObject ob_base;
  vectorcallfunc call;
  PyObject* weak;
  PyObject* dict;
  OpCorePtr core;
};

// --- Values among the arguments

// Containers whose items are looked at, here or by found_in: exact lists, tuples and dicts, and what derives from them.
// Dataclasses are the business of found_in too.
enum class Kind { kPlain, kValue, kList, kDict, kOther };
Kind KindOf(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (type == value_class) return Kind::kValue;
  if (type == &PyList_Type || type == &PyTuple_Type) return Kind::kList;
  if (type == &PyDict_Type) return Kind::kDict;
  if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type || type == &PyBool_Type ||
      object == Py_None)
    return Kind::kPlain;
  if (PyType_IsSubtype(type, ValueBase())) return Kind::kValue;
  if (PyType_FastSubclass(type, Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS) ||
      PyAnySet_Check(object))
    return Kind::kOther;
  // The types of data that a program has are few, so the last ones without fields are remembered.
  static PyTypeObject* plain[64] = {};
  PyTypeObject*& known = plain[(reinterpret_cast<uintptr_t>(type) >> 6) % 64];
  if (known == type) return Kind::kPlain;
  static PyObject* const fields = PyUnicode_InternFromString("__dataclass_fields__");
  PyObject* has = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), fields);
  if (has) {
    Py_DECREF(has);
    return Kind::kOther;
  }
  PyErr_Clear();
  Py_INCREF(type);  // so that its address is not used again
  PyTypeObject* before = std::exchange(known, type);
  Py_XDECREF(before);
  return Kind::kPlain;
}

using Found = std::vector<PyObject*>;

// Adds the Values in `object`; they are borrowed from it. Whether there are any.
bool Collect(PyObject* object, Found* found) {
  switch (KindOf(object)) {
    case Kind::kPlain: return false;
    case Kind::kValue: found->push_back(object); return true;
    case Kind::kList: {
      bool any = false;
      if (Py_EnterRecursiveCall(" while Values were looked for")) throw nb::python_error();
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
        any |= Collect(PySequence_Fast_GET_ITEM(object, i), found);
      Py_LeaveRecursiveCall();
      return any;
    }
    case Kind::kDict: {
      bool any = false;
      PyObject* item;
      if (Py_EnterRecursiveCall(" while Values were looked for")) throw nb::python_error();
      for (Py_ssize_t at = 0; PyDict_Next(object, &at, nullptr, &item);) any |= Collect(item, found);
      Py_LeaveRecursiveCall();
      return any;
    }
    case Kind::kOther: break;
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

// Calls fn(References) and drops them afterwards.
struct References {
  explicit References(size_t count) : many(count > 12 ? count : 0), all(count > 12 ? many.data() : few) {}
  ~References() {
    for (size_t i = 0; i < size; ++i) Py_DECREF(all[i]);
  }
  References(const References&) = delete;
  void Add(PyObject* owned) { all[size++] = owned; }
  PyObject* few[12];
  std::vector<PyObject*> many;
  PyObject** all;
  size_t size = 0;
};

// --- what the function returned

bool Immutable(PyObject* data) {
  PyTypeObject* const type = Py_TYPE(data);
  if (PyLong_Check(data) || PyFloat_Check(data) || PyComplex_Check(data) || PyUnicode_Check(data) ||
      PyBytes_Check(data) || PyTuple_Check(data) || PyFrozenSet_Check(data) || data == Py_None)
    return true;
  // NumPy's scalars cannot be assigned to; its arrays can.
  return std::strncmp(type->tp_name, "numpy.", 6) == 0 && std::strcmp(type->tp_name, "numpy.ndarray") != 0 &&
         !(type->tp_as_mapping && type->tp_as_mapping->mp_ass_subscript) && PyObject_HasAttrString(data, "dtype");
}

// Whether `data` may share memory with something: numbers and texts do not, nor does an array that nobody else knows and
// that is no view.
bool MayShare(PyObject* data) {
  PyTypeObject* const type = Py_TYPE(data);
  if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type || type == &PyBool_Type ||
      type == &PyBytes_Type || type == &PyComplex_Type || data == Py_None)
    return false;
  if (Py_REFCNT(data) == 1 && std::strcmp(type->tp_name, "numpy.ndarray") == 0) {
    static PyObject* const name = PyUnicode_InternFromString("base");
    nb::object owner = nb::steal(PyObject_GetAttr(data, name));
    if (owner.is_valid() && owner.is_none()) return false;
    PyErr_Clear();
  }
  return true;
}

[[noreturn]] void Refuse(const OpCore& op, const char* what, PyObject* data) {
  PyErr_Format(PyExc_TypeError, what, op.name.c_str(), Py_TYPE(data)->tp_name);
  throw PyFailure::Fetch();
}

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

// --- calls that are pushed

// Its arguments, the outputs that it makes and the Values that it updates, as one tuple, so that moving it is cheap.
struct Call {
  OpCorePtr op;
  PyRef args;           // a tuple: positional arguments, then those by name
  PyRef names;          // a tuple, or null
  PyRef carried;        // the context of the push
  PyRef outputs;        // the output Value, or a tuple of them, or null
  uint64_t filled = 0;  // which arguments hold Values: bit i for argument i, the last bit for all behind it

  void operator()(engine::RunContext& context) {
    BodyPython python;
    BodyScope scope(&context);
    DropDeferred();
    try {
      const ContextScope own(&carried);
      Execute();
    } catch (...) {
      Drop();
      throw;
    }
    Drop();
  }

 private:
  bool Holds(size_t i) const { return filled >> (i < 63 ? i : 63) & 1; }
  void Drop() {  // before anybody who waits for the op goes on
    args.Clear();
    names.Clear();
    outputs.Clear();
    carried.Clear();
  }
  void Execute() {
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(args.get()));
    References given(count);
    for (size_t i = 0; i < count; ++i) {
      PyObject* const arg = PyTuple_GET_ITEM(args.get(), i);
      if (!Holds(i)) {
        given.Add(Py_NewRef(arg));
      } else if (IsValue(arg)) {
        given.Add(DataOf(AsValue(arg)));
      } else {
        given.Add(Filled(arg, nullptr));
      }
    }
    for (const OpCore::Updated& updated : op->updates) {
      const Py_ssize_t at = PlaceOfUpdated(updated, count);
      if (at >= 0) CheckUpdated(*op, given.all[at]);
    }
    nb::object result = Run(*op, given.all, count, names.get());
    References made(op->outputs);
    Outputs(*op, std::move(result), given.all, count, made.all);
    made.size = op->outputs;
    if (op->outputs == 1) {
      SetData(AsValue(outputs.get()), made.all[0]);
    } else {
      for (size_t i = 0; i < op->outputs; ++i) SetData(AsValue(PyTuple_GET_ITEM(outputs.get(), i)), made.all[i]);
    }
  }
  Py_ssize_t PlaceOfUpdated(const OpCore::Updated& updated, size_t count) const {
    const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names.get())) : 0;
    if (updated.place >= 0 && static_cast<size_t>(updated.place) < count - named) return updated.place;
    for (size_t i = 0; i < named; ++i)
      if (PyUnicode_Compare(PyTuple_GET_ITEM(names.get(), i), updated.name.get()) == 0)
        return static_cast<Py_ssize_t>(count - named + i);
    return -1;
  }
};

// The argument of a parameter that the op updates; null if it was not given.
PyObject* ArgumentOf(const OpCore::Updated& updated, PyObject* const* args, size_t positional, PyObject* names) {
  if (updated.place >= 0 && static_cast<size_t>(updated.place) < positional) return args[updated.place];
  if (names)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
      PyObject* const name = PyTuple_GET_ITEM(names, i);
      if (name == updated.name.get() || PyUnicode_Compare(name, updated.name.get()) == 0) return args[positional + i];
    }
  return nullptr;
}

nb::object DictOf(PyObject* const* args, PyObject* names) {
  nb::dict out;
  if (names)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i)
      out[nb::handle(PyTuple_GET_ITEM(names, i))] = nb::handle(args[i]);
  return out;
}

nb::object TupleOf(PyObject* const* args, size_t count) {
  nb::object out = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!out.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(out.ptr(), i, Py_NewRef(args[i]));
  return out;
}

// Raises what is wrong with the arguments of a call, if anything is.
void Complain(const OpCore& op, PyObject* const* args, size_t positional, PyObject* names) {
  nb::object by_place = TupleOf(args, positional), by_name = DictOf(args + positional, names);
  nb::handle(op.complain.get())(by_place, by_name);
}

nb::object Pushed(const OpCorePtr& op, nb::handle self, PyObject* const* args, size_t positional, PyObject* names) {
  const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0, count = positional + named;
  Found found, updated;
  uint64_t filled_mask = 0;
  for (size_t i = 0; i < count; ++i)
    if (Collect(args[i], &found)) filled_mask |= uint64_t{1} << (i < 63 ? i : 63);
  // The signature is asked only if something may be wrong, because that takes longer than the call.
  bool wrong = positional < op->needed || positional > op->most ||
               (names && (op->checked_names.get() != names || op->checked_places != positional));
  for (const OpCore::Updated& one : op->updates) {
    PyObject* const given = ArgumentOf(one, args, positional, names);
    wrong |= !given || !IsValue(given);
    updated.push_back(given);
  }
  if (wrong) {
    Complain(*op, args, positional, names);
    if (names) op->checked_names = PyRef::Borrow(names), op->checked_places = positional;
  }
  if (recording) {
    nb::object args_tuple = TupleOf(args, positional), kwargs = DictOf(args + positional, names);
    nb::list all, changed;
    for (PyObject* value : found) all.append(nb::handle(value));
    for (PyObject* value : updated) changed.append(nb::handle(value));
    return self.attr("_record")(args_tuple, kwargs, all, changed);
  }
  const StatePtr state = found.empty() ? DefaultState() : [&] {
    std::vector<engine::Var> known;
    AddVars(found[0], &known);  // refuses a recorded value
    StatePtr of = AsValue(found[0])->engine.lock();
    if (!of)
      RaiseError("ShutdownError", std::string("op '") + op->name.c_str() + "': the engine of its first Value is gone");
    return of;
  }();
  const engine::Site site = CallerSite();
  const Where at{"call", op->name, site};
  std::vector<engine::Var> reads, updates, writes;
  const auto in = [](PyObject* value, const Found& among) {
    return std::find(among.begin(), among.end(), value) != among.end();
  };
  for (PyObject* value : found)
    if (!in(value, updated)) AddVars(value, &reads);
  for (PyObject* value : updated) AddVars(value, &updates);
  Call call{op,         PyRef::Steal(TupleOf(args, count).release().ptr()), PyRef::Borrow(names), CopyContext(), {},
            filled_mask};
  nb::object returned = nb::none();
  const auto make = [&] {
    nb::object made;
    try {
      made = nb::steal(NewValue(state->engine.NewVar(op->name.c_str()), state));
    } catch (const nb::python_error&) {
      throw;
    } catch (...) {
      Raise(std::current_exception());
    }
    writes.push_back(AsValue(made.ptr())->var);
    if (!op->copies && !found.empty())
      AsValue(made.ptr())->shares = TupleOf(found.data(), found.size()).release().ptr();
    return made;
  };
  if (op->outputs == 1) {
    returned = make();
  } else if (op->outputs > 1) {
    nb::object all = nb::steal(PyTuple_New(op->outputs));
    for (uint32_t i = 0; i < op->outputs; ++i) PyTuple_SET_ITEM(all.ptr(), i, make().release().ptr());
    returned = all;
  }
  if (op->outputs) call.outputs = PyRef::Borrow(returned.ptr());
  nb::object scope = ScopeFor(nb::none(), at);
  const engine::Placement place = PlaceOf(state, op->place.get(), at);
  const engine::OpDesc desc{.name = op->name,
                            .reads = reads,
                            .updates = updates,
                            .writes = writes,
                            .place = place,
                            .priority = op->priority,
                            .run_always = op->run_always,
                            .cancel = scope.is_valid() ? nb::inst_ptr<engine::CancelScope>(scope) : nullptr,
                            .graph = GraphKeyOf(op->graph_key.get(), place, at)};
  Translated([&] { SubmitBody(state, desc, std::move(call), site); });
  DropDeferred();
  return returned;
}

PyObject* VectorCall(PyObject* object, PyObject* const* args, size_t flagged, PyObject* names) {
  auto* self = reinterpret_cast<OpObject*>(object);
  try {
    if (!self->core) RaiseTypeError("this op was not initialized");
    const OpCorePtr core = self->core;
    return Pushed(core, object, args, static_cast<size_t>(PyVectorcall_NARGS(flagged)), names).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (...) {
    try {
      Raise(std::current_exception());
    } catch (nb::python_error& error) {
      error.restore();
    }
  }
  return nullptr;
}

// --- nodes of a plan

struct NodeArgument {
  enum class Kind { kGiven, kInput, kValue, kNested } kind = Kind::kGiven;
  PyRef object;
  uint32_t input = 0;
};

struct NodeCall {
  OpCorePtr op;
  std::vector<NodeArgument> args;
  PyRef names;
  PyRef carried;                  // of the recording; each run has a copy
  std::vector<uint32_t> changed;  // inputs that the node changes, which are its outputs behind the others
  std::vector<uint32_t> updated;  // the arguments that the op updates
};

struct NodeBodyOfOp {
  std::shared_ptr<const NodeCall> call;

  void operator()(engine::NodeContext& context) {
    BodyPython python;
    BodyScope scope(&context);
    DropDeferred();
    const NodeCall& node = *call;
    const ContextScope own(node.carried);
    const size_t count = node.args.size();
    References given(count);
    nb::object inputs;
    for (const NodeArgument& arg : node.args) {
      switch (arg.kind) {
        case NodeArgument::Kind::kGiven: given.Add(Py_NewRef(arg.object.get())); break;
        case NodeArgument::Kind::kInput: {
          PyObject* const input = context.In<PyRef>(arg.input).get();
          given.Add(IsValue(input) ? DataOf(AsValue(input)) : Py_NewRef(input));
          break;
        }
        case NodeArgument::Kind::kValue: given.Add(DataOf(AsValue(arg.object.get()))); break;
        case NodeArgument::Kind::kNested:
          if (!inputs.is_valid()) {
            inputs = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(context.inputs())));
            for (size_t i = 0; i < context.inputs(); ++i)
              PyTuple_SET_ITEM(inputs.ptr(), i, Py_NewRef(context.In<PyRef>(i).get()));
          }
          given.Add(Filled(arg.object.get(), inputs.ptr()));
      }
    }
    for (const uint32_t at : node.updated) CheckUpdated(*node.op, given.all[at]);
    nb::object result = Run(*node.op, given.all, count, node.names.get());
    References made(node.op->outputs);
    Outputs(*node.op, std::move(result), given.all, count, made.all);
    for (size_t i = 0; i < node.op->outputs; ++i) context.Return(i, PyRef::Steal(made.all[i]));
    for (size_t i = 0; i < node.changed.size(); ++i)
      context.Return(node.op->outputs + i, PyRef::Borrow(context.In<PyRef>(node.changed[i]).get()));
  }
};

// add_op(graph, op, args, names, kinds, inputs, changed, updated, reads, updates, engine) -> (node, first output)
nb::object AddOp(engine::Graph& graph, nb::handle object, nb::tuple args, nb::handle names, nb::sequence kinds,
                 const std::vector<uint32_t>& inputs, std::vector<uint32_t> changed, std::vector<uint32_t> updated,
                 nb::handle reads, nb::handle updates, nb::handle engine) {
  const OpCorePtr& op = reinterpret_cast<OpObject*>(object.ptr())->core;
  const engine::Site site = CallerSite();
  const Where at{"record", op->name, site};
  auto call = std::make_shared<NodeCall>();
  call->op = op;
  call->carried = CopyContext();
  if (!names.is_none()) call->names = PyRef::Borrow(names.ptr());
  for (size_t i = 0; i < args.size(); ++i) {
    NodeArgument arg;
    const int kind = nb::cast<int>(kinds[i]);  // -1: as it is; -2: a Value; -3: holds some; else the number of an input
    arg.kind = kind >= 0    ? NodeArgument::Kind::kInput
               : kind == -2 ? NodeArgument::Kind::kValue
               : kind == -3 ? NodeArgument::Kind::kNested
                            : NodeArgument::Kind::kGiven;
    arg.input = kind >= 0 ? static_cast<uint32_t>(kind) : 0;
    arg.object = PyRef::Borrow(nb::handle(args[i]).ptr());
    call->args.push_back(std::move(arg));
  }
  const auto r = VarsOf(reads, "reads", at), u = VarsOf(updates, "updates", at);
  engine::NodeDesc desc{
      .name = op->name, .outputs = static_cast<uint32_t>(op->outputs + changed.size()), .reads = r, .updates = u};
  call->changed = std::move(changed);
  call->updated = std::move(updated);
  for (const uint32_t input : inputs) desc.inputs.push_back({input});
  desc.place = PlaceOf(nb::inst_ptr<PyEngine>(engine)->state, op->place.get(), at);
  desc.priority = op->priority;
  desc.run_always = op->run_always;
  desc.graph = GraphKeyOf(op->graph_key.get(), desc.place, at);
  desc.collective = op->collective;
  nb::object scope = ScopeFor(nb::none(), at);
  desc.cancel = scope.is_valid() ? nb::inst_ptr<engine::CancelScope>(scope) : nullptr;
  return Translated([&] {
    const engine::NodeId node = graph.Add(desc, NodeBodyOfOp{std::move(call)}, site);
    return nb::object(nb::make_tuple(node.index, node.first_output));
  });
}

// --- the type

PyObject* New(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  auto* self = reinterpret_cast<OpObject*>(object);
  self->call = &VectorCall;
  self->weak = self->dict = nullptr;
  ::new (&self->core) OpCorePtr;
  return object;
}

int Traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<OpObject*>(object);
  Py_VISIT(self->dict);
  // Calls in flight share the core. Then the function is reachable, and must not be seen as this object's alone.
  if (self->core && self->core.use_count() == 1) Py_VISIT(self->core->fn.get());
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int Clear(PyObject* object) {
  auto* self = reinterpret_cast<OpObject*>(object);
  self->core.reset();
  Py_CLEAR(self->dict);
  return 0;
}

void Dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  auto* self = reinterpret_cast<OpObject*>(object);
  PyTypeObject* type = Py_TYPE(object);
  if (self->weak) PyObject_ClearWeakRefs(object);
  Clear(object);
  self->core.~OpCorePtr();
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OpObject, call), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(OpObject, weak), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(OpObject, dict), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyGetSetDef getset[] = {
    {"__dict__", &PyObject_GenericGetDict, &PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
template <class F>
void* Slot(F* function) {
  return reinterpret_cast<void*>(function);
}

void Configure(nb::handle object, nb::handle fn, const std::string& name, uint32_t outputs,
               const std::vector<std::pair<std::string, int>>& updates, nb::handle complain, nb::handle priority,
               nb::handle place, bool run_always, nb::handle graph_key, bool collective, bool copies, size_t needed,
               size_t most) {
  auto core = std::make_shared<OpCore>();
  core->fn = PyRef::Borrow(fn.ptr());
  core->name = KeptName(name);
  core->outputs = outputs;
  for (const auto& [parameter, at] : updates)
    core->updates.push_back({PyRef::Steal(PyUnicode_InternFromString(parameter.c_str())), at});
  core->complain = PyRef::Borrow(complain.ptr());
  core->place = PyRef::Borrow(place.ptr());
  core->graph_key = PyRef::Borrow(graph_key.ptr());
  core->priority = PriorityOf(priority, Where{"op", core->name, CallerSite()});
  core->run_always = run_always;
  core->collective = collective;
  core->copies = copies;
  core->needed = needed;
  core->most = most;
  reinterpret_cast<OpObject*>(object.ptr())->core = std::move(core);
}

}  // namespace

void BindOp(nb::module_& m) {
  PyType_Slot slots[] = {
      {Py_tp_new, Slot(&New)},         {Py_tp_call, Slot(&PyVectorcall_Call)},
      {Py_tp_dealloc, Slot(&Dealloc)}, {Py_tp_traverse, Slot(&Traverse)},
      {Py_tp_clear, Slot(&Clear)},     {Py_tp_members, members},
      {Py_tp_getset, getset},          {0, nullptr},
  };
  PyType_Spec spec{"engine._core.OpBase", sizeof(OpObject), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (!type) throw nb::python_error();
  m.attr("OpBase") = nb::steal(type);
  m.def("_configure_op", &Configure, nb::arg("op"), nb::arg("fn"), nb::arg("name"), nb::arg("outputs"),
        nb::arg("updates"), nb::arg("complain"), nb::arg("priority"), nb::arg("place").none(), nb::arg("run_always"),
        nb::arg("graph_key").none(), nb::arg("collective"), nb::arg("copies"), nb::arg("needed"), nb::arg("most"));
  m.def("_add_op", &AddOp, nb::arg("graph"), nb::arg("op"), nb::arg("args"), nb::arg("names").none(), nb::arg("kinds"),
        nb::arg("inputs"), nb::arg("changed"), nb::arg("updated"), nb::arg("reads"), nb::arg("updates"),
        nb::arg("engine"),
        nb::sig("def _add_op(graph: Graph, op: object, args: tuple[Any, ...], names: tuple[str, ...] | None, "
                "kinds: list[int], inputs: list[int], changed: list[int], updated: list[int], reads: Vars, "
                "updates: Vars, engine: Engine) -> tuple[int, int]"));
  m.def(
      "_set_op_helpers",
      [](nb::handle find, nb::handle fill, nb::handle copy) {
        found_in = Py_NewRef(find.ptr());
        filled = Py_NewRef(fill.ptr());
        unshared = Py_NewRef(copy.ptr());
      },
      nb::arg("found_in"), nb::arg("filled"), nb::arg("unshared"));
}

}  // namespace engine_python
