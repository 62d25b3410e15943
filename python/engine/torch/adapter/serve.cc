// The adapter's module for served models: checks arguments, runs a program's nodes in turn on the calling thread without the
// GIL, and wraps what comes out.
//
// Threads:   any may call `run`; what is said in serve_program.h.
// Errors:    TypeError and ValueError name the argument, what it is and what is allowed; errors of a node are torch's, with
//            a note that says which node failed.
#include <cxxabi.h>

#include <chrono>

#include "serve_program.h"

namespace engine_torch::serve {
namespace {

constexpr const char* kCapsule = "engine_torch_serving.program";

Program* ProgramOf(PyObject* capsule) { return static_cast<Program*>(PyCapsule_GetPointer(capsule, kCapsule)); }

std::string Text(const std::vector<Affine>& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i)
    text += (i ? ", " : "") + (sizes[i].a ? std::string("rows") : std::to_string(sizes[i].c));
  return text + "]";
}
std::string Text(at::IntArrayRef sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

bool Refuse(PyObject* type, const std::string& text) {
  PyErr_SetString(type, ("engine.torch.serve: " + text).c_str());
  return false;
}

bool RefuseCount(const Form& form, Py_ssize_t size, const char* parts, const char* arguments) {
  const bool named = !form.name.empty();
  return Refuse(PyExc_TypeError, (named ? form.name + " has " : "there are ") + std::to_string(size) + " " +
                                     (named ? parts : arguments) + "; " + std::to_string(form.items.size()) +
                                     " are wanted");
}

void SetException(const std::exception_ptr& error) {
  try {
    torch::translate_exception_to_python(error);
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "engine.torch.serve: an exception that is no std::exception");
  }
}

// What `f` returns; null with a Python exception set where it throws, because none of C++ may leave through C.
template <class F>
PyObject* Translated(F&& f) {
  try {
    return f();
  } catch (const abi::__forced_unwind&) {
    throw;  // the interpreter has ended meanwhile: CPython before 3.14 ends a thread that asks for the GIL
  } catch (...) {
    SetException(std::current_exception());
    return nullptr;
  }
}

// Puts the tensors of an argument where the program wants them.
bool Flatten(const Form& form, PyObject* object, std::vector<at::Tensor>& into) {
  switch (form.kind) {
    case Form::kTensor: {
      const int is = PyObject_IsInstance(object, THPVariableClass);
      if (is < 0) return false;
      if (!is)
        return Refuse(PyExc_TypeError, form.name + " is of type " + Py_TYPE(object)->tp_name + "; a tensor is wanted");
      into[form.index] = reinterpret_cast<THPVariable*>(object)->cdata;
      return true;
    }
    case Form::kConstant: {
      const int equal = PyObject_RichCompareBool(object, form.constant, Py_EQ);
      if (equal < 0) return false;
      return equal || Refuse(PyExc_ValueError, form.name + " is another constant than when the model was exported");
    }
    case Form::kSequence: {
      if (!PyTuple_Check(object) && !PyList_Check(object))
        return Refuse(PyExc_TypeError, form.name + " is of type " + Py_TYPE(object)->tp_name + "; a tuple or list of " +
                                           std::to_string(form.items.size()) + " is wanted");
      const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
      if (size != static_cast<Py_ssize_t>(form.items.size()))
        return RefuseCount(form, size, "parts", "positional arguments");
      for (size_t i = 0; i < form.items.size(); ++i)
        if (!Flatten(form.items[i], PySequence_Fast_GET_ITEM(object, static_cast<Py_ssize_t>(i)), into)) return false;
      return true;
    }
    case Form::kDict: {
      const Py_ssize_t size = PyDict_Check(object) ? PyDict_GET_SIZE(object) : -1;
      for (size_t i = 0; i < form.items.size(); ++i) {
        PyObject* item = size > 0 ? PyDict_GetItemWithError(object, form.keys[i]) : nullptr;
        if (!item) return !PyErr_Occurred() && Refuse(PyExc_TypeError, "there is no argument " + form.items[i].name);
        if (!Flatten(form.items[i], item, into)) return false;
      }
      if (size >= 0 && size != static_cast<Py_ssize_t>(form.items.size()))
        return RefuseCount(form, size, "keys", "keyword arguments");
      return true;
    }
  }
  return true;
}

// The number of rows of a request; -1 with an exception set.
int64_t Checked(const Program& program, const std::vector<at::Tensor>& given) {
  int64_t rows = -1;
  const std::string* said = nullptr;
  const auto refuse = [](PyObject* type, const std::string& text) { return Refuse(type, text), int64_t{-1}; };
  for (size_t i = 0; i < given.size(); ++i) {
    const Input& input = program.inputs[i];
    const at::Tensor& tensor = given[i];
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu() || tensor.is_neg() ||
        tensor.is_conj() || tensor._is_zerotensor() || tensor.unsafeGetTensorImpl()->is_python_dispatch())
      return refuse(PyExc_TypeError, input.name + " is no plain tensor in the CPU's memory, which is wanted");
    if (tensor.scalar_type() != input.view.dtype)
      return refuse(PyExc_TypeError, input.name + " is of " + c10::toString(tensor.scalar_type()) + "; " +
                                         c10::toString(input.view.dtype) + " is wanted");
    const auto& sizes = input.view.sizes;
    bool fits = tensor.dim() == static_cast<int64_t>(sizes.size());
    for (size_t d = 0; fits && d < sizes.size(); ++d) {
      const int64_t size = tensor.size(static_cast<int64_t>(d));
      if (sizes[d].a == 0) {
        fits = size == sizes[d].c;
      } else if (rows < 0) {
        rows = size, said = &input.name;
      } else if (size != rows) {
        return refuse(PyExc_ValueError, input.name + " has " + std::to_string(size) + " rows, and " + *said + " has " +
                                            std::to_string(rows));
      }
    }
    if (!fits)
      return refuse(PyExc_ValueError,
                    input.name + " is of size " + Text(tensor.sizes()) + "; " + Text(sizes) + " is wanted");
  }
  if (rows < 0)
    rows = program.least;  // no argument has rows
  else if (rows < program.least || rows > program.most)
    return refuse(PyExc_ValueError, *said + " has " + std::to_string(rows) + " rows; " + std::to_string(program.least) +
                                        " to " + std::to_string(program.most) + " are allowed");
  return rows;
}

