#include "gil.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <mutex>
#include <new>
#include <thread>

#include "drops.h"
#include "engine/error.h"

namespace engine_python {
namespace {

struct Dropped {
  PyObject* object;
  Dropped* next;
};
std::atomic<Dropped*> dropped{nullptr};
std::atomic<bool> drop_scheduled{false};  // the interpreter will make a pending call that drains the queue

std::atomic<bool> leaving{false};   // relaxed: set under the GIL when the engines' threads have ended
std::atomic<int> without_gil{0};    // how many threads are inside WithoutGil
std::atomic<int> helpers{0};        // how many threads have an Away
thread_local int drops_at_end = 0;  // how many DropsAtEnd this thread has
// References that died on this thread inside of a DropsAtEnd: what finds room here needs no node in the queue.
struct DroppedHere {
  PyObject* objects[32];
  uint32_t count;
};
thread_local constinit DroppedHere dropped_here{};
thread_local int without_gil_here = 0;  // how deep this thread is inside it: a wait may run ops that wait
std::atomic<unsigned long> main_thread{0};

// The thread state that KnowThread made for a thread of the engine. It is deleted when the thread ends. That is before
// the interpreter ends, because engines are shut down at exit.
struct OwnedThreadState {
  PyThreadState* state = nullptr;
  ~OwnedThreadState() { Release(); }
  void Release() {
    if (!state || Leaving()) return;
    PyEval_RestoreThread(std::exchange(state, nullptr));
    DropDeferred();
    PyGILState_Release(PyGILState_UNLOCKED);  // the last use of the state: deletes it
  }
};
thread_local OwnedThreadState owned;

// A thread state is made without the GIL, under a lock of the interpreter. CPython 3.11 takes that lock in the child of a
// fork before it makes it anew, so a fork in the meantime would hang the child. Forks wait for this one first. From 3.13
// on CPython holds its lock while it forks: then it is a lock too many, and a fork that waited for it would never end.
#if PY_VERSION_HEX < 0x030D0000
std::mutex making_a_state;
[[maybe_unused]] const int registered =
    pthread_atfork([] { making_a_state.lock(); }, [] { making_a_state.unlock(); }, [] { making_a_state.unlock(); });
#endif

PyThreadState* NewThreadState() {
#if PY_VERSION_HEX < 0x030D0000
  const std::lock_guard lock(making_a_state);
#endif
  PyThreadState* const made = PyThreadState_New(PyInterpreterState_Main());
  if (!made) throw std::bad_alloc();
  return made;
}

int DropFromMainLoop(void*) {
  DropDeferred();
  return 0;
}

}  // namespace

bool HasGil() noexcept {
  // Not PyGILState_Check: that is always true once the process has had a sub-interpreter.
#if PY_VERSION_HEX >= 0x030D0000
  PyThreadState* const here = PyThreadState_GetUnchecked();
#else
  PyThreadState* const here = _PyThreadState_UncheckedGet();
#endif
  return here && here == PyGILState_GetThisThreadState();
}

void KnowThread() {
  if (!owned.state && !PyGILState_GetThisThreadState()) owned.state = NewThreadState();
}

PyRef PyRef::Borrow(PyObject* object) noexcept {
  PyRef ref;
  Py_XINCREF(object);
  ref.object_ = object;
  return ref;
}

void ForgetError() noexcept {
  PyObject* const raised = PyErr_Occurred();
  if (!raised || PyErr_GivenExceptionMatches(raised, PyExc_Exception) || !OnMainThread()) return PyErr_Clear();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  const auto raise = [](void* error) {
    auto* const object = static_cast<PyObject*>(error);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(object)), object);
    Py_DECREF(object);
    return -1;
  };
  if (Py_AddPendingCall(raise, value) == 0) return;
  Py_DECREF(value);
  PyErr_SetInterrupt();  // the queue of calls is full
}

size_t BytesOf(PyObject* object) {
  if (PyObject* size = PyObject_GetAttrString(object, "nbytes")) {
    const long long value = PyLong_Check(size) ? PyLong_AsLongLong(size) : -1;
    Py_DECREF(size);
    if (value >= 0) return static_cast<size_t>(value);
  }
  ForgetError();
  if (PyBytes_Check(object) || PyByteArray_Check(object) || PyUnicode_Check(object))
    return static_cast<size_t>(PyObject_Length(object));
  if (!PyDict_Check(object) && !PyList_Check(object) && !PyTuple_Check(object)) return 64;
  if (Py_EnterRecursiveCall(" while the bytes of an item are counted")) {  // the item contains itself
    ForgetError();
    return 0;
  }
  size_t sum = 0;
  EachItem(object, [&](PyObject* item) { sum += BytesOf(item); });
  Py_LeaveRecursiveCall();
  return sum;
}

size_t PyRef::bytes() const noexcept {
  try {
    const PythonScope python;
    return object_ ? BytesOf(object_) : 0;
  } catch (const engine::ShutdownError&) {
    return 0;
  }
}

