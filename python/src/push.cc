#include "push.h"

#include <nanobind/stl/optional.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "await.h"
#include "body.h"
#include "cancel.h"
#include "engine/held_op.h"
#include "engine/operator.h"
#include "failure.h"
#include "gil.h"
#include "site.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

struct PushArgs {
  nb::handle fn, reads, updates, writes, priority, name, place, run_always, cancel, graph_key;
};

enum class Way { kSync, kAsync, kTry, kHeld, kOperator };
constexpr const char* kVerbs[] = {"push", "push_async", "try_push", "push_held", "new_operator"};

// A body that is called by every push of an operator, in a copy of the context in which the operator was made.
struct SharedBody {
  struct Called {
    PyRef fn;
    CarriedContext carried;
  };
  std::shared_ptr<const Called> called;
  engine::Name name;
  void operator()(engine::RunContext& context) {
    BodyPython python;
    BodyScope scope(&context);
    const ContextScope own(called->carried);
    DropDeferred();
    CheckedResult(nb::steal(PyObject_CallNoArgs(called->fn.get())), name);
  }
};

struct PyHeldOp {
  engine::HeldOp op;
  void Release() {
    if (HasGil()) {
      WithoutGil([&] { op.Release(); });
    } else {
      op.Release();
    }
  }
  explicit PyHeldOp(engine::HeldOp held) : op(std::move(held)) {}
  PyHeldOp(PyHeldOp&&) = default;
  ~PyHeldOp() {
    try {
      Release();
    } catch (const engine::ShutdownError&) {  // the interpreter is ending, and so are the engines
    }
  }
};

struct PyOperator {
  engine::Operator op;
  StatePtr engine;
};

// Checks the arguments, then pushes on `state`; the body of an `async` push gets a Done. Raises Python exceptions only.
nb::object Push(const StatePtr& state, const PushArgs& args, Way way) {
  const bool async = way == Way::kAsync;
  const char* verb = kVerbs[static_cast<int>(way)];
  const engine::Site site = CallerSite();
  if (!PyCallable_Check(args.fn.ptr())) {
    RaiseTypeError(Where{verb, {}, site}.Text() + "fn is " + ATypeOf(args.fn.ptr()) + "; a callable is expected");
  }
  const Where at{verb, OpName(args.name, args.fn, {verb, {}, site}), site};
  const auto reads = VarsOf(args.reads, "reads", at);
  auto updates = VarsOf(args.updates, "updates", at);
  // Of what it is a view of, only a part is written: an error of that stays.
  const auto writes = VarsOf(args.writes, "writes", at, &updates);
  const int run_always = PyObject_IsTrue(args.run_always.ptr());
  if (run_always < 0) throw nb::python_error();
  nb::object scope = ScopeFor(args.cancel, at);
  const engine::Placement place = PlaceOf(state, args.place, at);
  const engine::OpDesc desc{.name = at.name,
                            .reads = reads,
                            .updates = updates,
                            .writes = writes,
                            .place = place,
                            .priority = PriorityOf(args.priority, at),
                            .run_always = run_always != 0,
                            .cancel = scope.is_valid() ? nb::inst_ptr<engine::CancelScope>(scope) : nullptr,
                            .graph = GraphKeyOf(args.graph_key, place, at)};
  if (recording && way != Way::kSync && !async)
    RaiseError("UsageError", at.Text() + "only push and push_async are allowed while a function is recorded");
  nb::object returned = nb::none();
  SyncBody body(args.fn.ptr(), at.name);
  try {
    if (recording) {
      engine::NodeDesc node{.name = at.name,
                            .reads = reads,
                            .updates = updates,
                            .writes = writes,
                            .place = desc.place,
                            .priority = desc.priority,
                            .run_always = desc.run_always,
                            .cancel = desc.cancel,
                            .graph = desc.graph};
      if (async) {
        recording->AddAsync(node, AsyncNodeBody(args.fn.ptr(), at.name), site);
      } else {
        recording->Add(node, NodeBody(args.fn.ptr(), at.name, 0), site);
      }
    } else if (async) {
      SubmitBody<true>(state, desc, AsyncBody(args.fn.ptr(), at.name), site);
    } else if (way == Way::kSync) {
      SubmitBody(state, desc, std::move(body), site);
    } else if (way == Way::kTry) {
      bool pushed = false;
      const PolicyHere policy(state);
      WithoutGil([&] { pushed = state->engine.TryPush(desc, std::move(body), site); });
      returned = nb::bool_(pushed);
    } else if (way == Way::kHeld) {
      engine::HeldOp held;
      PushWithoutGil([&] { held = state->engine.PushHeld(desc, std::move(body), site); });
      returned = nb::cast(PyHeldOp(std::move(held)), nb::rv_policy::move);
    } else {
      SharedBody::Called called{PyRef::Borrow(args.fn.ptr()), CarryContext()};
      const SharedBody shared{std::make_shared<const SharedBody::Called>(std::move(called)), at.name};
      returned = nb::cast(PyOperator{state->engine.NewOperator(desc, shared, site), state});
    }
  } catch (...) {
    Raise(std::current_exception());
  }
  DropDeferred();
  return returned;
}