std::unique_ptr<Frame> NewFrame(const Program& program) {
  auto frame = std::make_unique<Frame>();
  frame->bases.resize(program.storages.size());
  frame->inputs.resize(program.inputs.size());
  frame->copies.resize(program.inputs.size());
  frame->outputs.resize(program.outputs.size());
  const bool fine = Each(program.nodes, [&](PyObject* item, Py_ssize_t) {
    auto node = ParseNode(item);
    return node && (frame->nodes.push_back(std::move(node)), true);
  });
  return fine ? std::move(frame) : nullptr;
}

// A frame that nobody uses: one of as many rows if there is one, else a new one until there are some, because laying out a
// frame for another number of rows takes longer than a short request.
std::unique_ptr<Frame> FrameFor(Program& program, int64_t rows) {
  auto found = program.free.end();
  for (auto at = program.free.begin(); at != program.free.end(); ++at)
    if ((*at)->rows == rows || (*at)->rows < 0) found = at;
  if (found == program.free.end()) {
    if (program.free.size() < kKeptSizes) return NewFrame(program);
    found = program.free.begin();  // the one that was used longest ago
  }
  std::unique_ptr<Frame> frame = std::move(*found);
  program.free.erase(found);
  return frame;
}

// Leaves a frame to later requests. What this one returns is the caller's alone from now on.
void GiveBack(Program& program, std::unique_ptr<Frame> frame) {
  for (at::Tensor& tensor : frame->outputs) tensor.reset();
  if (program.free.size() < kKeptFrames) program.free.push_back(std::move(frame));
}

// An input's numbers, in the order that the program was made for: the tensor's own, or a copy.
char* NumbersOf(Frame& frame, const Input& input, size_t number, int64_t rows) {
  const at::Tensor& tensor = frame.inputs[number];
  auto* data = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
  if (tensor.is_contiguous()) return data;
  const int64_t bytes = static_cast<int64_t>(tensor.element_size());
  Place to = Resolved(input.view, rows), from = to;
  from.strides = tensor.strides().vec();
  auto& copy = frame.copies[number];
  if (copy.size() < static_cast<size_t>(tensor.numel() * bytes))
    copy.resize(static_cast<size_t>(tensor.numel() * bytes));
  CopyNode::Copy(Walk(to.sizes, {&from, &to}), data, copy.data(), bytes);
  return copy.data();
}

