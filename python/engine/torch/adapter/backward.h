// Backward: calls of a graph whose gradients are asked for, and the node that stands for such a call in torch's autograd.
//
// Threads:   a graph's calls and backward passes may come from any thread, several at once. They take the GIL, and RunAll gives it up.
// Ownership: a node keeps its graph, and the tensors that the backward pass needs, until autograd releases them.
// Errors:    those of the program that failed, as Python tells them (Program.told).
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "run.h"

namespace engine_torch {

class GilHeld {
 public:
  GilHeld() : state_(PyGILState_Ensure()) {}
  ~GilHeld() { PyGILState_Release(state_); }
  GilHeld(const GilHeld&) = delete;

 private:
  const PyGILState_STATE state_;
};

// TrainedGraph: the two programs of a graph. The forward one returns the graph's outputs, then what the backward one takes before
// the outputs' gradients.
struct TrainedGraph {
  struct Gradient {  // how one of an output must lie in memory
    std::vector<int64_t> sizes, strides;
  };
  Program *forward = nullptr, *backward = nullptr;
  std::vector<bool> takes_gradient;  // by input
  std::vector<bool> has_gradient;    // by output
  size_t checked = 0;  // tensors that must not have changed when the backward pass takes them; they come first
  size_t kept = 0;     // all of them
  std::vector<Gradient> gradients;  // of the outputs that have some
  PyObject* way = nullptr;          // Program.way and Program.told, of the backward program
  PyObject* told = nullptr;
  PyObject* programs = nullptr;  // a tuple that keeps them

  TrainedGraph() = default;
  TrainedGraph(const TrainedGraph&) = delete;
  ~TrainedGraph() {
    if (!Py_IsInitialized()) return;
    const GilHeld gil;
    Py_XDECREF(way), Py_XDECREF(told), Py_XDECREF(programs);
  }
};

// TrainedNode: the backward pass of one call.
class TrainedNode : public torch::autograd::Node {
 public:
  TrainedNode(std::shared_ptr<TrainedGraph> graph, std::string mode, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), graph_(std::move(graph)), mode_(std::move(mode)) {}

  std::string name() const override { return "EngineBackward"; }

  // Behind the call that gave the outputs this node: a tensor that is one of them must not keep it. Before anybody else has the node.
  void Keep(std::vector<at::Tensor> tensors) {
    const auto saved = std::make_shared<Tensors>();
    for (size_t i = 0; i < tensors.size(); ++i) {
      at::Tensor tensor = tensors[i].is_view() ? tensors[i].detach() : std::move(tensors[i]);
      const bool own = tensor.grad_fn().get() == this;
      if (i < graph_->checked) {
        saved->checked.emplace_back(tensor, own);
      } else {
        saved->unchecked.push_back(own ? tensor.detach() : std::move(tensor));
      }
    }
    saved_ = saved;
  }

