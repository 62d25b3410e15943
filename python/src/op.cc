#include "op.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "await.h"
#include "bindings.h"
#include "body.h"
#include "cancel.h"
#include "failure.h"
#include "memory.h"
#include "policy.h"
#include "push.h"
#include "run.h"
#include "site.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

struct OpObject {
  PyObject ob_base;
  vectorcallfunc call;
  PyObject* weak;
  PyObject* dict;
  OpCorePtr core;
};

// --- calls that are pushed

// Arguments of a call, as owned references; few need no tuple, which Python's collector would have to visit.
class CallArguments {
 public:
  CallArguments(PyObject* const* args, size_t count) : size_(static_cast<uint32_t>(count)) {
    if (count > kFew) {
      few_[0] = PyRef::Steal(TupleOf(args, count).release().ptr());
    } else {
      for (size_t i = 0; i < count; ++i) few_[i] = PyRef::Borrow(args[i]);
    }
  }
  size_t size() const { return size_; }
  PyObject* operator[](size_t i) const { return size_ > kFew ? PyTuple_GET_ITEM(few_[0].get(), i) : few_[i].get(); }
  void Clear() {
    for (PyRef& arg : few_) arg.Clear();
  }

 private:
  static constexpr size_t kFew = 4;
  uint32_t size_;
  PyRef few_[kFew];  // or the first is a tuple of all
};

// A call: its arguments, and the outputs that it makes.
struct PushedCall {
  OpCorePtr op;
  CallArguments args;  // positional arguments, then those by name
  PyRef names;         // a tuple, or null
  PyRef carried;       // the context of the push
  PyRef outputs;       // the output Value, or a tuple of them, or null
  ByteBound::Counted counted;
  uint64_t filled = 0;  // which arguments hold Values: bit i for argument i, the last bit for all behind it

  void operator()(engine::RunContext& context) {
    BodyPython python;
    BodyScope scope(&context);
    DropDeferred();
    counted.Begin();
    try {
      const ContextScope own(&carried);
      Execute();
    } catch (...) {
      Awaiting(outputs.get()).EndBehind(std::current_exception());
      Drop();
      throw;
    }
    Awaiting awaiting(outputs.get());
    Drop();
    if (awaiting) awaiting.End(context);
  }

 private:
  bool Holds(size_t i) const { return filled >> (i < 63 ? i : 63) & 1; }
  void Drop() {  // before anybody who waits for the op goes on
    args.Clear();
    names.Clear();
    outputs.Clear();
    carried.Clear();
    counted.Release();
  }
  void Execute() {
    const size_t count = args.size();
    References given(count);
    for (size_t i = 0; i < count; ++i) {
      PyObject* const arg = args[i];
      if (!Holds(i)) {
        given.Add(Py_NewRef(arg));
      } else if (IsValue(arg)) {
        given.Add(DataOf(AsValue(arg)));
      } else {
        given.Add(Filled(arg, nullptr));
      }
    }
    const GivenArguments all{given.all, count, filled};
    Stored stored;
    for (const OpCore::Updated& updated : op->updates) {
      const Py_ssize_t at = PlaceOfUpdated(updated, count);
      if (at < 0) continue;
      CheckUpdated(*op, given.all[at]);
      stored.Watch(all, static_cast<size_t>(at));
    }
    const Renoted updated{this};
    nb::object result = stored.Run(*op, all, names.get());
    References made(op->outputs);
    Outputs(*op, std::move(result), all, made.all);
    made.size = op->outputs;
    if (counted.counts()) {
      op->result_bytes = 0;
      for (size_t i = 0; i < op->outputs; ++i) op->result_bytes += BytesOf(made.all[i]);
    }
    if (op->outputs == 1) {
      SetData(AsValue(outputs.get()), made.all[0]);
    } else {
      for (size_t i = 0; i < op->outputs; ++i) SetData(AsValue(PyTuple_GET_ITEM(outputs.get(), i)), made.all[i]);
    }
  }
  // An update may have put other memory into a container, or have moved that of a buffer.
  struct Renoted {
    const PushedCall* call;
    ~Renoted() {
      for (const OpCore::Updated& updated : call->op->updates) {
        const Py_ssize_t at = call->PlaceOfUpdated(updated, call->args.size());
        if (at >= 0) Changed(AsValue(call->args[static_cast<size_t>(at)]));
      }
    }
  };
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

}  // namespace

