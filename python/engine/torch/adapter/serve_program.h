// A served program: what engine.torch.serve makes of a model, and frames, in each of which one request is answered.
//
// Threads:   the program, its frames' list and its constants are used under the GIL only; a frame in use belongs to one
//            thread, which runs the nodes without the GIL.
// Ownership: a frame holds the constants that its request has begun with, so they may be replaced meanwhile.
#pragma once

#include <cstdlib>

#include "serve_nodes.h"

namespace engine_torch::serve {

// A call of torch's operator, for which there is no node of our own.
class CallNode final : public Node {
 public:
  struct Value {
    int32_t slot;
    View view;
  };
  struct Size {
    int32_t slot;
    Affine size;
  };
  CallNode(Call call, std::vector<Value> inputs, std::vector<Size> sizes, std::vector<Value> outputs, size_t slots)
      : call_(std::move(call)),
        inputs_(std::move(inputs)),
        sizes_(std::move(sizes)),
        outputs_(std::move(outputs)),
        slots_(slots) {}

  void Resolve(int64_t rows) override {
    input_at_.clear(), output_at_.clear();
    for (const Value& value : inputs_) input_at_.push_back(Resolved(value.view, rows));
    for (const Value& value : outputs_) output_at_.push_back(Resolved(value.view, rows));
    for (const Size& size : sizes_) slots_[size.slot] = size.size(rows);
  }
  void Run(char* const* bases) override {
    for (size_t i = 0; i < inputs_.size(); ++i)
      slots_[inputs_[i].slot] = at::from_blob(input_at_[i].In(bases), input_at_[i].sizes, input_at_[i].strides,
                                              at::TensorOptions(inputs_[i].view.dtype));
    torch::jit::Stack stack;
    for (const Arg& arg : call_.args) stack.push_back(Made(arg, slots_));
    const PyGILState_STATE state = call_.takes_gil ? PyGILState_Ensure() : PyGILState_STATE();
    try {
      call_.op->callBoxed(stack);
    } catch (...) {
      if (call_.takes_gil) PyGILState_Release(state);
      throw;
    }
    if (call_.takes_gil) PyGILState_Release(state);
    Store(call_, slots_, stack);
    for (size_t i = 0; i < outputs_.size(); ++i) {
      at::Tensor made = slots_[outputs_[i].slot].toTensor();
      const Place& place = output_at_[i];
      if (made.sizes() != at::IntArrayRef(place.sizes))
        throw std::runtime_error(
            "engine.torch.serve: an operator returned another size than when the model was exported");
      if (made.strides() != at::IntArrayRef(place.strides))
        made = at::empty_strided(place.sizes, place.strides, made.options()).copy_(made);
      // bases is the frame's own list.
      const_cast<char**>(bases)[place.storage] = static_cast<char*>(made.data_ptr()) - place.offset;
      slots_[outputs_[i].slot] = std::move(made);
    }
  }
  void Clear() override {
    for (const Value& value : inputs_) slots_[value.slot] = IValue();
    for (const Value& value : outputs_) slots_[value.slot] = IValue();
  }

 private:
  Call call_;
  std::vector<Value> inputs_;
  std::vector<Size> sizes_;
  std::vector<Value> outputs_;
  std::vector<IValue> slots_;
  std::vector<Place> input_at_, output_at_;
};

struct Storage {
  enum Kind : int32_t { kInput, kConstant, kArena, kOutput, kCall };
  int32_t kind = 0, index = 0;  // of the inputs, constants, blocks of the arena, outputs
};

struct Input {
  std::string name;
  View view;
};

struct Watched {
  at::Tensor tensor;
  const void* data;
  int64_t version;  // -1: torch does not count
  bool Changed() const {
    return tensor.const_data_ptr() != data || (version >= 0 && static_cast<int64_t>(tensor._version()) != version);
  }
};

struct Constants {
  std::vector<at::Tensor> tensors;
  std::vector<Watched> watched;
};

// What the arguments look like: a tensor, or a tuple, list or dict of such, or a constant.
struct Form {
  enum Kind : int32_t { kTensor, kSequence, kDict, kConstant } kind = kTensor;
  int32_t index = -1;
  std::string name;
  std::vector<Form> items;
  std::vector<PyObject*> keys;   // owned by the program's description
  PyObject* constant = nullptr;  // likewise
};

struct Frame {
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<char*> bases;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> inputs;
  std::vector<std::vector<char>> copies;  // of inputs that lie in another order
  std::shared_ptr<const Constants> constants;
  std::unique_ptr<char, decltype(&std::free)> arena{nullptr, &std::free};
  size_t arena_size = 0;
  int64_t rows = -1;
};

struct Program {
  PyObject* description = nullptr;  // owned
  PyObject* refresh = nullptr;      // owned
  PyObject* nodes = nullptr;        // of the description
  Form args, kwargs;
  std::vector<Input> inputs;
  std::vector<Storage> storages;
  std::vector<Affine> blocks;  // of the arena, in bytes
  std::vector<View> outputs;
  std::vector<std::string> names;  // of nodes
  int64_t least = 1, most = 1;     // rows
  bool calls = false;              // some nodes call torch's operators
  bool one = false;                // the model returns one tensor, and no list
  std::shared_ptr<const Constants> constants;
  std::vector<std::unique_ptr<Frame>> free;

