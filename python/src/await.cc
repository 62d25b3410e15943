// Await: the op behind `await value`. It takes the data, or the error, at its place in the order, and tells the event loop.
//
// It is one op, and it runs where the op ran that it waits for: the worker that releases it runs it next, so that no
// other thread has to wake up first. A Value whose last op ran elsewhere, and a Var, are awaited on the I/O pool, where
// busy workers do not delay them.
#include "bindings.h"
#include "body.h"
#include "failure.h"
#include "run.h"
#include "site.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

struct AwaitBody {
  PyRef value;  // null: a Var is awaited
  PyRef post;   // post(future, error, data) of the event loop's mailbox (engine/aio.py)
  PyRef future;

  void operator()(engine::RunContext& context) {
    const std::exception_ptr failed = context.error();
    BodyPython python;
    BodyScope scope(&context);
    DropDeferred();
    Post(failed);
    value.Clear();
    post.Clear();
    future.Clear();
  }

 private:
  void Post(const std::exception_ptr& failed) {
    nb::object error = nb::none(), data = nb::none();
    if (failed) {
      error = nb::steal(ToPython(failed));
    } else if (value) {
      data = nb::steal(DataOf(AsValue(value.get())));
    }
    PyObject* const args[] = {future.get(), error.ptr(), data.ptr()};
    nb::object posted = nb::steal(PyObject_Vectorcall(post.get(), args, 3, nullptr));
    if (!posted.is_valid()) throw PyFailure::Fetch();
  }
};

// False: there is no room for an op, and the caller, an event loop, must not wait for room.
bool PushAwait(nb::handle target, nb::handle post, nb::handle future) {
  const bool is_value = IsValue(target.ptr());
  const PyVar var = VarOf(target, [] { return std::string("await"); });
  const StatePtr state = EngineOf(var);
  const bool on_workers = is_value && AsValue(target.ptr())->on_workers;
  const engine::VarRef reads[] = {var.var};
  const engine::OpDesc desc{
      .name = "await", .reads = reads, .place = on_workers ? engine::Cpu() : engine::Io(), .run_always = true};
  AwaitBody body{PyRef::Borrow(is_value ? target.ptr() : nullptr), PyRef::Borrow(post.ptr()),
                 PyRef::Borrow(future.ptr())};
  // Under other policies the op would run inside of its push, or of a wait.
  const engine::PolicyScope threaded = state->engine.EnterPolicy({.policy = engine::Policy::kThreaded});
  return Translated([&] { return state->engine.TryPush(desc, std::move(body), CallerSite()); });
}

}  // namespace

void BindAwait(nb::module_& m) {
  m.def("_push_await", &PushAwait, nb::arg("target"), nb::arg("post"), nb::arg("future"),
        nb::sig("def _push_await(target: Any, post: Any, future: Any) -> bool"));
}

}  // namespace engine_python