bool OpCore::Checked(size_t positional, PyObject* names) const {
  // The names in calls are interned, so the same names are the same objects.
  const Py_ssize_t count = PyTuple_GET_SIZE(names);
  const auto same = [&](const Shape& shape) {
    if (shape.positional != positional) return false;
    if (shape.names.get() == names) return true;
    if (PyTuple_GET_SIZE(shape.names.get()) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i)
      if (PyTuple_GET_ITEM(shape.names.get(), i) != PyTuple_GET_ITEM(names, i)) return false;
    return true;
  };
  return std::any_of(checked.begin(), checked.end(), same);
}

namespace {

// Raises what is wrong with the arguments of a call, if anything is.
void Complain(nb::handle self, PyObject* const* args, size_t positional, PyObject* names) {
  nb::object by_place = TupleOf(args, positional), by_name = DictOf(args + positional, names);
  self.attr("_complain")(by_place, by_name);
}

// What a call counts as under max_pending_bytes: what the op says, or the bytes of its arguments, and of the result that it
// had last.
uint64_t BytesOfCall(const OpCore& op, PyObject* const* args, size_t positional, size_t count, PyObject* names,
                     const Found& found, uint64_t results) {
  if (op.bytes.get() != Py_None) {
    nb::object given = nb::borrow(op.bytes.get());
    if (PyCallable_Check(given.ptr())) given = nb::steal(PyObject_Vectorcall(given.ptr(), args, positional, names));
    const long long bytes = given.is_valid() ? PyLong_AsLongLong(given.ptr()) : -1;
    if (bytes >= 0) return static_cast<uint64_t>(bytes);
    if (PyErr_Occurred()) throw nb::python_error();
    RaiseError("UsageError", std::string("op '") + op.name.c_str() + "': bytes is " + nb::str(given).c_str() +
                                 "; a count of bytes is expected");
  }
  uint64_t sum = results;
  for (size_t i = 0; i < count; ++i)
    if (!IsValue(args[i])) sum += BytesOf(args[i]);
  for (PyObject* value : found) {
    const ValueObject* const known = AsValue(value);
    const nb::object data = nb::borrow(known->data);  // an op may replace it meanwhile
    sum += data.is_valid() ? BytesOf(data.ptr()) : known->bytes;
  }
  return sum;
}

StatePtr EngineOfCall(const OpCore& op, const Found& found) {
  if (found.empty()) return DefaultState();
  if (!AsValue(found[0])->var) RefuseRecorded();  // only recorded values have no Var
  StatePtr of = AsValue(found[0])->engine.lock();
  if (!of)
    RaiseError("ShutdownError", std::string("op '") + op.name.c_str() +
                                    "': the engine of its first Value is gone; keep the Engine as long as it is used");
  return of;
}

// `on`: where the call is pushed; null: on the engine of its first Value, or else the default one.
nb::object Pushed(const OpCorePtr& op, nb::handle self, PyObject* const* args, size_t positional, PyObject* names,
                  const StatePtr& on = nullptr) {
  const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0, count = positional + named;
  Found found, updated;
  uint64_t filled_mask = 0;
  for (size_t i = 0; i < count; ++i)
    if (Collect(args[i], &found)) filled_mask |= uint64_t{1} << (i < 63 ? i : 63);
  // The signature is asked only if something may be wrong, because that takes longer than the call.
  bool wrong =
      positional > op->most || (!names && positional < op->needed) || (names && !op->Checked(positional, names));
  for (const OpCore::Updated& one : op->updates) {
    PyObject* const given = ArgumentOf(one, args, positional, names);
    wrong |= !given || !IsValue(given);
    updated.push_back(given);
  }
  // Called before Python runs, or the call waits: a container may let go of its Values meanwhile.
  const auto keep = [&found] {
    for (PyObject* value : found) found.made.push_back(nb::borrow(value));
  };
  if (wrong) {
    keep();
    Complain(self, args, positional, names);
    if (names && op->checked.size() < OpCore::kMostChecked) op->checked.push_back({positional, PyRef::Borrow(names)});
  }
  if (recording) {
    nb::object args_tuple = TupleOf(args, positional), kwargs = DictOf(args + positional, names);
    nb::list all, changed;
    for (PyObject* value : found) all.append(nb::handle(value));
    for (PyObject* value : updated) changed.append(nb::handle(value));
    return self.attr("_record")(args_tuple, kwargs, all, changed);
  }
  const StatePtr state = on ? on : EngineOfCall(*op, found);
  const engine::Site site = CallerSite();
  const Where at{"call", op->name, site};
  uint64_t bytes = 0, results = 0;
  const bool bounded = state->bytes->most() != 0;
  if (bounded) {
    keep();
    const bool unknown = op->outputs && op->result_bytes == OpCore::kUnknownBytes;
    if (op->outputs) results = unknown ? state->bytes->most() / 8 : op->result_bytes;
    bytes = BytesOfCall(*op, args, positional, count, names, found, results);
    if (!CurrentBody() && !state->caller_runs && state->engine.workers() > 0)
      state->bytes->Await(bytes, state->engine.workers());
  }
  Few<engine::Var, 6> reads, updates, writes;
  const auto in = [](PyObject* value, const Found& among) {
    return std::find(among.begin(), among.end(), value) != among.end();
  };
  for (PyObject* value : found)
    if (!in(value, updated)) AddVars(value, &reads);
  const bool on_workers = op->place.get() == Py_None;
  nb::object scope = ScopeFor(nb::none(), at);
  // Nothing can make the op be skipped, and a worker will run it.
  const bool fresh = found.empty() && on_workers && !scope.is_valid() && state->engine.workers() > 0;
  for (PyObject* value : updated) {
    AddVars(value, &updates);
    Aged(AsValue(value));
    AsValue(value)->on_workers = on_workers;
  }
  PushedCall call{op, CallArguments(args, count), PyRef::Borrow(names), CopyContext(), {}, {}, filled_mask};
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
    AsValue(made.ptr())->on_workers = on_workers;
    AsValue(made.ptr())->fresh = fresh;
    AsValue(made.ptr())->bytes = results / op->outputs;
    writes.push_back(AsValue(made.ptr())->var);
    if (!op->copies && !found.empty())
      AsValue(made.ptr())->shares = RootsOf(found.data(), found.size()).release().ptr();
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
  if (bounded) call.counted = ByteBound::Counted(state->bytes, bytes);
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
    if (!self->core) RaiseTypeError("this op was not initialized; make ops with engine.op");
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
  // Calls in flight share the core. Then what it refers to is reachable, and must not be seen as this object's alone.
  if (self->core && self->core.use_count() == 1) {
    Py_VISIT(self->core->fn.get());
    Py_VISIT(self->core->bytes.get());
  }
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
               const std::vector<std::pair<std::string, int>>& updates, nb::handle priority, nb::handle place,
               bool run_always, nb::handle graph_key, bool collective, bool copies, size_t needed, size_t most,
               nb::handle bytes) {
  auto core = std::make_shared<OpCore>();
  core->fn = PyRef::Borrow(fn.ptr());
  core->name = KeptName(name);
  core->outputs = outputs;
  for (const auto& [parameter, at] : updates)
    core->updates.push_back({PyRef::Steal(PyUnicode_InternFromString(parameter.c_str())), at});
  core->place = PyRef::Borrow(place.ptr());
  core->graph_key = PyRef::Borrow(graph_key.ptr());
  core->priority = PriorityOf(priority, Where{"op", core->name, CallerSite()});
  core->run_always = run_always;
  core->collective = collective;
  core->copies = copies;
  core->bytes = PyRef::Borrow(bytes.ptr());
  core->needed = needed;
  core->most = most;
  reinterpret_cast<OpObject*>(object.ptr())->core = std::move(core);
}

// A call of an op on an engine, also where no argument is a Value of it.
nb::object CallOn(nb::handle op, const PyEngine& where, const nb::tuple& args) {
  const OpCorePtr core = reinterpret_cast<OpObject*>(op.ptr())->core;
  return Pushed(core, op, reinterpret_cast<PyTupleObject*>(args.ptr())->ob_item, args.size(), nullptr, where.state);
}

}  // namespace

const OpCorePtr& CoreOfOp(PyObject* op) { return reinterpret_cast<OpObject*>(op)->core; }

// A class that is written in Python inherits how calls are made, but not these flags.
void SetOpClass(nb::handle cls) {
  auto* const type = reinterpret_cast<PyTypeObject*>(cls.ptr());
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
  PyType_Modified(type);
}

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
  m.def("_set_op_class", &SetOpClass, nb::arg("cls"));
  m.def("_call_on", &CallOn, nb::arg("op"), nb::arg("engine"), nb::arg("args"),
        nb::sig("def _call_on(op: OpBase, engine: Engine, args: tuple[Any, ...]) -> Any"));
  m.def("_configure_op", &Configure, nb::arg("op"), nb::arg("fn"), nb::arg("name"), nb::arg("outputs"),
        nb::arg("updates"), nb::arg("priority"), nb::arg("place").none(), nb::arg("run_always"),
        nb::arg("graph_key").none(), nb::arg("collective"), nb::arg("copies"), nb::arg("needed"), nb::arg("most"),
        nb::arg("bytes").none());
  BindOpNodes(m);
  BindArguments(m);
  BindOpResults(m);
  BindOpStored(m);
}

}  // namespace engine_python