// The parameters of each of the five functions, as Python writes them.
#define ENGINE_PUSH_PARAMETERS                                                                               \
  "reads: Vars = (), updates: Vars = (), writes: Vars = (), *, priority: int = 0, name: str | None = None, " \
  "place: Placement | str | None = None, run_always: bool = False, cancel: CancelScope | None = None, "      \
  "graph_key: GraphKey | None = None) -> "

// Binds `name` as a function of the module (for the default engine) and as a method of Engine.
template <Way kWay>
void BindVerb(nb::module_& m, nb::class_<PyEngine>& cls, const char* name, const char* function, const char* method,
              const char* doc) {
  const auto run = [](const StatePtr& state, nb::handle fn, nb::handle reads, nb::handle updates, nb::handle writes,
                      nb::handle priority, nb::handle op_name, nb::handle place, nb::handle run_always,
                      nb::handle cancel, nb::handle graph_key) {
    return Push(state, {fn, reads, updates, writes, priority, op_name, place, run_always, cancel, graph_key}, kWay);
  };
  const auto bind = [&](auto&& add, auto&& body, const char* signature) {
    add(name, body, nb::arg("fn").none(), nb::arg("reads").none() = nb::tuple(),
        nb::arg("updates").none() = nb::tuple(), nb::arg("writes").none() = nb::tuple(), nb::kw_only(),
        nb::arg("priority").none() = 0, nb::arg("name") = nb::none(), nb::arg("place") = nb::none(),
        nb::arg("run_always").none() = false, nb::arg("cancel") = nb::none(), nb::arg("graph_key") = nb::none(),
        nb::sig(signature), doc);
  };
  using H = nb::handle;
  bind([&](auto&&... a) { m.def(a...); },
       [run](H fn, H r, H u, H w, H p, H n, H pl, H al, H c, H g) {
         return run(DefaultState(), fn, r, u, w, p, n, pl, al, c, g);
       },
       function);
  bind([&](auto&&... a) { cls.def(a...); },
       [run](PyEngine& self, H fn, H r, H u, H w, H p, H n, H pl, H al, H c, H g) {
         return run(self.state, fn, r, u, w, p, n, pl, al, c, g);
       },
       method);
}

}  // namespace

thread_local engine::Graph* recording = nullptr;

