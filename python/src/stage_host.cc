#include "stage_host.h"

#include <cxxabi.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "body.h"
#include "gil.h"
#include "handle.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

constexpr auto kExitPatience = std::chrono::seconds(2);  // how long exit waits for sources to return

// The list of all hosts. The GIL guards it.
std::vector<std::weak_ptr<PythonHost>>& Hosts() {
  static auto* hosts = new std::vector<std::weak_ptr<PythonHost>>;
  return *hosts;
}

struct Inside {
  explicit Inside(int& of) : count(of) { ++count; }
  ~Inside() { --count; }
  int& count;
};

template <class T>
T Field(const nb::dict& given, const char* name) {
  return nb::cast<T>(given[name]);
}

// The pool that DeepRec's two options name.
engine::StagePool PoolOf(const std::string& stage, bool use, int number) {
  if (use) return engine::StagePool::Number(number);
  if (number == 0) return {};
  throw engine::UsageError("stage '" + stage + "': stage_subgraph_thread_pool_id is " + std::to_string(number) +
                           "; it needs use_stage_subgraph_thread_pool");
}

}  // namespace

std::shared_ptr<PythonHost> PythonHost::Make(nb::handle engine) {
  auto host = std::make_shared<PythonHost>();
  host->engine_ = PyRef::Borrow(engine.ptr());
  host->carried_ = CarryContext();
  std::erase_if(Hosts(), [](const auto& weak) { return weak.expired(); });
  Hosts().push_back(host);
  return host;
}

void PythonHost::Spawn(const std::string& name, std::function<void()> produce) {
  // An interrupt may be raised where the new thread has begun, or is about to. So whoever comes first decides whether it produces.
  const auto decided = std::make_shared<std::atomic<bool>>(false);
  auto body = [self = shared_from_this(), produce = std::move(produce), decided] {
    if (decided->exchange(true)) return;  // Spawn has failed
    const Inside inside(self->producers_);
    std::optional<ContextScope> own;
    try {
      own.emplace(self->carried_);
    } catch (const PyFailure& failure) {  // for want of memory; without a producer the consumer would wait for ever
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(failure.get())), failure.get());
      PyErr_WriteUnraisable(self->engine_.get());
    }
    try {
      produce();
    } catch (const engine::ShutdownError&) {  // the interpreter is ending
    }
  };
  try {
    const auto thread = nb::module_::import_("threading")
                            .attr("Thread")(nb::arg("target") = nb::cpp_function(body),
                                            nb::arg("name") = "stage " + name, nb::arg("daemon") = true);
    thread.attr("start")();
  } catch (nb::python_error& error) {
    if (decided->exchange(true)) {  // the thread runs, and this came while it was waited for
      error.restore();
      return ForgetError();
    }
    if (!error.matches(PyExc_RuntimeError)) throw;
    const std::string what = error.what();
    if (what.find("interpreter shutdown") == std::string::npos)
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again), what);
    // From 3.12 on CPython makes no thread once the main thread has ended, although the program's other threads, and what
    // it does at exit, may still begin a stage. So this thread is ours.
    decided->store(false);
    std::thread([body = std::move(body)] {
      try {
        const PythonScope python;
        body();
      } catch (const engine::ShutdownError&) {  // at once: the interpreter has ended
      }
      ForgetThread();
    }).detach();
  }
}

void PythonHost::Await(const Attempt& attempt) {
  const bool watch_signals = WaitsForSignals();
  for (bool over = false; !over;) {
    const Time most = watch_signals ? steady_clock::now() + kSlice : Time::max();
    WithoutGil([&] { over = attempt(most); });
    if (!over && PyErr_CheckSignals() != 0) throw PyGivenUp(PyFailure::Fetch());
  }
}

void PythonHost::Take(const Attempt& attempt) {
  if (!attempt(Time::min())) Await(attempt);
}

