// One run of a program: its frame, and the way that Python has chosen for it (Program.way).
//
// Threads:   any, with the GIL, which RunAll gives up.
#pragma once

#include <torch/csrc/Exceptions.h>

#include <memory>

#include "frame.h"
#include "make.h"

namespace engine_torch {

// The engine's half: NativeTable in python/src/native.cc.
struct EngineTable {
  // Runs the plan and waits; the calling thread takes part. GIL held, given up inside. 0: it ended, and a frame knows
  // whether nodes failed; -1: the engine refused, and a Python exception is set.
  int32_t (*run)(const void* plan, void* frame, const char* policy, void* times);
  // Before a thread's first node: makes the thread's state in the interpreter, which lasts until the thread ends.
  void (*know_thread)();
  ParallelFor* parallel_for;  // threads.h
};
inline const EngineTable* engine_table = nullptr;

// Way: which plan, under which policy, on how many threads.
struct Way {
  const void* plan = nullptr;    // null: node by node, in the order of the program
  const char* policy = nullptr;  // of a string that `of` keeps
  int threads = 0;               // of the caller's kernels; 0: as many as before
  void* times = nullptr;         // an array of a NodeTime for each node; null: nobody asks
  PyObject* of = nullptr;        // the tuple

  Way() = default;
  Way(const Way&) = delete;
  ~Way() { Py_XDECREF(of); }
  // From (address of the plan or 0, policy, threads, address of times or 0, what keeps these). False with an exception set.
  bool Take(PyObject* tuple) {
    of = Py_NewRef(tuple);
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 5)
      return PyErr_Format(PyExc_TypeError, "engine.torch: a way is a tuple of five"), false;
    plan = PyLong_AsVoidPtr(PyTuple_GET_ITEM(tuple, 0));
    policy = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, 1));
    threads = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(tuple, 2)));
    times = PyLong_AsVoidPtr(PyTuple_GET_ITEM(tuple, 3));
    return !PyErr_Occurred();
  }
};

// FrameOf: a frame of the program while it lives. GIL held.
class FrameOf {
 public:
  explicit FrameOf(Program& program) : program_(program) {
    {
      const std::lock_guard lock(program.mutex);
      if (!program.free.empty()) {
        frame_ = std::move(program.free.back());
        program.free.pop_back();
      }
    }
    if (!frame_) frame_ = std::make_unique<Frame>(program);
    frame_->Begin();
  }
  ~FrameOf() {
    PyObject *type, *value, *trace;  // releasing tensors may run Python code
    PyErr_Fetch(&type, &value, &trace);
    frame_->Clear();
    PyErr_Restore(type, value, trace);
    const std::lock_guard lock(program_.mutex);
    program_.free.push_back(std::move(frame_));
  }
  FrameOf(const FrameOf&) = delete;
  Frame& operator*() const { return *frame_; }
  Frame* operator->() const { return frame_.get(); }

 private:
  Program& program_;
  std::unique_ptr<Frame> frame_;
};

// The exception of the call that failed, with its number and how many calls had changed state by then.
inline void RaiseFailure(Frame& frame) {
  if (frame.raised) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(frame.raised)), frame.raised);
    Py_CLEAR(frame.raised);
  } else {
    torch::translate_exception_to_python(frame.thrown);
    frame.thrown = nullptr;
  }
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject* where = Py_BuildValue("(LI)", static_cast<long long>(frame.failed), frame.changed.load());
  if (!where || PyObject_SetAttrString(value, "engine_torch_failed", where) < 0) PyErr_Clear();
  Py_XDECREF(where);
  PyErr_Restore(type, value, trace);
}

// False with an exception set.
inline bool RunAll(Frame& frame, const Way& way) {
  const Caller caller(way.threads);
  torch::jit::Stack stack;
  {
    const BelowAutograd guard;
    const Inside no_node(nullptr);  // a node of another program may have called this one
    for (const uint32_t call : frame.program.prologue)
      if (!Make(frame, call, stack)) return RaiseFailure(frame), false;
  }
  // Inside a node, its thread must not wait for other workers.
  const char* const policy = nodes_inside > 0 ? "inline" : way.policy;
  if (way.plan) {
    if (engine_table->run(way.plan, &frame, policy, way.times) != 0) return false;
  } else {
    PyThreadState* state = PyEval_SaveThread();
    for (size_t node = 0; node < frame.program.nodes.size(); ++node) RunNode(&frame, node, nullptr);
    PyEval_RestoreThread(state);
  }
  if (frame.failed >= 0) return RaiseFailure(frame), false;
  return true;
}

}  // namespace engine_torch