  void release_variables() override { Saved(/*stay=*/false); }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TORCH_CHECK(!c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode),
                "engine.torch: the backward pass of a compiled graph can't run inside of vmap, grad, vjp or the "
                "like; compile what has the transform in it, or call it without torch.compile");
    const GilHeld gil;
    const TrainedGraph& graph = *graph_;
    const FrameOf frame(*graph.backward);
    std::vector<at::Tensor> given = Kept();
    const bool again = at::GradMode::is_enabled();  // the gradients are part of a graph themselves, which ends here
    torch::autograd::edge_list edges;
    if (again) edges = torch::autograd::collect_next_edges(given, gradients);
    for (size_t i = 0; i < graph.gradients.size(); ++i) given.push_back(Laid(i, std::move(gradients[i])));
    for (size_t i = 0; i < given.size(); ++i) frame->Give(i, std::move(given[i]));
    given.clear();
    Way way;
    PyObject* const asked = PyObject_CallFunction(graph.way, "s", mode_.c_str());
    const bool known = asked && way.Take(asked);
    Py_XDECREF(asked);
    if (!known || !RunAll(*frame, way)) throw Raised();
    torch::autograd::variable_list made;
    for (const Arg& output : graph.backward->outputs) {
      IValue value = Made(output, frame->slots);
      made.push_back(value.isTensor() ? std::move(value).toTensor() : at::Tensor());
    }
    if (again) EndsHere(made, std::move(edges));
    return made;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "engine.torch: compiled autograd was switched on behind a call of this graph; switch it on before");
  }

 private:
  struct Tensors {
    std::vector<torch::autograd::SavedVariable> checked;
    std::vector<at::Tensor> unchecked;
  };
  // The last who has them lets them die, which may take the GIL, so nobody does that under the lock.
  std::shared_ptr<const Tensors> Saved(bool stay) {
    const std::lock_guard lock(mutex_);
    return stay ? saved_ : std::exchange(saved_, nullptr);
  }
  // What the backward program takes first. Where autograd does not keep the graph, the program alone has these tensors, so that
  // each dies behind the last node that reads it.
  std::vector<at::Tensor> Kept() {
    const auto saved = Saved(torch::autograd::get_current_graph_task_keep_graph());
    TORCH_CHECK(saved, torch::autograd::ERR_BACKWARD_TWICE);
    std::vector<at::Tensor> kept;
    for (const auto& tensor : saved->checked) kept.push_back(tensor.unpack(getptr()));
    kept.insert(kept.end(), saved->unchecked.begin(), saved->unchecked.end());
    return kept;
  }
  // An output's gradient as the program was made for; zeros for one that nobody has used.
  at::Tensor Laid(size_t i, at::Tensor&& gradient) const {
    const TrainedGraph::Gradient& wanted = graph_->gradients[i];
    if (!gradient.defined()) gradient = input_metadata(i).zeros_like();
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    if (gradient.sizes() == wanted.sizes && gradient.strides() == wanted.strides) return std::move(gradient);
    const at::AutoGradMode no_grad(false);
    return at::empty_strided(wanted.sizes, wanted.strides, gradient.options()).copy_(gradient);
  }
  static void EndsHere(std::vector<at::Tensor>& made, torch::autograd::edge_list&& edges) {
    const auto end = c10::make_intrusive<torch::autograd::Error>(
        "torch.compile with aot_autograd does not currently support double backward", std::move(edges));
    for (at::Tensor& gradient : made) {
      if (!gradient.defined()) continue;
      gradient = gradient.detach();  // it may be an output's gradient, which is the caller's
      torch::autograd::set_history(gradient, end);
    }
  }
  // The Python exception that is set, with what the program tells of it, as C++ throws it.
  python_error Raised() const {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    if (PyObject* told = PyObject_CallOneArg(graph_->told, value)) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(told)), told);
      Py_DECREF(told);
    }
    Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
    python_error error;
    error.persist();
    return error;
  }

  const std::shared_ptr<TrainedGraph> graph_;
  const std::string mode_;
  std::mutex mutex_;                      // never held while the GIL is awaited
  std::shared_ptr<const Tensors> saved_;  // guarded by mutex_; null: autograd has released them
};

inline constexpr const char* kTrainedGraph = "engine_torch.trained_graph";

// trained_graph((forward, backward), inputs: list of bool, outputs: list of bool, (checked, kept), gradients: list of (sizes, strides),
// way, told). GIL held.
inline PyObject* NewTrainedGraph(PyObject*, PyObject* args) {
  auto graph = std::make_shared<TrainedGraph>();
  PyObject *forward, *backward, *inputs, *outputs, *gradients, *way, *told;
  Py_ssize_t checked, kept;
  if (!PyArg_ParseTuple(args, "(OO)O!O!(nn)O!OO", &forward, &backward, &PyList_Type, &inputs, &PyList_Type, &outputs,
                        &checked, &kept, &PyList_Type, &gradients, &way, &told))
    return nullptr;
  graph->forward = ProgramOf(forward), graph->backward = ProgramOf(backward);
  if (!graph->forward || !graph->backward) return nullptr;
  const auto bools = [](PyObject* list, std::vector<bool>& into) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) into.push_back(PyList_GET_ITEM(list, i) == Py_True);
  };
  bools(inputs, graph->takes_gradient), bools(outputs, graph->has_gradient);
  graph->checked = static_cast<size_t>(checked), graph->kept = static_cast<size_t>(kept);
  const auto ints = [](PyObject* tuple, std::vector<int64_t>& into) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
      into.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  };
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(gradients); ++i) {
    PyObject *sizes, *strides;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(gradients, i), "O!O!", &PyTuple_Type, &sizes, &PyTuple_Type, &strides))
      return nullptr;
    auto& gradient = graph->gradients.emplace_back();
    ints(sizes, gradient.sizes), ints(strides, gradient.strides);
  }
  if (graph->forward->inputs.size() != graph->takes_gradient.size() ||
      graph->backward->outputs.size() != graph->takes_gradient.size() ||
      graph->forward->outputs.size() != graph->has_gradient.size() + graph->kept ||
      std::cmp_not_equal(std::ranges::count(graph->has_gradient, true), graph->gradients.size()) ||
      graph->backward->inputs.size() != graph->kept + graph->gradients.size() || graph->checked > graph->kept)
    return PyErr_Format(PyExc_TypeError, "engine.torch: the two programs are not of one graph"), nullptr;
  if (PyErr_Occurred()) return nullptr;
  graph->way = Py_NewRef(way), graph->told = Py_NewRef(told);
  graph->programs = PyTuple_Pack(2, forward, backward);
  return PyCapsule_New(new std::shared_ptr<TrainedGraph>(std::move(graph)), kTrainedGraph, [](PyObject* of) {
    delete static_cast<std::shared_ptr<TrainedGraph>*>(PyCapsule_GetPointer(of, kTrainedGraph));
  });
}