engine::StageOptions StageOptionsOf(const nb::dict& given, std::shared_ptr<PythonHost> host) {
  const auto seconds = [&](const char* name) {
    return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(Field<double>(given, name)));
  };
  const nb::object of = given["engine"], ignored = given["ignored"];
  const auto name = Field<std::string>(given, "name");
  return {.name = name,
          .capacity = Field<size_t>(given, "capacity"),
          .capacity_bytes = Field<size_t>(given, "capacity_bytes"),
          .num_threads = Field<int>(given, "num_threads"),
          .num_clients = Field<int>(given, "num_clients"),
          .ordered = Field<bool>(given, "ordered"),
          .timeout = seconds("timeout"),
          .on_timeout = Field<bool>(given, "drop") ? engine::OnTimeout::kDrop : engine::OnTimeout::kError,
          .take_timeout = seconds("take_timeout"),
          .ignored_exception_types = nb::len(ignored) > 0 ? FilterOf(ignored) : engine::AnyOf<>(),
          .ignored_budget = Field<int>(given, "ignored_budget"),
          .pool = PoolOf(name, Field<bool>(given, "use_pool"), Field<int>(given, "pool")),
          .stage_subgraph_stream_id = Field<int>(given, "stream"),
          .engine = of.is_none() ? nullptr : &nb::cast<const PyEngine&>(of).state->engine,
          .autotune = Field<bool>(given, "autotune"),
          .max_capacity = Field<size_t>(given, "max_capacity"),
          .max_threads = Field<int>(given, "max_threads"),
          .host = std::move(host)};
}

engine::ExceptionFilter FilterOf(nb::handle types) {
  return [types = std::make_shared<const PyRef>(PyRef::Borrow(types.ptr()))](const std::exception_ptr& thrown) {
    const PythonScope python;
    const nb::object error = nb::steal(ToPython(thrown));
    const int is = PyObject_IsInstance(error.ptr(), types->get());
    if (is < 0) throw PyFailure::Fetch();  // the class has a metaclass that raises
    return is == 1;
  };
}

PyObject* CallSource(const PyRef& function, PyObject* argument) {
  PyObject* made = nullptr;
  try {
    made = argument ? PyObject_CallOneArg(function.get(), argument) : PyObject_CallNoArgs(function.get());
  } catch (const abi::__forced_unwind&) {
    // The interpreter has ended while the source ran. CPython before 3.14 unwinds a thread that then asks for the GIL,
    // which our frames do not survive; later versions let such a thread sleep for ever, and so do we.
    for (;;) pause();
  }
  if (!made) throw PyFailure::Fetch();
  return made;
}

engine::StageItem ItemOf(PyObject* object, bool sized) {
  PyRef item = PyRef::Steal(object);
  const size_t bytes = sized ? item.bytes() : 0;
  const auto drop = [](void* data) noexcept { PyRef::Steal(static_cast<PyObject*>(data)); };
  return engine::StageItem(item.Release(), drop, bytes);
}

void RaiseOf(const std::string& label, const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const PyGivenUp& given_up) {
    Raise(std::make_exception_ptr(given_up.failure));
  } catch (const PyFailure& failure) {
    if (!PyErr_GivenExceptionMatches(failure.get(), PyExc_StopIteration) &&
        !PyErr_GivenExceptionMatches(failure.get(), PyExc_StopAsyncIteration))
      RaiseWithNote(failure, "engine: " + label + "its source raised this");
    // If it left __next__ as it is, it would look like the end.
    const std::string what = Py_TYPE(failure.get())->tp_name;
    nb::object error = nb::handle(PyExc_RuntimeError)(
        ("the source of " + label.substr(0, label.size() - 2) + " raised " + what).c_str());
    PyException_SetCause(error.ptr(), Py_NewRef(failure.get()));
    Raise(std::make_exception_ptr(PyFailure(error.ptr())));
  } catch (...) {
    Raise(std::current_exception());
  }
}

void CancelStages() {
  std::vector<std::shared_ptr<PythonHost>> alive;
  for (const auto& weak : Hosts()) {
    auto host = weak.lock();
    if (!host) continue;
    try {
      if (host->cancel) host->cancel();
    } catch (const engine::ForkedWhilePending&) {  // its producers stayed in the parent
    }
    alive.push_back(std::move(host));
  }
  const auto busy = [&] {
    return std::any_of(alive.begin(), alive.end(), [](const auto& host) { return host->producers_ > 0; });
  };
  const auto limit = steady_clock::now() + kExitPatience;
  while (busy() && steady_clock::now() < limit) {
    PyThreadState* thread = PyEval_SaveThread();
    std::this_thread::sleep_for(microseconds(200));
    PyEval_RestoreThread(thread);
  }
}

void ForgetProducers() {
  for (const auto& weak : Hosts())
    if (const auto host = weak.lock()) host->producers_ = 0;
}

}  // namespace engine_python
