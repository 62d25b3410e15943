// Native: plans whose nodes are C functions of another extension module, which also starts the runs: engine.torch's
// adapter. That module is compiled where it runs, so it shares no C++ type with this one: it gets addresses, and a table
// of functions.
//
// Threads:   nodes run on any thread of the run, without the GIL. Run is called with the GIL, and gives it up.
// Ownership: the other module keeps what its nodes need, and the Plan, for as long as it starts runs.
// Errors:    a node that returns nonzero fails; why is its module's business. What the engine refuses is raised.
#include <nanobind/stl/string.h>

#include <exception>
#include <stdexcept>

#include "bindings.h"
#include "gil.h"
#include "run.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// A node of a run: nonzero fails it. `context`: for ParallelFor.
using NodeFunction = int32_t (*)(void* frame, uint64_t number, void* context);
using PieceFunction = void (*)(void* of, size_t begin, size_t end);

// The one input of such a plan: what the other module keeps of a run.
struct NativeFrame {
  void* address;
};

struct NativeNode {
  NodeFunction function;
  uint64_t number;
  void operator()(engine::NodeContext& context) {
    if (function(context.In<NativeFrame>(0).address, number, &context) != 0)
      throw std::runtime_error("the node failed");
  }
};

// As EngineTable in python/engine/torch/adapter/module.cc.
struct NativeTable {
  int32_t (*run)(const void* plan, void* frame, const char* policy, void* times);
  void (*know_thread)();
  void (*parallel_for)(void* context, size_t n, size_t grain, PieceFunction piece, void* of);
};

// Before a thread's first node: from then on whatever takes the GIL on it, torch's own code too, finds a thread state.
void KnowNodeThread() noexcept {
  if (!Leaving()) KnowThread();
}

int32_t Run(const void* plan, void* frame, const char* policy, void* times) {
  const auto& of = *static_cast<const engine::Plan*>(plan);
  try {
    Translated([&] {
      engine::RunOptions options;
      options.policy = engine::PolicyByName(policy);
      if (times) options.times = {static_cast<engine::NodeTime*>(times), of.graph().nodes().size()};
      WithoutGil([&] {
        engine::Value input(NativeFrame{frame});
        engine::Run run = of.Start({&input, 1}, options, {"engine.torch", 0});
        run.Wait();
      });
    });
    return 0;
  } catch (nb::python_error& error) {
    error.restore();
    return -1;
  }
}

// A node's loop, which as many threads of the run's team share as the node was added with; as NodeContext::ParallelFor without such a number.
void ParallelFor(void* context, size_t n, size_t grain, PieceFunction piece, void* of) {
  static_cast<engine::NodeContext*>(context)->ParallelFor(
      n, grain, [piece, of](size_t begin, size_t end) { piece(of, begin, end); });
}

constexpr NativeTable kTable{&Run, &KnowNodeThread, &ParallelFor};

uint32_t AddNative(engine::Graph& graph, uintptr_t function, uint64_t number, uint32_t frame, const std::string& name,
                   const std::string& file, uint32_t line, int threads) {
  using engine::Name;
  return Translated([&] {
    return graph
        .Add({.name = Name::Intern(name), .inputs = {engine::ValueId{frame}}, .threads = threads},
             NativeNode{reinterpret_cast<NodeFunction>(function), number}, engine::Site::At(Name::Intern(file), line))
        .index;
  });
}

}  // namespace

void BindNative(nb::module_& m) {
  m.def("add_native", &AddNative, nb::arg("graph"), nb::arg("function"), nb::arg("number"), nb::arg("frame"),
        nb::arg("name"), nb::arg("file"), nb::arg("line"), nb::arg("threads") = 0,
        "Adds a node: a C function at an address, called with the frame that a run is given as the value `frame`.\n"
        "`file` and `line`: where errors say that it was recorded. `threads`: of the run's team, as NodeDesc has them. "
        "Returns\n"
        "the node's number.");
  m.def(
      "plan_address", [](const PyPlan& plan) { return reinterpret_cast<uintptr_t>(&plan.plan); }, nb::arg("plan"),
      "The address of a plan, for the table's functions; valid as long as the Plan.");
  m.def(
      "native_table", [] { return reinterpret_cast<uintptr_t>(&kTable); },
      "The address of the functions that another extension module may call.");
}

}  // namespace engine_python
