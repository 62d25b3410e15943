// GIL: how threads of the engine meet the interpreter, and how Python's threads leave it.
//
// Threads:   engine threads take the GIL only in PythonScope, around Python callables. Python threads give it up only
//            in WithoutGil. Nobody waits for the GIL with a lock of the engine.
// Ownership: Python references that die on a thread without the GIL go into a queue, and are dropped later by a thread
//            with the GIL.
// Errors:    once the interpreter is ending (`Leave`), nothing here touches it again: entering is refused.
#pragma once

#include <Python.h>

#include <exception>
#include <memory>
#include <utility>

namespace engine_python {

// PyRef: an owned reference that may die on any thread: its destructor runs no Python code.
class PyRef {
 public:
  PyRef() noexcept = default;
  static PyRef Borrow(PyObject* object) noexcept;  // GIL held
  static PyRef Steal(PyObject* object) noexcept {
    PyRef ref;
    ref.object_ = object;
    return ref;
  }
  PyRef(PyRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PyRef& operator=(PyRef&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~PyRef();

  PyObject* get() const noexcept { return object_; }
  PyObject* Release() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  // Drops the reference now. GIL held; this may run any Python code, calls of the engine too.
  void Clear() noexcept { Py_CLEAR(object_); }
  // How many bytes the object has: those of arrays, bytes and strings, however nested; small objects count as 64. Takes
  // the GIL. 0 once the interpreter is ending.
  size_t bytes() const noexcept;

 private:
  PyObject* object_ = nullptr;
};
// The same with the GIL held.
size_t BytesOf(PyObject* object);

// Drops the exception that is set, if one is: what it would say does not matter here. An interrupt of the main thread is not
// dropped: it is raised a moment later, by the interpreter's main loop. GIL held.
void ForgetError() noexcept;

// Calls `item` for what a list or tuple has, or for a dict's values. The container may change meanwhile, because `item` may run
// Python code: of a list then comes what it has at each turn, of a dict what it had at first.
template <class F>
void EachItem(PyObject* container, F&& item) {
  PyRef values;
  if (PyDict_Check(container)) {
    values = PyRef::Steal(PyDict_Values(container));
    if (!values) return ForgetError();  // there is no memory to look
    container = values.get();
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i) {
    PyRef kept = PyRef::Borrow(PySequence_Fast_GET_ITEM(container, i));
    item(kept.get());
    kept.Clear();  // now, not with what is deferred
  }
  values.Clear();
}
using SharedPyRef = std::shared_ptr<const PyRef>;  // for code in C++ that copies: exceptions, hooks

// Drops the references in the queue. GIL held; this may run any Python code.
void DropDeferred() noexcept;

// PythonScope: while it lives, this thread holds the GIL. A thread of the engine keeps its thread state (KnowThread), so
// that threading.local and context variables last, and entering stays cheap.
// Throws engine::ShutdownError once the interpreter is ending.
class PythonScope {
 public:
  PythonScope();
  ~PythonScope();
  PythonScope(const PythonScope&) = delete;
  bool had_it() const { return exit_ == Exit::kNothing; }  // the thread held the GIL already

 private:
  enum class Exit { kNothing, kSave, kRelease } exit_;
  PyGILState_STATE state_{};
};

namespace detail {
PyThreadState* EnterWithoutGil();
void ExitWithoutGil(PyThreadState* state);
}  // namespace detail

// Calls `fn` without the GIL, and takes the GIL again before it returns or passes on a C++ exception. Throws
// engine::ShutdownError once the interpreter is ending, because a thread that gave the GIL up then would not get it
// back.
template <class F>
void WithoutGil(F&& fn) {
  std::exception_ptr thrown;
  PyThreadState* state = detail::EnterWithoutGil();
  try {
    fn();
  } catch (...) {
    thrown = std::current_exception();
  }
  detail::ExitWithoutGil(state);
  if (thrown) std::rethrow_exception(std::move(thrown));
}

// Gives other threads their turn at the GIL, once in some calls. For code that calls functions written in C again and again
// and keeps the GIL: the interpreter hands it over only between the instructions of Python code, and none run here.
void LetOthersRun();

// Away: held by a helper thread that acts for a Python thread. The interpreter does not end before it is gone.
class Away {
 public:
  Away() noexcept;
  Away(Away&& other) noexcept : counts_(std::exchange(other.counts_, false)) {}
  ~Away();

 private:
  bool counts_ = true;
};

// Whether the calling thread holds the GIL of the main interpreter.
bool HasGil() noexcept;
// Called when the interpreter is about to end: waits for helper threads, then refuses new visits, and waits until every
// thread in WithoutGil has come back. GIL held. The engines have been shut down and the stages cancelled, so waits end; waits
// a minute at most.
void Leave();
bool Leaving() noexcept;
// Called in a fork's child, where only the calling thread is left.
void AfterForkInChild() noexcept;
// Makes the calling thread's state in the interpreter, unless it has one; it lasts until the thread ends. This is the only
// way in which threads of the engine get one, because forks must wait for it. The GIL is not needed. The interpreter is
// not leaving.
void KnowThread();
// Ends what KnowThread keeps for the calling thread, which Python did not make, before the thread ends. GIL not held.
void ForgetThread();
// Python runs signal handlers on the main thread only.
void SetMainThread(unsigned long ident) noexcept;
bool OnMainThread() noexcept;

}  // namespace engine_python
