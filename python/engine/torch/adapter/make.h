// MakeProgram: a Program from its description in Python (lower.py says what is in it).
//
// Threads:   GIL held.
// Errors:    false with a Python exception set: an operator that does not exist, a value that is none of torch's.
#pragma once

#include "frame.h"

namespace torch {
// Of torch/csrc/Exceptions.h, which would bring pybind11 with it.
TORCH_PYTHON_API void translate_exception_to_python(const std::exception_ptr& exception);
}  // namespace torch

namespace engine_torch {

// The items of a list or tuple: calls f(item, index) until one is false.
template <class F>
bool Each(PyObject* sequence, F&& f) {
  if (!PyList_Check(sequence) && !PyTuple_Check(sequence))
    return PyErr_Format(PyExc_TypeError, "engine.torch: a description of type %s", Py_TYPE(sequence)->tp_name), false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i)
    if (!f(PySequence_Fast_GET_ITEM(sequence, i), i)) return false;
  return !PyErr_Occurred();
}

template <class T>
bool Numbers(PyObject* sequence, std::vector<T>& into) {
  return Each(sequence, [&](PyObject* item, Py_ssize_t) {
    into.push_back(static_cast<T>(PyLong_AsLong(item)));
    return !PyErr_Occurred();
  });
}

// (kind, what): "c" a constant, "s" a slot, "d" a slot as a float, "w" a slot as a wrapped number, "W" a constant as one;
// or a list: "T" of tensors, "O" of optional tensors, "i", "f", "b", "n" (numbers).
inline bool MakeArg(PyObject* spec, Arg& arg) {
  const char* kind = nullptr;
  PyObject* what = nullptr;
  if (!PyArg_ParseTuple(spec, "sO", &kind, &what)) return false;
  using Kind = Arg::Kind;
  switch (*kind) {
    case 'c': return FromPython(what, arg.constant);
    case 'W':
      if (!FromPython(what, arg.constant)) return false;
      arg.constant = Wrapped(arg.constant);
      return true;
    case 's':
    case 'd':
    case 'w':
      arg.kind = *kind == 'w' ? Kind::kWrapped : Kind::kSlot;
      arg.to_double = *kind == 'd';
      arg.slot = static_cast<uint32_t>(PyLong_AsLong(what));
      return !PyErr_Occurred();
    case 'T': arg.kind = Kind::kTensors; break;
    case 'O': arg.kind = Kind::kOptionalTensors; break;
    case 'i': arg.kind = Kind::kInts; break;
    case 'f': arg.kind = Kind::kFloats; break;
    case 'b': arg.kind = Kind::kBools; break;
    case 'n': arg.kind = Kind::kNumbers; break;
    default: return PyErr_Format(PyExc_TypeError, "engine.torch: an argument of kind '%s'", kind), false;
  }
  bool fixed = true;
  if (!Each(what, [&](PyObject* item, Py_ssize_t) {
        Arg& made = arg.items.emplace_back();
        if (!MakeArg(item, made)) return false;
        fixed = fixed && made.kind == Kind::kConstant;
        return true;
      }))
    return false;
  // Tensors are left alone: an operator may keep the list that it gets.
  if (fixed && *kind != 'T' && *kind != 'O')
    arg.constant = Made(arg, {}), arg.kind = Kind::kConstant, arg.items.clear();
  return true;
}

inline bool MakeArgs(PyObject* specs, std::vector<Arg>& args) {
  return Each(specs, [&](PyObject* item, Py_ssize_t) { return MakeArg(item, args.emplace_back()); });
}

// (adds, rows of a, columns of a, columns of b, strides of a, strides of b, whether b is kept, depth of brgemm or 0)
inline bool MakeProduct(PyObject* spec, Product& product) {
  int adds, kept;
  auto& [rows, columns, others] = product.sizes;
  auto& by = product.strides;
  if (!PyArg_ParseTuple(spec, "pLLLLLLLpL", &adds, &rows, &columns, &others, &by[0], &by[1], &by[2], &by[3], &kept,
                        &product.depth))
    return false;
  product.adds = adds;
  if (kept) product.kept = std::make_shared<Kept>();
  return true;
}

// (kind, row of the padding or -1, eps of Adagrad)
inline bool MakeUpdate(PyObject* spec, Update& update) {
  int kind;
  if (!PyArg_ParseTuple(spec, "iLd", &kind, &update.padding, &update.eps)) return false;
  update.kind = static_cast<Update::Kind>(kind);
  return true;
}

// (operator as (name, overload) or callable, args, outs, from_list, takes_gil, grad_mode, changes_state, update or None,
// product or None)
inline bool MakeCall(PyObject* spec, Call& call) {
  PyObject *op, *args, *outs, *product, *update;
  int from_list, takes_gil, grad_mode, changes_state;
  if (!PyArg_ParseTuple(spec, "OOOppppOO", &op, &args, &outs, &from_list, &takes_gil, &grad_mode, &changes_state,
                        &update, &product))
    return false;
  if (product != Py_None && !MakeProduct(product, call.product.emplace())) return false;
  if (update != Py_None && !MakeUpdate(update, call.update.emplace())) return false;
  call.from_list = from_list, call.takes_gil = takes_gil, call.grad_mode = grad_mode;
  call.changes_state = changes_state;
  if (PyTuple_Check(op)) {
    const char *name, *overload;
    if (!PyArg_ParseTuple(op, "ss", &name, &overload)) return false;
    call.op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  } else {
    call.python = Py_NewRef(op);
  }
  return MakeArgs(args, call.args) && Numbers(outs, call.outs);
}

// (readers, inputs, outputs, constants, calls, nodes, prologue)
inline bool MakeProgram(PyObject* spec, Program& program) {
  PyObject *readers, *inputs, *outputs, *constants, *calls, *nodes, *prologue;
  if (!PyArg_ParseTuple(spec, "OOOOOOO", &readers, &inputs, &outputs, &constants, &calls, &nodes, &prologue))
    return false;
  try {
    return Numbers(readers, program.readers) && Numbers(inputs, program.inputs) && MakeArgs(outputs, program.outputs) &&
           Each(constants,
                [&](PyObject* item, Py_ssize_t) {
                  unsigned slot;
                  PyObject* object;
                  IValue value;
                  if (!PyArg_ParseTuple(item, "IO", &slot, &object) || !FromPython(object, value)) return false;
                  program.constants.emplace_back(slot, std::move(value));
                  return true;
                }) &&
           Each(calls, [&](PyObject* item, Py_ssize_t) { return MakeCall(item, program.calls.emplace_back()); }) &&
           Each(nodes,
                [&](PyObject* item, Py_ssize_t) {
                  Node& node = program.nodes.emplace_back();
                  PyObject *made, *reads;
                  const char* name;
                  if (!PyArg_ParseTuple(item, "OOs", &made, &reads, &name)) return false;
                  node.name = name;
                  return Numbers(made, node.calls) && Numbers(reads, node.reads);
                }) &&
           Numbers(prologue, program.prologue);
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return false;
  }
}

}  // namespace engine_torch
