// Calls of ops as nodes of a plan.
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "arguments.h"
#include "bindings.h"
#include "body.h"
#include "cancel.h"
#include "failure.h"
#include "memory.h"
#include "op.h"
#include "policy.h"
#include "push.h"
#include "run.h"
#include "site.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

struct NodeArgument {
  enum class Kind { kGiven, kInput, kValue, kNested } kind = Kind::kGiven;
  PyRef object;
  uint32_t input = 0;
};

struct NodeCall {
  OpCorePtr op;
  std::vector<NodeArgument> args;
  PyRef names;
  CarriedContext carried;         // of the recording; each run has a copy
  std::vector<uint32_t> changed;  // inputs that the node changes, which are its outputs behind the others
  std::vector<uint32_t> updated;  // the arguments that the op updates
  std::vector<bool> brought;  // by input: whether a run is given it, so that it is the caller's unless it is a Value
};

// What an input holds. Only an op with run_always finds one that was never made.
PyObject* InputOf(engine::NodeContext& context, size_t input) {
  const PyRef* const held = context.In(input).If<PyRef>();
  return held && *held ? held->get() : Missing();
}

struct NodeBodyOfOp {
  std::shared_ptr<const NodeCall> call;

  void operator()(engine::NodeContext& context) {
    BodyPython python;
    BodyScope scope(&context);
    DropDeferred();
    const NodeCall& node = *call;
    const ContextScope own(node.carried);
    const size_t count = node.args.size();
    References given(count);
    nb::object inputs;
    uint64_t values = 0;
    const auto kept = [&] { values |= uint64_t{1} << (given.size < 63 ? given.size : 63); };
    for (const NodeArgument& arg : node.args) {
      switch (arg.kind) {
        case NodeArgument::Kind::kGiven: given.Add(Py_NewRef(arg.object.get())); break;
        case NodeArgument::Kind::kInput: {
          PyObject* const input = InputOf(context, arg.input);
          if (!node.brought[arg.input] || IsValue(input)) kept();
          given.Add(IsValue(input) ? DataOf(AsValue(input)) : Py_NewRef(input));
          break;
        }
        case NodeArgument::Kind::kValue:
          kept();
          given.Add(DataOf(AsValue(arg.object.get())));
          break;
        case NodeArgument::Kind::kNested:
          if (!inputs.is_valid()) {
            inputs = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(context.inputs())));
            for (size_t i = 0; i < context.inputs(); ++i)
              PyTuple_SET_ITEM(inputs.ptr(), i, Py_NewRef(InputOf(context, i)));
          }
          if (!HasBroughtData(context)) kept();
          given.Add(Filled(arg.object.get(), inputs.ptr()));
      }
    }
    const GivenArguments all{given.all, count, values};
    Stored stored;
    for (const uint32_t at : node.updated) {
      CheckUpdated(*node.op, given.all[at]);
      stored.Watch(all, at);
    }
    const Renoted updated{node};
    nb::object result = stored.Run(*node.op, all, node.names.get());
    References made(node.op->outputs);
    Outputs(*node.op, std::move(result), all, made.all);
    for (size_t i = 0; i < node.op->outputs; ++i) context.Return(i, PyRef::Steal(made.all[i]));
    for (size_t i = 0; i < node.changed.size(); ++i) {
      PyObject* const changed = InputOf(context, node.changed[i]);
      // The op has run; but what comes behind it and needs this must not.
      if (changed == Missing())
        RaiseError("UsageError", "it updates what was never made, because the op before it failed");
      context.Return(node.op->outputs + i, PyRef::Borrow(changed));
    }
    if (python.python.had_it() && !PyFunction_Check(node.op->fn.get())) LetOthersRun();
  }

 private:
  struct Renoted {  // as in op.cc
    const NodeCall& call;
    ~Renoted() {
      for (const uint32_t at : call.updated)
        if (call.args[at].kind == NodeArgument::Kind::kValue) Changed(AsValue(call.args[at].object.get()));
    }
  };
  bool HasBroughtData(engine::NodeContext& context) const {
    for (size_t i = 0; i < context.inputs(); ++i)
      if (call->brought[i] && !IsValue(InputOf(context, i))) return true;
    return false;
  }
};