std::vector<engine::Var> VarsOf(nb::handle given, const char* mode, const Where& at,
                                std::vector<engine::Var>* of_roots) {
  std::vector<engine::Var> vars;
  if (given.is_none()) return vars;
  if (PyTuple_CheckExact(given.ptr()) && PyTuple_GET_SIZE(given.ptr()) == 0) return vars;
  const bool changes = *mode != 'r';
  const auto add = [&](PyObject* value) {
    AddVars(value, &vars, of_roots ? of_roots : &vars);
    if (!changes) return;
    Aged(AsValue(value));
    AsValue(value)->on_workers = false;
  };
  if (IsValue(given.ptr())) {
    add(given.ptr());
    return vars;
  }
  // Looking for the attribute costs much, and lists have none.
  const bool list = PyList_CheckExact(given.ptr()) || PyTuple_CheckExact(given.ptr());
  if (!list && (nb::isinstance<PyVar>(given) || PyObject_HasAttrString(given.ptr(), "var"))) {
    vars.push_back(VarOf(given, [&] { return at.Text() + mode; }).var);
    return vars;
  }
  nb::object items = nb::steal(PySequence_Fast(given.ptr(), ""));
  if (!items.is_valid()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    RaiseTypeError(at.Text() + mode + " is " + ATypeOf(given.ptr()) + "; Vars, Values or a list of them are expected");
  }
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(items.ptr());
  vars.reserve(size);
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), i);
    if (nb::isinstance<PyVar>(item)) {
      vars.push_back(nb::inst_ptr<PyVar>(item)->var);
    } else if (IsValue(item)) {
      add(item);
    } else {
      vars.push_back(VarOf(item, [&] { return at.Text() + mode + "[" + std::to_string(i) + "]"; }).var);
    }
  }
  return vars;
}

int PriorityOf(nb::handle given, const Where& at) {
  if (!PyLong_Check(given.ptr())) {
    RaiseTypeError(at.Text() + "priority is " + ATypeOf(given.ptr()) + "; an int is expected");
  }
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(given.ptr(), &overflow);
  if (overflow || value < engine::kMinPriority || value > engine::kMaxPriority) {
    RaiseError("UsageError", at.Text() + "priority is " + nb::str(given).c_str() + "; " +
                                 std::to_string(engine::kMinPriority) + " (last) to " +
                                 std::to_string(engine::kMaxPriority) + " (first) are allowed");
  }
  return static_cast<int>(value);
}

engine::GraphKey GraphKeyOf(nb::handle given, engine::Placement place, const Where& at) {
  if (given.is_none()) return {};
  if (!nb::isinstance<engine::GraphKey>(given)) {
    RaiseTypeError(at.Text() + "graph_key is " + ATypeOf(given.ptr()) + "; an engine.GraphKey is expected");
  }
  if (place.kind != engine::Placement::Kind::kGpu && place.kind != engine::Placement::Kind::kCopyIn &&
      place.kind != engine::Placement::Kind::kCopyOut) {
    RaiseError("UsageError", at.Text() + "graph_key is for ops on a device: place=engine.gpu(0)");
  }
  return *nb::inst_ptr<engine::GraphKey>(given);
}

engine::Placement PlaceOf(const StatePtr& state, nb::handle place, const Where& at) {
  if (place.is_none()) return engine::Cpu();
  if (nb::isinstance<engine::Placement>(place)) return *nb::inst_ptr<engine::Placement>(place);
  if (!PyUnicode_Check(place.ptr())) {
    RaiseTypeError(at.Text() + "place is " + ATypeOf(place.ptr()) +
                   "; engine.io(), engine.pool(name), \"io\" or the name of a pool is expected");
  }
  const std::string name = Text(place, "place");
  if (name == "io") return engine::Io();
  try {
    return state->engine.Pool(name);
  } catch (const engine::Error& error) {
    RaiseError("UsageError", at.Text() + "place: " + error.what());
  }
}

