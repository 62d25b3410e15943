#include "policy.h"

#include <iterator>

#include "cancel.h"
#include "failure.h"
#include "options.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// The open blocks as a tuple of PolicyBlocks, the innermost last.
PyObject* open_blocks = nullptr;

struct PolicyBlock {
  StatePtr state;
  engine::PolicyChoice choice;
  nb::object before;  // the open blocks outside of this one, while it is open
};

nb::object OpenBlocks() {
  PyObject* value = nullptr;
  if (PyContextVar_Get(open_blocks, nullptr, &value) < 0) throw nb::python_error();
  return nb::steal(value);
}

void SetOpenBlocks(nb::handle blocks) {
  nb::object token = nb::steal(PyContextVar_Set(open_blocks, blocks.ptr()));
  if (!token.is_valid()) throw nb::python_error();
}

void Enter(nb::object object) {
  auto& self = *nb::inst_ptr<PolicyBlock>(object);
  if (self.before.is_valid())
    RaiseError("UsageError", "engine.policy: this block was entered already; make another one for each `with`");
  nb::object open = OpenBlocks();
  nb::tuple before = open.is_valid() ? nb::borrow<nb::tuple>(open) : nb::tuple();
  SetOpenBlocks(before + nb::make_tuple(object));
  self.before = before;
}

void Exit(nb::object object, nb::args) {
  auto& self = *nb::inst_ptr<PolicyBlock>(object);
  nb::object open = OpenBlocks();
  const size_t size = open.is_valid() ? nb::len(open) : 0;
  if (size == 0 || !nb::object(open[size - 1]).is(object))
    RaiseError(
        "UsageError",
        "engine.policy: the block ends on another thread or in another task than it was entered in, or before a block "
        "that was opened in it; leave blocks where they were entered, the innermost first");
  SetOpenBlocks(self.before);
  self.before.reset();
}

// The innermost block for the engine, borrowed from `open`; null: none.
const PolicyBlock* BlockFor(const StatePtr& state, nb::handle open) {
  for (Py_ssize_t i = open.is_valid() ? PyTuple_GET_SIZE(open.ptr()) : 0; i-- > 0;) {
    const auto* block = nb::inst_ptr<PolicyBlock>(PyTuple_GET_ITEM(open.ptr(), i));
    if (block->state == state) return block;
  }
  return nullptr;
}

}  // namespace

engine::PolicyChoice ChoiceFrom(nb::handle name, nb::handle parameters) {
  const std::string policy = Text(name, "set_policy: name");
  const std::map<std::string, std::string> texts = ParameterTexts(parameters);
  try {
    return engine::MakePolicy(policy, texts);
  } catch (...) {
    Raise(std::current_exception());
  }
}

PolicyHere::PolicyHere(const StatePtr& state) {
  const nb::object open = OpenBlocks();
  if (!open.is_valid()) return;
  if (const PolicyBlock* block = BlockFor(state, open))
    scope_.reset(new engine::PolicyScope(state->engine.EnterPolicy(block->choice)));
}

PyRef CopyContext() {
  PyObject* context = PyContext_CopyCurrent();
  if (!context) throw nb::python_error();
  PyRef copy = PyRef::Steal(context);
  CarryTorchModes(context);
  return copy;
}

CarriedContext CarryContext() {
  CarriedContext carried{CopyContext()};
  PyRef copy = PyRef::Borrow(carried.context.get());
  { const ContextScope closes(&copy); }
  carried.empty = PyObject_Length(carried.context.get()) == 0;
  return carried;
}

// Empty contexts that nobody is in. The GIL guards them. A node that takes one saves a third of what the engine costs it.
static struct {
  PyObject* contexts[16];
  size_t count;
} spare;

ContextScope::ContextScope(PyRef* context) : context_(std::move(*context)) {
  Enter();
  const nb::object open = OpenBlocks();
  if (open.is_valid() && nb::len(open) > 0) SetOpenBlocks(nb::tuple());
  CloseScopes();
}

ContextScope::ContextScope(const CarriedContext& carried) : reusable_(carried.empty) {
  if (reusable_ && spare.count > 0) {
    context_ = PyRef::Steal(spare.contexts[--spare.count]);
  } else {
    context_ = PyRef::Steal(PyContext_Copy(carried.context.get()));
    if (!context_) throw PyFailure::Fetch();
  }
  Enter();
}

void ContextScope::Enter() {
  if (PyContext_Enter(context_.get()) < 0) throw PyFailure::Fetch();
  try {
    torch_.Enter();
  } catch (...) {
    PyContext_Exit(context_.get());
    throw;
  }
}

ContextScope::~ContextScope() {
  const bool left = PyContext_Exit(context_.get()) == 0;
  if (!left) PyErr_Clear();
  // A body that gave a variable a value has left it in the context, which is not empty any more.
  if (reusable_ && left && spare.count < std::size(spare.contexts) && PyObject_Length(context_.get()) == 0) {
    spare.contexts[spare.count++] = context_.Release();
  } else {
    context_.Clear();
  }
}

void BindPolicy(nb::module_& m, nb::class_<PyEngine>& cls) {
  BindTorchModes();
  open_blocks = PyContextVar_New("engine.policy_blocks", nullptr);
  nb::class_<PolicyBlock>(m, "PolicyBlock", "What engine.policy(...) returns: a block with a policy of its own.")
      .def("__enter__", &Enter, nb::sig("def __enter__(self) -> None"))
      .def("__exit__", &Exit, nb::sig("def __exit__(self, *exc: object) -> None"));
  cls.def(
      "policy_block",
      [](const PyEngine& self, nb::handle name, nb::kwargs parameters) {
        return PolicyBlock{self.state, ChoiceFrom(name, parameters), {}};
      },
      nb::arg("name").none(), nb::arg("parameters"),
      nb::sig("def policy_block(self, name: str, **parameters: bool | int) -> PolicyBlock"),
      "For `with`: sets the policy of what this thread, or this task of asyncio, pushes in the block.");
}

}  // namespace engine_python