PyRef::~PyRef() {
  if (!object_) return;
  if (drops_at_end != 0 && dropped_here.count < std::size(dropped_here.objects)) {
    dropped_here.objects[dropped_here.count++] = object_;
    return;
  }
  auto* node = new (std::nothrow) Dropped{object_, dropped.load(std::memory_order_relaxed)};
  if (!node) return;  // no memory: a leaked reference does the least harm
  // release: publishes the node. Partner: the acquire in DropDeferred.
  while (!dropped.compare_exchange_weak(node->next, node, std::memory_order_release, std::memory_order_relaxed)) {
  }
  // The next push, body or wait drains the queue; for a program that does none of these, the main loop will.
  if (drops_at_end != 0) return;
  // acq_rel: either the call that was scheduled has not looked at the queue yet, and then it finds the node that stands in
  // front of this, or this schedules another. Partner: the exchange in DropDeferred.
  if (!Leaving() && !drop_scheduled.exchange(true, std::memory_order_acq_rel)) {
    if (Py_AddPendingCall(&DropFromMainLoop, nullptr) != 0) drop_scheduled.store(false, std::memory_order_relaxed);
  }
}

void DropDeferred() noexcept {
  // relaxed: who sees false leaves a call that was scheduled meanwhile to be made. Partner: the exchange in ~PyRef.
  if (drop_scheduled.load(std::memory_order_relaxed)) drop_scheduled.exchange(false, std::memory_order_acq_rel);
  DroppedHere& here = dropped_here;
  if (here.count == 0 && !dropped.load(std::memory_order_relaxed)) return;
  Dropped* node = nullptr;
  if (dropped.load(std::memory_order_relaxed))
    node = dropped.exchange(nullptr, std::memory_order_acquire);  // Partner: the release in ~PyRef
  PyObject *type, *value, *trace;  // destructors must neither see nor change an exception in flight
  PyErr_Fetch(&type, &value, &trace);
  while (here.count != 0) {
    PyObject* const object = here.objects[--here.count];
    Py_DECREF(object);  // may come here again
  }
  while (node) {
    Dropped* next = node->next;
    Py_DECREF(node->object);
    delete node;
    node = next;
  }
  PyErr_Restore(type, value, trace);
}

DropsAtEnd::DropsAtEnd() noexcept { ++drops_at_end; }
DropsAtEnd::~DropsAtEnd() {
  --drops_at_end;
  DropDeferred();
}

PythonScope::PythonScope() : exit_(Exit::kNothing) {
  if (Leaving()) throw engine::ShutdownError("the Python interpreter is exiting");
  if (HasGil()) return;  // a body inside a call that kept the GIL
  KnowThread();
  if (owned.state) {
    PyEval_RestoreThread(owned.state);
    exit_ = Exit::kSave;
    return;
  }
  state_ = PyGILState_Ensure();
  exit_ = Exit::kRelease;
}

PythonScope::~PythonScope() {
  if (exit_ == Exit::kSave) PyEval_SaveThread();
  if (exit_ == Exit::kRelease) PyGILState_Release(state_);
}

PyThreadState* detail::EnterWithoutGil() {
  if (Leaving()) throw engine::ShutdownError("the Python interpreter is exiting");
  without_gil.fetch_add(1, std::memory_order_relaxed);  // relaxed: Leave reads it under the GIL, which we still have
  ++without_gil_here;
  return PyEval_SaveThread();
}

void detail::ExitWithoutGil(PyThreadState* state) {
  PyEval_RestoreThread(state);
  --without_gil_here;
  without_gil.fetch_sub(1, std::memory_order_relaxed);
  DropDeferred();
}

void LetOthersRun() {
  constexpr uint32_t kCalls = 64;  // of a microsecond each that is seldom enough to cost nothing
  static thread_local uint32_t calls = 0;
  if (++calls % kCalls == 0) WithoutGil([] {});
}

// relaxed: Leave asks again until the count is 0.
Away::Away() noexcept { helpers.fetch_add(1, std::memory_order_relaxed); }
Away::~Away() {
  if (counts_) helpers.fetch_sub(1, std::memory_order_relaxed);
}

void Leave() {
  // From CPython 3.9 to 3.13, a thread that asks for the GIL of an ending interpreter is unwound through our frames,
  // which aborts the process. So all threads come back first, and none leaves again.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto wait_while = [&](auto&& busy) {
    while (busy() && std::chrono::steady_clock::now() < limit) {
      PyThreadState* state = PyEval_SaveThread();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      PyEval_RestoreThread(state);
    }
  };
  wait_while([] { return helpers.load(std::memory_order_relaxed) > 0; });
  DropDeferred();
  leaving.store(true, std::memory_order_relaxed);
  wait_while([] { return without_gil.load(std::memory_order_relaxed) > without_gil_here; });
}

bool Leaving() noexcept { return leaving.load(std::memory_order_relaxed); }

void AfterForkInChild() noexcept {
  without_gil.store(without_gil_here, std::memory_order_relaxed);
  helpers.store(0, std::memory_order_relaxed);
  drop_scheduled.store(false, std::memory_order_relaxed);
  SetMainThread(PyThread_get_thread_ident());
}

void ForgetThread() { owned.Release(); }

void SetMainThread(unsigned long ident) noexcept { main_thread.store(ident, std::memory_order_relaxed); }

// relaxed: it is set while only one thread runs, at import or in a fork's child.
bool OnMainThread() noexcept { return PyThread_get_thread_ident() == main_thread.load(std::memory_order_relaxed); }

}  // namespace engine_python
