// GIL: how threads of the engine meet the interpreter, and how the interpreter's threads leave it.
//
// Threads:   engine threads take the GIL only in PythonScope, around Python callables; Python threads give it up only
//            in WithoutGil. No engine lock is ever held while the GIL is waited for.
// Ownership: Python references that die on a thread without the GIL go to a queue and are dropped under it later.
// Errors:    once the interpreter is on its way out (`Leave`), nothing here touches it again: entering is refused.
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
  // Drops the reference now. GIL held, and no engine code on this stack that minds Python code being run.
  void Clear() noexcept { Py_CLEAR(object_); }
  // How many bytes it holds: of arrays, bytes and strings, in any nesting; small objects count as 64. Takes the GIL; 0 once
  // the interpreter is leaving.
  size_t bytes() const noexcept;

 private:
  PyObject* object_ = nullptr;
};
using SharedPyRef = std::shared_ptr<const PyRef>;  // for what C++ wants to copy: exceptions, hooks

// Drops what died without the GIL. GIL held; may run any Python code.
void DropDeferred() noexcept;

// PythonScope: this thread holds the GIL while it lives. The first one on a thread of the engine makes a thread state
// that stays until the thread ends, so that threading.local and context variables last, and entering stays cheap.
// Throws engine::ShutdownError once the interpreter is leaving.
class PythonScope {
 public:
  PythonScope();
  ~PythonScope();
  PythonScope(const PythonScope&) = delete;

 private:
  enum class Exit { kNothing, kSave, kRelease } exit_;
  PyGILState_STATE state_{};
};

namespace detail {
PyThreadState* EnterWithoutGil();
void ExitWithoutGil(PyThreadState* state);
}  // namespace detail

// Runs `fn` with the GIL given up and hands on what it throws, of C++ origin, with the GIL held again.
// Throws engine::ShutdownError once the interpreter is leaving: a thread that let go then would not get it back.
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

// Away: a helper thread that acts for a Python thread; the interpreter stays until this goes.
class Away {
 public:
  Away() noexcept;
  Away(Away&& other) noexcept : counts_(std::exchange(other.counts_, false)) {}
  ~Away();

 private:
  bool counts_ = true;
};

// The interpreter is about to end: waits for helper threads, then refuses new visits and waits until every thread in
// WithoutGil has come back. GIL held. The engines are shut down by then, so every wait has ended; a minute is the most.
void Leave();
bool Leaving() noexcept;
// In the child of a fork only the calling thread is left.
void AfterForkInChild() noexcept;
// Ends what PythonScope keeps for the calling thread, which is not Python's, before its end would. GIL not held.
void ForgetThread();
// Signals reach Python code on the main thread only.
void SetMainThread(unsigned long ident) noexcept;
bool OnMainThread() noexcept;

}  // namespace engine_python
