// Body: the closures that the engine keeps for Python callables.
//
// Threads:   run on workers, which take the GIL for the call and for nothing else.
// Ownership: a body owns its callable and drops it right after the call; if it never runs, the deferred queue does.
// Errors:    what the callable raises leaves as PyFailure.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "engine/error.h"
#include "engine/graph.h"
#include "engine/op.h"
#include "gil.h"

namespace engine_python {

class SyncBody {
 public:
  SyncBody(PyObject* fn, engine::Name name) : fn_(PyRef::Borrow(fn)), name_(name) {}
  void operator()(engine::RunContext& context);

 private:
  PyRef fn_;
  engine::Name name_;
};

class AsyncBody {
 public:
  AsyncBody(PyObject* fn, engine::Name name) : fn_(PyRef::Borrow(fn)), name_(name) {}
  void operator()(engine::RunContext& context, engine::Completion done);

 private:
  PyRef fn_;
  engine::Name name_;
};

// NodeBody: a callable that a plan calls in every run, with the node's input values; what it returns are the outputs.
class NodeBody {
 public:
  NodeBody(PyObject* fn, engine::Name name, size_t outputs) : fn_(PyRef::Borrow(fn)), name_(name), outputs_(outputs) {}
  void operator()(engine::NodeContext& context);

 private:
  PyRef fn_;
  engine::Name name_;
  size_t outputs_;
};

// The same for a callable that is given a Done; such a node has no values.
class AsyncNodeBody {
 public:
  AsyncNodeBody(PyObject* fn, engine::Name name) : fn_(PyRef::Borrow(fn)), name_(name) {}
  void operator()(engine::NodeContext& context, engine::Completion done);

 private:
  PyRef fn_;
  engine::Name name_;
};

// Done: what an asynchronous body calls when its op has finished. Guarded by the GIL.
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

// The context of the body that this thread is running; null outside of bodies.
engine::RunContext* CurrentBody() noexcept;

void BindBody(nanobind::module_& m);

}  // namespace engine_python
