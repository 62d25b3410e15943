// Frame: one run of a program: its slots, and what went wrong.
//
// Threads:   nodes of a run touch different slots, or are ordered by the engine. `left` counts down on any thread.
// Ownership: a slot is released by the last node that reads it, on whichever thread that is.
// Errors:    the first call that fails leaves its exception here; the caller raises it once the run has ended.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <exception>
#include <utility>
#include <vector>

#include "profile.h"
#include "program.h"
#include "threads.h"

namespace engine_torch {

struct Frame {
  explicit Frame(Program& of)
      : program(of), slots(of.readers.size()), left(new std::atomic<int32_t>[of.readers.size()]) {
    for (const auto& [slot, value] : of.constants) slots[slot] = value;
  }
  Program& program;
  std::vector<IValue> slots;
  std::unique_ptr<std::atomic<int32_t>[]> left;
  unsigned denormals = 0;  // the caller's mode for denormal numbers
  bool inference = false;  // whether the caller is in inference mode, whose tensors refuse changes outside of it
  Profile profile;         // who watches the caller
  std::mutex mutex;
  // Guarded by mutex until the run has ended.
  std::exception_ptr thrown;
  PyObject* raised = nullptr;   // instead of `thrown`: a Python exception
  std::vector<PyObject*> lost;  // owned: Python exceptions of other calls, which nobody raises
  int64_t failed = -1;          // number of the call
  // relaxed: the nodes behind the one that failed are ordered behind it; others may run or not.
  std::atomic<bool> stopped{false};
  // relaxed: read after the run, which orders it.
  std::atomic<uint32_t> changed{0};  // calls that changed state