void Prepare(const Program& program, Frame& frame, int64_t rows) {
  if (frame.rows != rows) {
    frame.rows = -1;
    size_t size = 0;
    std::vector<size_t> offsets;
    for (const Affine& block : program.blocks) {
      offsets.push_back(size);
      size += static_cast<size_t>((block(rows) + kAlignment - 1) / kAlignment * kAlignment);
    }
    if (size > frame.arena_size || size * 4 < frame.arena_size) {
      frame.arena_size = 0;
      frame.arena.reset(static_cast<char*>(std::aligned_alloc(kAlignment, std::max<size_t>(size, kAlignment))));
      if (!frame.arena) throw std::bad_alloc();
      frame.arena_size = std::max<size_t>(size, kAlignment);
    }
    for (size_t i = 0; i < program.storages.size(); ++i)
      if (program.storages[i].kind == Storage::kArena)
        frame.bases[i] = frame.arena.get() + offsets[program.storages[i].index];
    for (const auto& node : frame.nodes) node->Resolve(rows);
    frame.rows = rows;
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    std::vector<int64_t> sizes;
    for (const Affine& size : program.outputs[i].sizes) sizes.push_back(size(rows));
    frame.outputs[i] = at::detail::empty_cpu(sizes, program.outputs[i].dtype);
  }
  for (size_t i = 0; i < program.storages.size(); ++i) {
    const auto [kind, index] = program.storages[i];
    if (kind == Storage::kInput)
      frame.bases[i] = NumbersOf(frame, program.inputs[index], index, rows);
    else if (kind == Storage::kConstant)
      frame.bases[i] = static_cast<char*>(const_cast<void*>(frame.constants->tensors[index].const_data_ptr()));
    else if (kind == Storage::kOutput)
      frame.bases[i] = static_cast<char*>(frame.outputs[index].mutable_data_ptr());
  }
}

// Runs the nodes in turn. `times`: nanoseconds, the least of each node so far; or null.
void RunNodes(const Program& program, Frame& frame, int64_t rows, size_t& at, std::vector<int64_t>* times) {
  Prepare(program, frame, rows);
  using Clock = std::chrono::steady_clock;
  auto before = times ? Clock::now() : Clock::time_point();
  for (at = 0; at < frame.nodes.size(); ++at) {
    frame.nodes[at]->Run(frame.bases.data());
    if (!times) continue;
    const auto now = Clock::now();
    (*times)[at] = std::min((*times)[at], static_cast<int64_t>((now - before).count()));
    before = now;
  }
}

// The frame with its outputs made; null with an exception set.
std::unique_ptr<Frame> Answered(Program& program, PyObject* args, PyObject* kwargs, std::vector<int64_t>* times) {
  for (const Watched& watched : program.constants->watched) {
    if (!watched.Changed()) continue;
    PyObject* done = PyObject_CallNoArgs(program.refresh);
    if (!done) return nullptr;
    Py_DECREF(done);
    break;
  }
  std::vector<at::Tensor> given(program.inputs.size());
  if (!Flatten(program.args, args, given) || !Flatten(program.kwargs, kwargs, given)) return nullptr;
  const int64_t rows = Checked(program, given);
  if (rows < 0) return nullptr;
  std::unique_ptr<Frame> frame = FrameFor(program, rows);
  if (!frame) return nullptr;
  frame->inputs.swap(given);
  frame->constants = program.constants;
  std::exception_ptr error;
  size_t at = program.names.size();
  PyThreadState* state = PyEval_SaveThread();
  try {
    if (program.calls) {
      const BelowAutograd guard;
      const Caller caller(1);
      RunNodes(program, *frame, rows, at, times);
    } else {
      RunNodes(program, *frame, rows, at, times);
    }
  } catch (...) {
    error = std::current_exception();
  }
  if (program.calls)
    for (const auto& node : frame->nodes) node->Clear();
  PyEval_RestoreThread(state);
  frame->inputs.swap(given);
  for (at::Tensor& tensor : frame->inputs) tensor.reset();
  frame->constants.reset();
  if (!error) return frame;
  GiveBack(program, std::move(frame));
  SetException(error);
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && at < program.names.size()) {
    PyObject* done =
        PyObject_CallMethod(value, "add_note", "s", ("engine.torch.serve: in " + program.names[at]).c_str());
    if (!done) PyErr_Clear();  // Python 3.10 has no notes
    Py_XDECREF(done);
  }
  PyErr_Restore(type, value, trace);
  return nullptr;
}

