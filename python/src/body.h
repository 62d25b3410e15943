// Body: the closures that the engine keeps for Python callables.
//
// Threads:   bodies run on workers, which take the GIL for the call and for nothing else.
// Ownership: a body owns its callable and drops it right after the call. If the body never runs, the deferred queue
//            (gil.h) drops the callable.
// Errors:    an exception of the callable leaves the body as a PyFailure.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "engine/error.h"
#include "engine/graph.h"
#include "engine/op.h"
#include "gil.h"
#include "policy.h"

namespace engine_python {

class SyncBody {
 public:
  SyncBody(PyObject* fn, engine::Name name) : fn_(PyRef::Borrow(fn)), context_(CopyContext()), name_(name) {}
  void operator()(engine::RunContext& context);

 private:
  PyRef fn_;
  PyRef context_;
  engine::Name name_;
};

class AsyncBody {
 public:
  AsyncBody(PyObject* fn, engine::Name name) : fn_(PyRef::Borrow(fn)), context_(CopyContext()), name_(name) {}
  void operator()(engine::RunContext& context, engine::Completion done);

 private:
  PyRef fn_;
  PyRef context_;
  engine::Name name_;
};

// NodeBody: a callable that a plan calls in every run with the node's input values. It returns the node's outputs.
class NodeBody {
 public:
  NodeBody(PyObject* fn, engine::Name name, size_t outputs)
      : fn_(PyRef::Borrow(fn)), context_(CarryContext()), name_(name), outputs_(outputs) {}
  void operator()(engine::NodeContext& context);

 private:
  PyRef fn_;
  CarriedContext context_;
  engine::Name name_;
  size_t outputs_;
};

// AsyncNodeBody: the same for a callable that gets a Done; such a node has no values.
class AsyncNodeBody {
 public:
  AsyncNodeBody(PyObject* fn, engine::Name name) : fn_(PyRef::Borrow(fn)), context_(CarryContext()), name_(name) {}
  void operator()(engine::NodeContext& context, engine::Completion done);

 private:
  PyRef fn_;
  CarriedContext context_;
  engine::Name name_;
};

// Done: an asynchronous body calls it when its op has ended. The GIL guards it.
class Done {
 public:
  Done(engine::Completion completion, engine::Name name) : completion_(std::move(completion)), name_(name) {}
  void Succeed();
  void Fail(nanobind::handle exception);

 private:
  void CallOnce();
  engine::Completion completion_;
  engine::Name name_;
  bool called_ = false;
};

// Takes the GIL for a body. A trace shows how long the body waited for it.
struct BodyPython {
  engine::TracedWait wait{engine::WaitCause::kGil};
  PythonScope python;
  BodyPython() { wait.End(); }
};

// The context of the body that this thread runs; null outside of bodies.
engine::RunContext* CurrentBody() noexcept;
// While it lives, `context` is that of the body that this thread runs.
class BodyScope {
 public:
  explicit BodyScope(engine::RunContext* context) noexcept;
  ~BodyScope();
  BodyScope(const BodyScope&) = delete;

 private:
  engine::RunContext* const outer_;
};
// What a body's callable returned; throws PyFailure if it raised, or returned a coroutine. GIL held.
nanobind::object CheckedResult(nanobind::object result, engine::Name name);

void BindBody(nanobind::module_& m);

}  // namespace engine_python
