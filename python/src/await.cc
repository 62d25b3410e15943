// The op behind `await value`. It takes the data, or the error, at its place in the order, and tells the event loop.
//
// It runs where the op ran that it waits for: the worker that releases it runs it next, so that no other thread has to wake
// up first. A Value whose last op ran elsewhere, and a Var, are awaited on the I/O pool, where busy workers do not delay
// them.
#include "await.h"

#include "bindings.h"
#include "body.h"
#include "failure.h"
#include "run.h"
#include "site.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

void Post(nb::handle post, nb::handle future, nb::handle error, nb::handle data) {
  PyObject* const args[] = {future.ptr(), error.ptr(), data.ptr()};
  nb::object posted = nb::steal(PyObject_Vectorcall(post.ptr(), args, 3, nullptr));
  if (!posted.is_valid()) throw PyFailure::Fetch();
}

// The exception for who awaits, who must hear of something, also where its own class raises when it is copied.
nb::object ErrorFor(const std::exception_ptr& thrown) {
  try {
    return nb::steal(ToPython(thrown));
  } catch (nb::python_error& raised) {
    return nb::borrow(raised.value());
  }
}

struct AwaitBody {
  PyRef value;  // null: a Var is awaited
  PyRef post;   // post(future, error, data) of the event loop's mailbox (engine/aio.py)
  PyRef future;

  void operator()(engine::RunContext& context) {
    const std::exception_ptr failed = context.error();
    BodyPython python;
    BodyScope scope(&context);
    DropDeferred();
    nb::object error = nb::none(), data = nb::none();
    if (failed) {
      error = ErrorFor(failed);
    } else if (value) {
      data = nb::steal(DataOf(AsValue(value.get())));
    }
    Post(post.get(), future.get(), error, data);
    value.Clear();
    post.Clear();
    future.Clear();
  }
};

// False: there is no room for an op, and the caller, an event loop, must not wait for room.
bool PushAwait(const PyVar& var, ValueObject* value, nb::handle post, nb::handle future) {
  const StatePtr state = EngineOf(var);
  std::vector<engine::Var> reads;
  if (value) {
    AddVars(reinterpret_cast<PyObject*>(value), &reads);
  } else {
    reads.push_back(var.var);
  }
  const engine::OpDesc desc{.name = "await",
                            .reads = reads,
                            .place = value && value->on_workers ? engine::Cpu() : engine::Io(),
                            .run_always = true};
  AwaitBody body{PyRef::Borrow(reinterpret_cast<PyObject*>(value)), PyRef::Borrow(post.ptr()),
                 PyRef::Borrow(future.ptr())};
  // Under other policies the op would run inside of its push, or of a wait.
  const engine::PolicyScope threaded = state->engine.EnterPolicy({.policy = engine::Policy::kThreaded});
  return Translated([&] { return state->engine.TryPush(desc, std::move(body), CallerSite()); });
}

// Pushes an op for each future, and returns the futures for whose ops there was no room.
nb::list PushAwaits(ValueObject* value, nb::handle futures) {
  nb::list left;
  for (nb::handle told : futures)
    if (!PushAwait({value->var, value->engine}, value, told[0], told[1])) left.append(told);
  return left;
}

// Tells the futures of whoever awaits `target` when what changes it has ended: post(future, error, data) of a mailbox, on
// the thread that ends it. False: nothing here can tell them, so a thread has to wait.
bool Await(nb::handle target, nb::handle post, nb::handle future) {
  if (!IsValue(target.ptr())) {
    const PyVar var = VarOf(target, [] { return std::string("await"); });
    return EngineOf(var)->engine.workers() > 0 && PushAwait(var, nullptr, post, future);
  }
  ValueObject* const value = AsValue(target.ptr());
  if (value->fresh) {
    if (!value->awaiting) value->awaiting = nb::list().release().ptr();
    nb::borrow<nb::list>(value->awaiting).append(nb::make_tuple(post, future));
    return true;
  }
  const PyVar var{value->var, value->engine};
  return EngineOf(var)->engine.workers() > 0 && PushAwait(var, value, post, future);
}

}  // namespace

namespace {

void AgeOne(ValueObject* value) {
  value->fresh = false;
  if (nb::object futures = nb::steal(std::exchange(value->awaiting, nullptr)); futures.is_valid()) {
    nb::list left = PushAwaits(value, futures);
    if (nb::len(left) > 0) value->awaiting = left.release().ptr();  // the op itself tells them, as before
  }
}

}  // namespace

void Age(ValueObject* value) {
  if (value->fresh) AgeOne(value);
  if (!value->shares) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value->shares); ++i) {
    ValueObject* const root = AsValue(PyTuple_GET_ITEM(value->shares, i));
    if (root->fresh) AgeOne(root);
  }
}

Awaiting::Awaiting(PyObject* outputs) {
  const auto look = [&](PyObject* value) {
    AsValue(value)->fresh = false;
    if (PyObject* const futures = std::exchange(AsValue(value)->awaiting, nullptr))
      told_.push_back({nb::borrow(value), nb::steal(futures)});
  };
  if (!outputs) return;
  if (PyTuple_CheckExact(outputs)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) look(PyTuple_GET_ITEM(outputs, i));
  } else {
    look(outputs);
  }
}

void Awaiting::End(engine::RunContext& context) {
  context.Defer()();
  for (const Told& told : told_) {
    const nb::object data = nb::steal(DataOf(AsValue(told.value.ptr())));
    for (nb::handle one : told.futures) Post(one[0], one[1], nb::none(), data);
  }
}

void Awaiting::EndBehind(const std::exception_ptr& thrown) {
  for (const Told& told : told_)
    for (nb::handle one : PushAwaits(AsValue(told.value.ptr()), told.futures))
      Post(one[0], one[1], ErrorFor(thrown), nb::none());
}

void BindAwait(nb::module_& m) {
  m.def("_await", &Await, nb::arg("target"), nb::arg("post"), nb::arg("future"),
        nb::sig("def _await(target: Any, post: Any, future: Any) -> bool"));
}

}  // namespace engine_python
