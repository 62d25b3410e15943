// The adapter: runs programs of torch's operators as nodes of the engine's plans, without the interpreter.
//
// Compiled on first use (adapter.py), because it needs the headers of the torch that is installed. It knows nothing of
// the engine but the table of functions that `connect` is given, so the engine's wheel knows nothing of torch.
#include <algorithm>
#include <chrono>
#include <limits>

#include "arguments.h"
#include "around.h"
#include "backward.h"
#include "glance.h"
#include "overlaps.h"
#include "run.h"

namespace engine_torch {
namespace {

bool TakeInputs(Frame& frame, PyObject* args) {
  const Program& program = frame.program;
  const auto given = static_cast<size_t>(PyList_GET_SIZE(args));
  if (given != program.inputs.size())
    return PyErr_Format(PyExc_TypeError, "engine.torch: %zu inputs, and the program has %zu", given,
                        program.inputs.size()),
           false;
  for (size_t i = 0; i < given; ++i)
    if (program.inputs[i] >= 0 &&
        !FromPython(PyList_GET_ITEM(args, static_cast<Py_ssize_t>(i)), frame.slots[program.inputs[i]]))
      return false;
  return true;
}

PyObject* Outputs(Frame& frame) {
  const auto& outputs = frame.program.outputs;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(outputs.size()));
  for (size_t i = 0; list && i < outputs.size(); ++i) {
    PyObject* item = ToPython(Made(outputs[i], frame.slots));
    if (!item) return Py_DECREF(list), nullptr;
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
  }
  return list;
}

// run(program, inputs: list, way) -> list. Empties `inputs`, so that inputs that only the program needs die in the run.
PyObject* Run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "run takes 3 arguments"), nullptr;
  Program* const program = ProgramOf(args[0]);
  Way way;
  if (!program || !way.Take(args[2])) return nullptr;
  const FrameOf frame(*program);
  if (!TakeInputs(*frame, args[1]) || PyList_SetSlice(args[1], 0, PY_SSIZE_T_MAX, nullptr) != 0 || !RunAll(*frame, way))
    return nullptr;
  return Outputs(*frame);
}

PyObject* NewProgram(PyObject*, PyObject* spec) {
  auto program = std::make_unique<Program>();
  if (!MakeProgram(spec, *program)) return nullptr;
  PyObject* capsule = PyCapsule_New(program.get(), kProgram, [](PyObject* of) { delete ProgramOf(of); });
  if (capsule) program.release();
  return capsule;
}

// The seconds of the fastest of `runs` calls, and what the last one returned. GIL held.
template <class F>
std::pair<double, at::Tensor> Fastest(int runs, F&& call) {
  std::pair<double, at::Tensor> found{std::numeric_limits<double>::infinity(), at::Tensor()};
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    found.second = call();
    found.first =
        std::min(found.first, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return found;
}

// compare(product, args: list, runs, threads) -> (seconds, result) of torch's own kernel and of the product's way; None where
// there is none or it refuses. threads = 0: one, and the product in the pieces that threads of a run would share.
PyObject* Compare(PyObject*, PyObject* args) {
  PyObject *spec, *given;
  int runs, threads;
  Product product;
  IValue tensors;
  if (!PyArg_ParseTuple(args, "OOii", &spec, &given, &runs, &threads) || !MakeProduct(spec, product) ||
      !FromPython(given, tensors))
    return nullptr;
  try {
    const BelowAutograd guard;
    const Caller caller(std::max(1, threads));
    const Inside no_node(nullptr);  // a Python kernel in a node may be what compiles
    torch::jit::Stack stack;
    for (const at::Tensor& tensor : tensors.toTensorVector()) stack.emplace_back(tensor);
    if (!product.Possible() || stack.size() != (product.adds ? 3 : 2) || !product.Fits(stack.data())) Py_RETURN_NONE;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(product.adds ? "aten::addmm" : "aten::mm", "");
    const auto theirs = Fastest(runs, [&] {
      torch::jit::Stack used = stack;
      if (product.adds) used.emplace_back(1), used.emplace_back(1);
      op.callBoxed(used);
      return std::move(used.at(0)).toTensor();
    });
    const auto other = Fastest(runs, [&] { return product(stack.data(), threads == 0); });
    return Py_BuildValue("((dN)(dN))", theirs.first, THPVariable_Wrap(theirs.second), other.first,
                         THPVariable_Wrap(other.second));
  } catch (const std::exception&) {
    Py_RETURN_NONE;
  }
}

// update(update, args: list of tensors, numbers and lists of floats, whether by rows) -> whether it was done: False where
// this processor cannot.
PyObject* UpdateOnce(PyObject*, PyObject* args) {
  PyObject *spec, *given;
  int by_rows;
  Update update;
  std::vector<Arg> made;
  if (!PyArg_ParseTuple(args, "OOp", &spec, &given, &by_rows) || !MakeUpdate(spec, update) || !MakeArgs(given, made))
    return nullptr;
  if (!Update::Possible()) Py_RETURN_FALSE;
  try {
    const BelowAutograd guard;
    const Caller caller(1);
    torch::jit::Stack stack;
    for (const Arg& arg : made) stack.push_back(Made(arg, {}));
    by_rows ? update(stack) : update.Plain(stack);
    if (update.kind == Update::kGradient) return ToPython(stack.at(0));
  } catch (const std::exception&) {
    Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

PyObject* Connect(PyObject*, PyObject* address) {
  engine_table = static_cast<const EngineTable*>(PyLong_AsVoidPtr(address));
  if (PyErr_Occurred()) return nullptr;
  know_thread = engine_table->know_thread;
  parallel_for = engine_table->parallel_for;
  Py_RETURN_NONE;
}

PyObject* NodeFunction(PyObject*, PyObject*) { return PyLong_FromVoidPtr(reinterpret_cast<void*>(&RunNode)); }

PyMethodDef methods[] = {
    {"around", Around, METH_NOARGS, "The usual settings around a call; None where others must be asked for."},
    {"as_noted", AsNoted, METH_VARARGS, "Whether the same objects are in the same places."},
    {"compare", Compare, METH_VARARGS, "Times a product of matrices by torch's own kernel and another way."},
    {"connect", Connect, METH_O, "Takes the address of the engine's table."},
    {"flatten", Flatten, METH_VARARGS, "The leaves of a call's arguments, and their structure."},
    {"looks", Looks, METH_O, "A number that tells whether tensors are as before."},
    {"meets", Meets, METH_VARARGS, "Whether tensors share memory with some, or with each other."},
    {"node_function", NodeFunction, METH_NOARGS, "The address of the function that plans call for a node."},
    {"program", NewProgram, METH_O, "Makes a program from its description."},
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Run)), METH_FASTCALL, "Runs a program."},
    {"signatures", Signatures, METH_VARARGS, "What tells the arguments of two calls apart."},
    {"train", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Train)), METH_FASTCALL,
     "Calls a graph whose gradients are asked for."},
    {"trained_graph", NewTrainedGraph, METH_VARARGS, "Makes such a graph from its two programs."},
    {"update", UpdateOnce, METH_VARARGS,
     "Updates a table, or makes its gradient, by its rows or, to compare, as eager does."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "engine_torch_adapter", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace engine_torch

PyMODINIT_FUNC PyInit_engine_torch_adapter() { return PyModule_Create(&engine_torch::module); }