// _add_op(graph, op, args, names, kinds, inputs, changed, updated, reads, updates, engine, brought) -> (node, first output)
// `brought`: which inputs a run is given.
nb::object AddOp(engine::Graph& graph, nb::handle object, nb::tuple args, nb::handle names, nb::sequence kinds,
                 const std::vector<uint32_t>& inputs, std::vector<uint32_t> changed, std::vector<uint32_t> updated,
                 nb::handle reads, nb::handle updates, nb::handle engine, const std::vector<uint32_t>& brought) {
  const OpCorePtr& op = CoreOfOp(object.ptr());
  const engine::Site site = CallerSite();
  const Where at{"record", op->name, site};
  auto call = std::make_shared<NodeCall>();
  call->op = op;
  call->carried = CarryContext();
  if (!names.is_none()) call->names = PyRef::Borrow(names.ptr());
  for (size_t i = 0; i < args.size(); ++i) {
    NodeArgument arg;
    const int kind = nb::cast<int>(kinds[i]);  // -1: as it is; -2: a Value; -3: holds some; else the number of an input
    arg.kind = kind >= 0    ? NodeArgument::Kind::kInput
               : kind == -2 ? NodeArgument::Kind::kValue
               : kind == -3 ? NodeArgument::Kind::kNested
                            : NodeArgument::Kind::kGiven;
    arg.input = kind >= 0 ? static_cast<uint32_t>(kind) : 0;
    arg.object = PyRef::Borrow(nb::handle(args[i]).ptr());
    call->args.push_back(std::move(arg));
  }
  const auto r = VarsOf(reads, "reads", at), u = VarsOf(updates, "updates", at);
  engine::NodeDesc desc{
      .name = op->name, .outputs = static_cast<uint32_t>(op->outputs + changed.size()), .reads = r, .updates = u};
  call->changed = std::move(changed);
  call->updated = std::move(updated);
  call->brought.resize(inputs.size());
  for (const uint32_t input : brought) call->brought.at(input) = true;
  for (const uint32_t input : inputs) desc.inputs.push_back({input});
  desc.place = PlaceOf(nb::inst_ptr<PyEngine>(engine)->state, op->place.get(), at);
  desc.priority = op->priority;
  desc.run_always = op->run_always;
  desc.graph = GraphKeyOf(op->graph_key.get(), desc.place, at);
  desc.collective = op->collective;
  nb::object scope = ScopeFor(nb::none(), at);
  desc.cancel = scope.is_valid() ? nb::inst_ptr<engine::CancelScope>(scope) : nullptr;
  return Translated([&] {
    const engine::NodeId node = graph.Add(desc, NodeBodyOfOp{std::move(call)}, site);
    return nb::object(nb::make_tuple(node.index, node.first_output));
  });
}
}  // namespace

void BindOpNodes(nb::module_& m) {
  m.def("_add_op", &AddOp, nb::arg("graph"), nb::arg("op"), nb::arg("args"), nb::arg("names").none(), nb::arg("kinds"),
        nb::arg("inputs"), nb::arg("changed"), nb::arg("updated"), nb::arg("reads"), nb::arg("updates"),
        nb::arg("engine"), nb::arg("brought"),
        nb::sig("def _add_op(graph: Graph, op: object, args: tuple[Any, ...], names: tuple[str, ...] | None, "
                "kinds: list[int], inputs: list[int], changed: list[int], updated: list[int], reads: Vars, "
                "updates: Vars, engine: Engine, brought: list[int]) -> tuple[int, int]"));
}

}  // namespace engine_python