  void Begin() {
    // relaxed: the start of the run publishes them to the nodes.
    for (size_t i = 0; i < slots.size(); ++i) left[i].store(program.readers[i], std::memory_order_relaxed);
    thrown = nullptr, raised = nullptr, failed = -1, changed.store(0, std::memory_order_relaxed);
    stopped.store(false, std::memory_order_relaxed);  // relaxed: as `left`
    denormals = Denormals();
    inference = c10::InferenceMode::is_enabled();
    profile.Begin();
  }
  // GIL held.
  void Clear() {
    profile.End();
    Py_CLEAR(raised);  // where the engine refused to go on, nobody has raised it
    for (PyObject* exception : std::exchange(lost, {})) Py_DECREF(exception);
    for (size_t i = 0; i < slots.size(); ++i)
      if (program.readers[i] >= 0) slots[i] = IValue();
  }
  void Give(size_t input, const at::Tensor& tensor) {
    if (program.inputs[input] >= 0) slots[program.inputs[input]] = tensor;
  }
  void Release(uint32_t slot) {
    if (program.readers[slot] < 0) return;
    // acq_rel: the other readers' uses come before the release. Partner: their own decrements.
    if (program.readers[slot] == 1 || left[slot].fetch_sub(1, std::memory_order_acq_rel) == 1) slots[slot] = IValue();
  }
  void Fail(uint32_t call, std::exception_ptr error, PyObject* exception) {
    const std::lock_guard lock(mutex);
    const bool first = failed < 0 || failed > call;
    if (PyObject* other = first ? raised : exception) lost.push_back(other);  // the caller may not have the GIL
    if (!first) return;
    failed = call, raised = exception;
    thrown.swap(error);                              // the other one dies behind the lock, because it may take the GIL
    stopped.store(true, std::memory_order_relaxed);  // relaxed: see there
  }
};

inline Program::~Program() {
  for (Call& call : calls) Py_XDECREF(call.python);
}

inline IValue Made(const Arg& arg, const std::vector<IValue>& slots) {
  using Kind = Arg::Kind;
  const auto list = [&](auto into, auto convert) {
    into.reserve(arg.items.size());
    for (const Arg& item : arg.items) into.push_back(convert(Made(item, slots)));
    return IValue(std::move(into));
  };
  switch (arg.kind) {
    case Kind::kConstant: return arg.constant;
    case Kind::kSlot:
      if (arg.to_double && slots[arg.slot].isInt()) return static_cast<double>(slots[arg.slot].toInt());
      return slots[arg.slot];
    case Kind::kWrapped: return slots[arg.slot].isTensor() ? slots[arg.slot] : IValue(Wrapped(slots[arg.slot]));
    case Kind::kTensors: return list(c10::List<at::Tensor>(), [](IValue v) { return std::move(v).toTensor(); });
    case Kind::kOptionalTensors:
      return list(c10::List<std::optional<at::Tensor>>(),
                  [](IValue v) { return std::move(v).toOptional<at::Tensor>(); });
    case Kind::kInts: return list(c10::List<int64_t>(), [](const IValue& v) { return v.toInt(); });
    case Kind::kFloats: return list(c10::List<double>(), [](const IValue& v) { return v.toScalar().toDouble(); });
    case Kind::kBools: return list(c10::List<bool>(), [](const IValue& v) { return v.toBool(); });
    case Kind::kNumbers: {
      c10::impl::GenericList numbers(c10::NumberType::get());
      for (const Arg& item : arg.items) numbers.push_back(Made(item, slots));
      return numbers;
    }
  }
  return {};
}

// Puts what a call returned where it belongs.
inline void Store(const Call& call, std::vector<IValue>& slots, torch::jit::Stack& stack) {
  if (call.from_list) {
    const c10::List<at::Tensor> list = stack.at(0).toTensorList();
    for (size_t i = 0; i < call.outs.size(); ++i)
      if (call.outs[i] >= 0) slots[call.outs[i]] = list.get(i);
    return;
  }
  for (size_t i = 0; i < call.outs.size() && i < stack.size(); ++i)
    if (call.outs[i] >= 0) slots[call.outs[i]] = std::move(stack[i]);
}

// False: it failed, and the exception is set in this thread. GIL held.
inline bool CallPython(const Call& call, std::vector<IValue>& slots) {
  PyObject* args = PyTuple_New(static_cast<Py_ssize_t>(call.args.size()));
  for (size_t i = 0; args && i < call.args.size(); ++i) {
    PyObject* value = ToPython(Made(call.args[i], slots));
    if (!value) return Py_DECREF(args), false;
    PyTuple_SET_ITEM(args, static_cast<Py_ssize_t>(i), value);
  }
  PyObject* result = args ? PyObject_CallObject(call.python, args) : nullptr;
  Py_XDECREF(args);
  if (!result) return false;
  const bool several = call.from_list && (PyTuple_Check(result) || PyList_Check(result));
  bool fine = true;
  for (size_t i = 0; fine && i < call.outs.size(); ++i) {
    if (call.outs[i] < 0) continue;
    PyObject* item = several ? PySequence_Fast_GET_ITEM(result, static_cast<Py_ssize_t>(i)) : result;
    fine = FromPython(item, slots[call.outs[i]]);
  }
  Py_DECREF(result);
  return fine;
}

// Makes a call. False: it failed, and the frame knows.
inline bool Make(Frame& frame, uint32_t number, torch::jit::Stack& stack) {
  const Call& call = frame.program.calls[number];
  const bool gil = call.python || call.takes_gil;
  const PyGILState_STATE state = gil ? PyGILState_Ensure() : PyGILState_STATE();
  bool fine = true;
  try {
    if (call.python) {
      fine = CallPython(call, frame.slots);
    } else {
      stack.clear();
      for (const Arg& arg : call.args) stack.push_back(Made(arg, frame.slots));
      if (call.product && call.product->Fits(stack.data())) {
        at::Tensor out = (*call.product)(stack.data());
        stack.clear();
        stack.emplace_back(std::move(out));
      } else if (call.update) {
        (*call.update)(stack);
      } else {
        const at::AutoGradMode grad_mode(call.grad_mode);
        call.op->callBoxed(stack);
      }
      Store(call, frame.slots, stack);
    }
    // relaxed: see Frame::changed.
    if (call.changes_state && fine) frame.changed.fetch_add(1, std::memory_order_relaxed);
  } catch (...) {
    fine = false;
    if (!gil || !PyErr_Occurred()) frame.Fail(number, std::current_exception(), nullptr);
  }
  stack.clear();
  if (gil && !fine && PyErr_Occurred()) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    Py_XDECREF(type), Py_XDECREF(trace);
    frame.Fail(number, nullptr, value);
  }
  if (gil) PyGILState_Release(state);
  return fine;
}

// What kernels see: no autograd and no autocast, because the program holds what these add; views and versions of tensors
// are still tracked.
struct BelowAutograd {
  at::AutoGradMode no_grad{false};
  at::AutoDispatchBelowAutograd below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// A node's function, which the engine calls on any thread without the GIL. To the engine no node fails: the frame keeps
// the exception, and what would come later does nothing, so that no parameter is changed by a step that failed before.
// `context`: of the engine's node, for parallel_for; null where no plan runs it.
inline int32_t RunNode(void* run, uint64_t number, void* context) {
  Frame& frame = *static_cast<Frame*>(run);
  if (frame.stopped.load(std::memory_order_relaxed)) return 0;  // relaxed: see there
  const Node& node = frame.program.nodes[number];
  try {
    EnterNode(frame.denormals);
  } catch (...) {
    frame.Fail(node.calls.front(), std::current_exception(), nullptr);
    return 0;
  }
  const c10::InferenceMode inference(frame.inference);
  const BelowAutograd guard;
  const ProfiledNode profiled(frame.profile, node.name);
  thread_local torch::jit::Stack stack;
  const Inside inside(context);
  torch::jit::Stack own;  // a Python kernel may run another program on this thread
  torch::jit::Stack& used = inside.nested() ? own : stack;
  for (const uint32_t call : node.calls)
    if (!Make(frame, call, used)) break;
  for (const uint32_t slot : node.reads) frame.Release(slot);
  return 0;
}

}  // namespace engine_torch
