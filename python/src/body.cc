#include "body.h"

#include <string>
#include <vector>

#include "engine/device/cuda_stream.h"
#include "engine/trace.h"
#include "failure.h"
#include "handle.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

thread_local engine::RunContext* current = nullptr;

// Calls fn(args...) and drops the result.
void CallAndDrop(PyRef& fn, engine::Name name, PyObject* const* args, size_t count) {
  nb::object result = nb::steal(PyObject_Vectorcall(fn.get(), args, count, nullptr));
  fn.Clear();  // dropped here, so that what fn owned is gone before anybody who waits for the op goes on
  CheckedResult(std::move(result), name);
}

}  // namespace

engine::RunContext* CurrentBody() noexcept { return current; }

BodyScope::BodyScope(engine::RunContext* context) noexcept : outer_(std::exchange(current, context)) {}
BodyScope::~BodyScope() { current = outer_; }

nb::object CheckedResult(nb::object result, engine::Name name) {
  if (result.is_valid() && PyCoro_CheckExact(result.ptr())) {
    // Nobody would ever await this coroutine. Closing it spares the user Python's warning, which says so less clearly.
    nb::object closed = nb::steal(PyObject_CallMethod(result.ptr(), "close", nullptr));
    PyErr_Format(PyExc_TypeError,
                 "op '%s' is a coroutine function; push a plain function, or push_async one that calls done()",
                 name.c_str());
    result.reset();
  }
  if (!result.is_valid()) throw PyFailure::Fetch();
  return result;
}

void SyncBody::operator()(engine::RunContext& context) {
  BodyPython python;
  BodyScope scope(&context);
  const ContextScope own(&context_);
  DropDeferred();
  CallAndDrop(fn_, name_, nullptr, 0);
}

void AsyncBody::operator()(engine::RunContext& context, engine::Completion done) {
  BodyPython python;
  BodyScope scope(&context);
  const ContextScope own(&context_);
  DropDeferred();
  nb::object handle = nb::cast(Done(std::move(done), name_), nb::rv_policy::move);
  PyObject* args[] = {handle.ptr()};
  CallAndDrop(fn_, name_, args, 1);
}

void NodeBody::operator()(engine::NodeContext& context) {
  BodyPython python;
  BodyScope scope(&context);
  const ContextScope own(context_);
  DropDeferred();
  const size_t count = context.inputs();
  PyObject* few[8];
  std::vector<PyObject*> many(count > 8 ? count : 0);
  PyObject** args = count > 8 ? many.data() : few;
  for (size_t i = 0; i < count; ++i) args[i] = context.In<PyRef>(i).get();
  nb::object result = CheckedResult(nb::steal(PyObject_Vectorcall(fn_.get(), args, count, nullptr)), name_);
  if (outputs_ == 0) return;
  if (!PyTuple_Check(result.ptr()) || static_cast<size_t>(PyTuple_GET_SIZE(result.ptr())) != outputs_) {
    PyErr_Format(PyExc_TypeError, "node '%s' must return a tuple of %zu", name_.c_str(), outputs_);
    throw PyFailure::Fetch();
  }
  for (size_t i = 0; i < outputs_; ++i)
    context.Return(i, PyRef::Borrow(PyTuple_GET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i))));
}

void AsyncNodeBody::operator()(engine::NodeContext& context, engine::Completion done) {
  BodyPython python;
  BodyScope scope(&context);
  const ContextScope own(context_);
  DropDeferred();
  nb::object handle = nb::cast(Done(std::move(done), name_), nb::rv_policy::move);
  PyObject* args[] = {handle.ptr()};
  CheckedResult(nb::steal(PyObject_Vectorcall(fn_.get(), args, 1, nullptr)), name_);
}

void Done::CallOnce() {
  if (called_)
    RaiseError("CompletionError", std::string("done of op '") + name_.c_str() + "' was called twice; call it once");
  called_ = true;
}

void Done::Succeed() {
  CallOnce();
  completion_();
}

void Done::Fail(nb::handle exception) {
  if (!PyExceptionInstance_Check(exception.ptr())) {
    RaiseTypeError(std::string("done.fail of op '") + name_.c_str() + "': exception is " + ATypeOf(exception.ptr()) +
                   "; an exception object is expected");
  }
  CallOnce();
  completion_.Fail(std::make_exception_ptr(PyFailure(exception.ptr())));
}

void BindBody(nb::module_& m) {
  nb::class_<Done>(m, "Done", "Ends an asynchronous op: call it once, on any thread.")
      .def("__call__", &Done::Succeed, "The op has succeeded. A second call raises CompletionError.")
      .def("fail", &Done::Fail, nb::arg("exception").none(),
           nb::sig("def fail(self, exception: BaseException) -> None"),
           "The op has failed with `exception`, which waits will raise. A second call raises CompletionError.");
  m.def(
      "in_body", [] { return current != nullptr; }, "Whether the calling thread runs the body of an op.");
  m.def(
      "cancelled", [] { return current && current->cancelled(); },
      "True in the body of an op whose CancelScope has been cancelled; a long body may look at it and stop\n"
      "early.");
  m.def(
      "version",
      [](nb::handle var) {
        if (!current) RaiseError("UsageError", "version: asked for outside of an op; Var.version says it there");
        try {
          return current->version(VarOf(var, [] { return std::string("version: argument"); }).var);
        } catch (const engine::Error&) {
          Raise(std::current_exception());
        }
      },
      nb::arg("var").none(), nb::sig("def version(var: VarLike) -> int"),
      "In the body of an op: the version of a Var that the op sees (reads) or makes (updates, writes).\n"
      "UsageError outside of ops, and for a Var that the op does not name.");
  m.def(
      "defer_sync", [] { return current && current->defer_sync(); },
      "True in the body of an op on a device: the body must not synchronize, because whoever needs the\n"
      "result waits for it.");
  m.def(
      "cuda_stream",
      [] {
        if (!current)
          RaiseError("UsageError", "cuda_stream: asked for outside of an op; call it in the body of an op on a GPU");
        try {
          return reinterpret_cast<uintptr_t>(engine::CudaStream(*current));
        } catch (const engine::Error&) {
          Raise(std::current_exception());
        }
      },
      nb::sig("def cuda_stream() -> int"),
      "The stream of the op whose body calls this, as CUDA's address:\n"
      "torch.cuda.ExternalStream(engine.cuda_stream()). UsageError outside of ops on CUDA devices.");
}

}  // namespace engine_python