void BindPush(nb::module_& m, nb::class_<PyEngine>& cls) {
  nb::class_<engine::GraphKey>(
      m, "GraphKey",
      "What an op on a device does, for a bulk or a static plan of which every op has a key: when it has\n"
      "come often enough, it is launched as a device graph, and the bodies do not run. So a body must do\n"
      "the same for the same key, and nothing else.\n"
      "`kind`: the operator, launch shape, types, everything but pointers and scalars; not 0. `params`: the\n"
      "pointers and scalars, as a hash or as a version that changes with them. `one_call`: the body issues\n"
      "exactly one kernel or copy.")
      .def(
          "__init__",
          [](engine::GraphKey* self, nb::int_ kind, nb::int_ params, bool one_call) {
            const auto bits = [](nb::int_ number) { return PyLong_AsUnsignedLongLongMask(number.ptr()); };
            if (bits(kind) == 0)
              RaiseError("UsageError",
                         "GraphKey: kind is 0 in its lower 64 bits, which stands for no key; give any other number");
            new (self) engine::GraphKey{bits(kind), bits(params), one_call};
          },
          nb::arg("kind"), nb::arg("params") = 0, nb::arg("one_call") = false,
          nb::sig("def __init__(self, kind: int, params: int = 0, one_call: bool = False) -> None"));
  BindVerb<Way::kSync>(
      m, cls, "push", "def push(fn: Callable[[], object], " ENGINE_PUSH_PARAMETERS "None",
      "def push(self, fn: Callable[[], object], " ENGINE_PUSH_PARAMETERS "None",
      "Runs fn() on a worker once every earlier op on the same Vars allows it. Returns at once; if the\n"
      "queue is full, when there is room. fn looks at `reads`, changes `updates` and replaces `writes`. Any\n"
      "thread may push, also inside ops.\n"
      "Waits for what the op updates or writes raise what fn raised; fn's result is ignored. TypeError or\n"
      "UsageError, with the op's name and the line of the push: nothing was pushed.");
  BindVerb<Way::kAsync>(
      m, cls, "push_async", "def push_async(fn: Callable[[Done], object], " ENGINE_PUSH_PARAMETERS "None",
      "def push_async(self, fn: Callable[[Done], object], " ENGINE_PUSH_PARAMETERS "None",
      "As push, but the op ends when done() or done.fail(exception) is called, on any thread, before or\n"
      "after fn(done) returns. If done is dropped uncalled, the op fails with CompletionError.");

  nb::class_<PyHeldOp>(m, "HeldOp", "An op that has its place in the order and does not start yet. Made by push_held.")
      .def("release", &PyHeldOp::Release,
           "The op may start. Also called when the object goes. A second call does nothing.");
  nb::class_<PyOperator>(m, "Operator", "An op that is registered once and pushed often. Made by new_operator.")
      .def(
          "push",
          [](const PyOperator& self, std::optional<int> priority) {
            const engine::Site site = CallerSite();
            const PolicyHere policy(self.engine);
            try {
              PushWithoutGil([&] {
                if (priority) {
                  self.engine->engine.Push(self.op, *priority, site);
                } else {
                  self.engine->engine.Push(self.op, site);
                }
              });
            } catch (...) {
              Raise(std::current_exception());
            }
          },
          nb::arg("priority") = nb::none(), nb::sig("def push(self, priority: int | None = None) -> None"),
          "Pushes the op once more. UsageError for a priority out of range.");
  BindVerb<Way::kTry>(
      m, cls, "try_push", "def try_push(fn: Callable[[], object], " ENGINE_PUSH_PARAMETERS "bool",
      "def try_push(self, fn: Callable[[], object], " ENGINE_PUSH_PARAMETERS "bool",
      "As push, but outside of ops, while max_pending ops are pending, it pushes nothing and returns False.");
  BindVerb<Way::kHeld>(
      m, cls, "push_held", "def push_held(fn: Callable[[], object], " ENGINE_PUSH_PARAMETERS "HeldOp",
      "def push_held(self, fn: Callable[[], object], " ENGINE_PUSH_PARAMETERS "HeldOp",
      "As push, but the op, which has its place in the order, starts when what this returns is released.");
  BindVerb<Way::kOperator>(
      m, cls, "new_operator", "def new_operator(fn: Callable[[], object], " ENGINE_PUSH_PARAMETERS "Operator",
      "def new_operator(self, fn: Callable[[], object], " ENGINE_PUSH_PARAMETERS "Operator",
      "An op that is described once and pushed often: operator.push(). fn may run at the same time as itself.\n"
      "It runs in copies of the context of this call.");
}

}  // namespace engine_python