// train(graph, inputs: tuple of tensors, mode, way) -> list of the outputs. `mode`: of the backward pass. Grad mode is on.
inline PyObject* Train(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 || !PyTuple_Check(args[1])) return PyErr_Format(PyExc_TypeError, "train takes 4 arguments"), nullptr;
  const auto* held = static_cast<std::shared_ptr<TrainedGraph>*>(PyCapsule_GetPointer(args[0], kTrainedGraph));
  if (!held) return nullptr;
  const std::shared_ptr<TrainedGraph> graph = *held;
  const char* const mode = PyUnicode_AsUTF8(args[2]);
  Way way;
  if (!mode || !way.Take(args[3])) return nullptr;
  const size_t inputs = graph->takes_gradient.size();
  if (static_cast<size_t>(PyTuple_GET_SIZE(args[1])) != inputs)
    return PyErr_Format(PyExc_TypeError, "engine.torch: %zd inputs, and the graph has %zu", PyTuple_GET_SIZE(args[1]),
                        inputs),
           nullptr;
  const FrameOf frame(*graph->forward);
  torch::autograd::edge_list edges(inputs);
  try {
    for (size_t i = 0; i < inputs; ++i) {
      PyObject* const item = PyTuple_GET_ITEM(args[1], static_cast<Py_ssize_t>(i));
      if (!IsTensor(item)) return PyErr_Format(PyExc_TypeError, "engine.torch: input %zu is no tensor", i), nullptr;
      const at::Tensor& tensor = TensorOf(item);
      frame->Give(i, tensor);
      if (graph->takes_gradient[i]) edges[i] = torch::autograd::impl::gradient_edge(tensor);
    }
    if (!RunAll(*frame, way)) return nullptr;
    std::vector<IValue> outputs;
    std::vector<at::Tensor> kept;
    for (const Arg& output : graph->forward->outputs) {
      IValue value = Made(output, frame->slots);
      if (outputs.size() < graph->has_gradient.size()) {
        // Whatever it is a view of was made in the run, and to the caller it is a tensor of its own; a change of it is one of what
        // the backward pass needs, if that shares its memory. A kernel that had nothing to do may have returned an input.
        if (value.isTensor() && (value.toTensor().is_view() || value.toTensor().requires_grad()))
          value = value.toTensor().tensor_data();
        outputs.push_back(std::move(value));
      } else {
        kept.push_back(std::move(value).toTensor());
      }
    }
    const auto node = c10::make_intrusive<TrainedNode>(graph, mode, std::move(edges));
    for (size_t i = 0; i < outputs.size(); ++i)
      if (graph->has_gradient[i]) torch::autograd::set_history(outputs[i].toTensor(), node);
    node->Keep(std::move(kept));
    PyObject* list = PyList_New(static_cast<Py_ssize_t>(outputs.size()));
    for (size_t i = 0; list && i < outputs.size(); ++i) {
      PyObject* item = ToPython(outputs[i]);
      if (!item) return Py_DECREF(list), nullptr;
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
    }
    return list;
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

}  // namespace engine_torch