// run(program, args, kwargs): a tensor, or a list of the outputs.
PyObject* Run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Program* program = count == 3 ? ProgramOf(args[0]) : nullptr;
  if (!program) return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_TypeError, "run(program, args, kwargs)");
  return Translated([&]() -> PyObject* {
    std::unique_ptr<Frame> frame = Answered(*program, args[1], args[2], nullptr);
    if (!frame) return nullptr;
    PyObject* made = nullptr;
    if (program->one) {
      made = THPVariable_Wrap(frame->outputs[0]);
    } else {
      made = PyList_New(static_cast<Py_ssize_t>(frame->outputs.size()));
      for (size_t i = 0; made && i < frame->outputs.size(); ++i)
        PyList_SET_ITEM(made, static_cast<Py_ssize_t>(i), THPVariable_Wrap(frame->outputs[i]));
    }
    GiveBack(*program, std::move(frame));
    return made;
  });
}

// times(program, args, kwargs, n): the least nanoseconds of each node in n requests.
PyObject* Times(PyObject*, PyObject* tuple) {
  PyObject *capsule, *args, *kwargs;
  int n;
  if (!PyArg_ParseTuple(tuple, "OOOi", &capsule, &args, &kwargs, &n)) return nullptr;
  Program* program = ProgramOf(capsule);
  if (!program) return nullptr;
  return Translated([&]() -> PyObject* {
    std::vector<int64_t> times(program->names.size(), std::numeric_limits<int64_t>::max());
    for (int i = 0; i < n; ++i) {
      std::unique_ptr<Frame> frame = Answered(*program, args, kwargs, &times);
      if (!frame) return nullptr;
      GiveBack(*program, std::move(frame));
    }
    PyObject* list = PyList_New(static_cast<Py_ssize_t>(times.size()));
    for (size_t i = 0; list && i < times.size(); ++i)
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), PyLong_FromLongLong(times[i]));
    return list;
  });
}

// constants(program, tensors, [(tensor, its address, its version; -1: torch counts none, or its numbers are read anew)]): what is no
// longer so makes the constants again.
PyObject* SetConstants(PyObject*, PyObject* tuple) {
  PyObject *capsule, *tensors, *watched;
  if (!PyArg_ParseTuple(tuple, "OOO", &capsule, &tensors, &watched)) return nullptr;
  Program* program = ProgramOf(capsule);
  if (!program) return nullptr;
  return Translated([&]() -> PyObject* {
    auto made = std::make_shared<Constants>();
    IValue value;
    const auto tensor = [&](PyObject* item) {
      return FromPython(item, value) && (value.isTensor() || Refuse(PyExc_TypeError, "a constant that is no tensor"));
    };
    if (!Each(tensors, [&](PyObject* item,
                           Py_ssize_t) { return tensor(item) && (made->tensors.push_back(value.toTensor()), true); }) ||
        !Each(watched, [&](PyObject* item, Py_ssize_t) {
          PyObject* watch;
          unsigned long long address;
          long long version;
          if (!PyArg_ParseTuple(item, "OKL", &watch, &address, &version) || !tensor(watch)) return false;
          made->watched.push_back({value.toTensor(), reinterpret_cast<const void*>(address), version});
          return true;
        }))
      return nullptr;
    program->constants = std::move(made);
    Py_RETURN_NONE;
  });
}

PyObject* NewProgram(PyObject*, PyObject* spec) {
  return Translated([&]() -> PyObject* {
    auto program = std::make_unique<Program>();
    program->constants = std::make_shared<Constants>();
    if (!ParseProgram(spec, *program)) return nullptr;
    auto frame = NewFrame(*program);  // so that what a node cannot do is said now
    if (!frame) return nullptr;
    program->free.push_back(std::move(frame));
    return PyCapsule_New(program.release(), kCapsule, [](PyObject* capsule) { delete ProgramOf(capsule); });
  });
}

PyObject* Possible(PyObject*, PyObject*) { return PyBool_FromLong(Brgemm::Possible()); }

PyMethodDef methods[] = {
    {"constants", SetConstants, METH_VARARGS, "Replaces a program's constants."},
    {"products", Possible, METH_NOARGS, "Whether products of matrices can be made."},
    {"program", NewProgram, METH_O, "Makes a program from its description."},
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Run)), METH_FASTCALL, "Answers a request."},
    {"times", Times, METH_VARARGS, "Times the nodes of a program."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "engine_torch_serving", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace engine_torch::serve

PyMODINIT_FUNC PyInit_engine_torch_serving() { return PyModule_Create(&engine_torch::serve::module); }