  ~Program() { Py_XDECREF(description), Py_XDECREF(refresh); }
};

inline constexpr size_t kKeptFrames = 64;  // more are freed: one for each request at once
inline constexpr size_t kKeptSizes = 8;    // frames that are kept before one is laid out for another number of rows
inline constexpr int64_t kAlignment = 64;

inline bool ParseForm(PyObject* spec, Form& form) {
  const char *kind, *name;
  PyObject* what;
  if (!PyArg_ParseTuple(spec, "ssO", &kind, &name, &what)) return false;
  form.name = name;
  switch (*kind) {
    case 't': form.index = static_cast<int32_t>(PyLong_AsLong(what)); return !PyErr_Occurred();
    case 'k': form.kind = Form::kConstant, form.constant = what; return true;
    case 's':
      form.kind = Form::kSequence;
      return Each(what, [&](PyObject* item, Py_ssize_t) { return ParseForm(item, form.items.emplace_back()); });
    default:
      form.kind = Form::kDict;
      return Each(what, [&](PyObject* item, Py_ssize_t) {
        PyObject *key, *value;
        if (!PyArg_ParseTuple(item, "OO", &key, &value)) return false;
        form.keys.push_back(key);
        return ParseForm(value, form.items.emplace_back());
      });
  }
}

template <class T>
bool ParseOperands(PyObject* spec, std::vector<T>& into) {  // of (number, view)
  return Each(spec, [&](PyObject* item, Py_ssize_t) {
    PyObject* view;
    int number;
    View parsed;
    if (!PyArg_ParseTuple(item, "iO", &number, &view) || !ParseView(view, parsed)) return false;
    if constexpr (std::is_same_v<T, PointwiseNode::Operand>)
      into.push_back({std::move(parsed), number});
    else
      into.push_back({number, std::move(parsed)});
    return true;
  });
}

inline std::unique_ptr<Node> ParseProduct(PyObject* spec) {
  PyObject *a, *b, *row, *out;
  int act;
  View views[4];
  if (!PyArg_ParseTuple(spec, "OOOOi", &a, &b, &row, &out, &act) || !ParseView(a, views[0]) ||
      !ParseView(b, views[1]) || (row != Py_None && !ParseView(row, views[2])) || !ParseView(out, views[3]))
    return nullptr;
  std::optional<View> added;
  if (row != Py_None) added = std::move(views[2]);
  return std::make_unique<ProductNode>(std::move(views[0]), std::move(views[1]), std::move(added), std::move(views[3]),
                                       static_cast<Op>(act));
}

inline std::unique_ptr<Node> ParseLookup(PyObject* spec) {
  std::vector<LookupNode::Table> tables;
  const bool fine = Each(spec, [&](PyObject* item, Py_ssize_t) {
    PyObject *table, *index, *out;
    const char *name, *argument;
    auto& made = tables.emplace_back();
    if (!PyArg_ParseTuple(item, "OOOss", &table, &index, &out, &name, &argument)) return false;
    made.name = name, made.argument = argument;
    return ParseView(table, made.table) && ParseView(index, made.index) && ParseView(out, made.out);
  });
  if (!fine) return nullptr;
  return std::make_unique<LookupNode>(std::move(tables));
}

inline std::unique_ptr<Node> ParsePointwise(PyObject* spec) {
  PyObject *loads, *stores, *steps, *constants;
  int registers;
  std::vector<PointwiseNode::Operand> from, to;
  std::vector<PointwiseNode::Step> made;
  std::vector<std::pair<int32_t, float>> numbers;
  if (!PyArg_ParseTuple(spec, "OOOOi", &loads, &stores, &steps, &constants, &registers) ||
      !ParseOperands(loads, from) || !ParseOperands(stores, to) ||
      !Each(steps,
            [&](PyObject* item, Py_ssize_t) {
              auto& step = made.emplace_back();
              int op;
              if (!PyArg_ParseTuple(item, "iiiii", &op, &step.from[0], &step.from[1], &step.from[2], &step.to))
                return false;
              step.op = static_cast<Op>(op);
              return true;
            }) ||
      !Each(constants, [&](PyObject* item, Py_ssize_t) {
        int reg;
        float value;
        if (!PyArg_ParseTuple(item, "if", &reg, &value)) return false;
        numbers.emplace_back(reg, value);
        return true;
      }))
    return nullptr;
  return std::make_unique<PointwiseNode>(std::move(from), std::move(to), std::move(made), std::move(numbers),
                                         registers);
}

inline std::unique_ptr<Node> ParseCall(PyObject* spec) {
  PyObject *call, *inputs, *sizes, *outputs;
  int slots;
  Call made;
  std::vector<CallNode::Value> from, to;
  std::vector<CallNode::Size> numbers;
  if (!PyArg_ParseTuple(spec, "OOOOi", &call, &inputs, &sizes, &outputs, &slots) || !MakeCall(call, made) ||
      !ParseOperands(inputs, from) || !ParseOperands(outputs, to) || !Each(sizes, [&](PyObject* item, Py_ssize_t) {
        PyObject* size;
        auto& number = numbers.emplace_back();
        return PyArg_ParseTuple(item, "iO", &number.slot, &size) && ParseAffine(size, number.size);
      }))
    return nullptr;
  return std::make_unique<CallNode>(std::move(made), std::move(from), std::move(numbers), std::move(to), slots);
}

// (kind, what): null with a Python exception set.
inline std::unique_ptr<Node> ParseNode(PyObject* spec) {
  const char* kind;
  PyObject *what, *from, *to;
  View a, b;
  int how = 0;
  if (!PyArg_ParseTuple(spec, "sO", &kind, &what)) return nullptr;
  switch (*kind) {
    case 'p': return ParseProduct(what);
    case 'l': return ParseLookup(what);
    case 'w': return ParsePointwise(what);
    case 'c': return ParseCall(what);
    default: break;
  }
  if (!PyArg_ParseTuple(what, "OO|i", &from, &to, &how) || !ParseView(from, a) || !ParseView(to, b)) return nullptr;
  switch (*kind) {
    case 'r': return std::make_unique<ReduceNode>(std::move(a), std::move(b), static_cast<ReduceNode::Kind>(how));
    case 's': return std::make_unique<SoftmaxNode>(std::move(a), std::move(b));
    default: return std::make_unique<CopyNode>(std::move(a), std::move(b));
  }
}

// (args, kwargs, inputs, storages, blocks, outputs, nodes, names, least, most, one, calls, refresh)
inline bool ParseProgram(PyObject* spec, Program& program) {
  PyObject *args, *kwargs, *inputs, *storages, *blocks, *outputs, *names;
  long long least, most;
  int one, calls;
  if (!PyArg_ParseTuple(spec, "OOOOOOOOLLppO", &args, &kwargs, &inputs, &storages, &blocks, &outputs, &program.nodes,
                        &names, &least, &most, &one, &calls, &program.refresh))
    return program.refresh = nullptr, false;
  program.description = Py_NewRef(spec), Py_INCREF(program.refresh);
  program.least = least, program.most = most, program.one = one, program.calls = calls;
  return ParseForm(args, program.args) && ParseForm(kwargs, program.kwargs) && ParseAffines(blocks, program.blocks) &&
         ParseViews(outputs, program.outputs) &&
         Each(inputs,
              [&](PyObject* item, Py_ssize_t) {
                Input& input = program.inputs.emplace_back();
                const char* name;
                PyObject* view;
                if (!PyArg_ParseTuple(item, "sO", &name, &view) || !ParseView(view, input.view)) return false;
                input.name = name;
                return true;
              }) &&
         Each(storages,
              [&](PyObject* item, Py_ssize_t) {
                auto& storage = program.storages.emplace_back();
                return PyArg_ParseTuple(item, "ii", &storage.kind, &storage.index) != 0;
              }) &&
         Each(names, [&](PyObject* item, Py_ssize_t) {
           const char* name = PyUnicode_AsUTF8(item);
           return name && (program.names.emplace_back(name), true);
         });
}

}  // namespace engine_torch::serve
