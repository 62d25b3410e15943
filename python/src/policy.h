// Policy blocks and contexts: what a push takes over from the Python code that pushes.
//
// `with engine.policy(...)` is a context variable, so that a block that is open over an `await` holds for its own task and
// for no other. A body runs in a copy of the context of its push: context variables keep their values in ops, and PyTorch its
// modes.
//
// Threads: the GIL is held in every function here.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "engine/engine.h"
#include "gil.h"
#include "handle.h"
#include "torch_modes.h"

namespace engine_python {

// The policy of the innermost open block for the engine, for as long as this object lives.
class PolicyHere {
 public:
  explicit PolicyHere(const StatePtr& state);

 private:
  std::unique_ptr<engine::PolicyScope> scope_;
};

// The policy that `name` and `parameters` say; UsageError, which says what is allowed.
engine::PolicyChoice ChoiceFrom(nanobind::handle name, nanobind::handle parameters);

// A copy of the current context, for a body.
PyRef CopyContext();
// The same for a body that runs often, with scopes and policy blocks closed.
struct CarriedContext {
  PyRef context;
  bool empty = false;  // no variable has a value in it
};
CarriedContext CarryContext();
// While it lives, the thread is in a context that CopyContext made; the scopes and policy blocks of whoever pushed are
// not open in it. The first form takes the context and drops it in the end. The second one enters a copy, because several
// bodies may run in it at once; empty contexts are used again, as long as they stay empty.
class ContextScope {
 public:
  explicit ContextScope(PyRef* context);
  explicit ContextScope(const CarriedContext& carried);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;

 private:
  void Enter();
  PyRef context_;
  bool reusable_ = false;
  TorchModes torch_;
};

void BindPolicy(nanobind::module_& m, nanobind::class_<PyEngine>& cls);

}  // namespace engine_python
