// The bindings of Graph, Plan and Run: what engine.graph and engine.hybridize are made of.
//
// Threads:   the GIL guards a graph. Start gives the GIL up if nodes may run inside the call, or if the call may wait.
// Ownership: values are Python references, which may die on any thread (gil.h).
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bindings.h"
#include "body.h"
#include "cancel.h"
#include "drops.h"
#include "engine/spi/cost_model.h"
#include "failure.h"
#include "gil.h"
#include "memory.h"
#include "push.h"
#include "run.h"
#include "site.h"
#include "value.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// The shapes of a run's arguments as one number, the same in every process. Arguments without a shape do not count.
uint64_t ShapeOf(nb::sequence inputs) {
  uint64_t shape = 0;
  for (nb::handle input : inputs) {
    nb::object own = nb::getattr(input, "shape", nb::none());
    const Py_hash_t hash = nb::isinstance<nb::tuple>(own) ? PyObject_Hash(own.ptr()) : 0;
    if (hash == -1) ForgetError();  // some things have no hash
    shape = shape * 1000003 + static_cast<uint64_t>(hash);
  }
  return shape;
}

std::pair<uint32_t, uint32_t> Add(engine::Graph& graph, nb::handle fn, const std::vector<uint32_t>& inputs,
                                  uint32_t outputs, nb::handle reads, nb::handle updates, nb::handle name,
                                  nb::handle engine, nb::handle place, nb::handle priority, bool run_always,
                                  nb::handle graph_key, bool collective) {
  const engine::Site site = CallerSite();
  const Where at{"record", OpName(name, fn, {"record", {}, site}), site};
  const auto r = VarsOf(reads, "reads", at), u = VarsOf(updates, "updates", at);
  engine::NodeDesc desc{.name = at.name, .outputs = outputs, .reads = r, .updates = u};
  for (const uint32_t input : inputs) desc.inputs.push_back({input});
  desc.place = PlaceOf(nb::inst_ptr<PyEngine>(engine)->state, place, at);
  desc.priority = PriorityOf(priority, at);
  desc.run_always = run_always;
  desc.graph = GraphKeyOf(graph_key, desc.place, at);
  desc.collective = collective;
  nb::object scope = ScopeFor(nb::none(), at);
  desc.cancel = scope.is_valid() ? nb::inst_ptr<engine::CancelScope>(scope) : nullptr;
  return Translated([&] {
    const engine::NodeId node = graph.Add(desc, NodeBody(fn.ptr(), at.name, outputs), site);
    return std::pair(node.index, node.first_output);
  });
}

thread_local PyObject* innermost = nullptr;  // what the innermost open RecordingBlock was made with, which owns it

// Enters and leaves in C++, because Ctrl-C may come at any call of a Python function, also at that of `__exit__`.
struct RecordingBlock {
  nb::object made_with;
  engine::Graph* graph;
  engine::Graph* outer_graph = nullptr;
  PyObject* outer_recorder = nullptr;
  nb::object outer_scopes = {};  // of whoever records: a run has those of its own start

  void Enter() {
    outer_scopes = ExchangeScopes(nb::tuple());
    outer_graph = std::exchange(recording, graph);
    outer_recorder = std::exchange(innermost, made_with.ptr());
  }
  void Exit() {
    recording = outer_graph;
    innermost = outer_recorder;
    ExchangeScopes(std::move(outer_scopes));
  }
};

bool KeepsGil(const engine::Graph& graph) {
  return std::all_of(graph.nodes().begin(), graph.nodes().end(), [](const engine::Graph::Node& node) {
    return node.place.kind == engine::Placement::Kind::kDefault && !node.async && !node.collective &&
           node.effects.empty();
  });
}

bool Stateless(const engine::Graph& graph) {
  return std::all_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const engine::Graph::Node& node) { return node.effects.empty(); });
}

// A run may be given Values as inputs: it begins behind their writers, and ops that change them later come behind the run.
// It names the Var of such a Value itself where that is one Var, which stands nowhere else in the run: no thread has to wake
// for an op between the Value's and the run. Else an op in front of the run reads the Vars and writes one of the run's own.
// An op behind the run reads them and the run's Var, because nodes behind the last that takes the Value may have views of it.
std::vector<engine::Var> AwaitInputs(const PyPlan& plan, nb::sequence inputs, const StatePtr& state,
                                     engine::Site site) {
  std::vector<engine::Var> ready;
  size_t at = 0;
  for (nb::handle input : inputs) {
    ++at;
    if (!IsValue(input.ptr())) continue;
    std::vector<engine::Var> reads;
    AddVars(input.ptr(), &reads);
    const bool known = std::find(ready.begin(), ready.end(), reads[0]) != ready.end();
    ready.resize(at);
    if (plan.stateless && reads.size() == 1 && !known) {
      ready.back() = std::move(reads[0]);
      continue;
    }
    ready.back() = state->engine.NewVar("argument");
    SubmitBody(
        state, {.name = "argument", .reads = reads, .writes = ready.back()}, [] {}, site);
  }
  if (!ready.empty()) ready.resize(static_cast<size_t>(nb::len(inputs)));
  return ready;
}
void HoldInputs(nb::sequence inputs, const engine::Var& run, const StatePtr& state, engine::Site site) {
  std::vector<engine::Var> reads{run};
  for (nb::handle input : inputs)
    if (IsValue(input.ptr())) AddVars(input.ptr(), &reads);
  SubmitBody(
      state, {.name = "argument", .reads = reads}, [] {}, site);
}

}  // namespace

PyRun StartRun(const PyPlan& self, nb::sequence inputs, const RunArguments& arguments,
               std::vector<engine::Var>* outputs) {
  const engine::Site site = CallerSite();
  const StatePtr state = self.engine.lock();
  if (!state) RaiseNoEngine("the plan");
  PyRun out;
  out.engine = self.engine;
  engine::RunOptions options;
  options.priority = arguments.priority;
  nb::object scope = ScopeFor(arguments.cancel.is_valid() ? arguments.cancel : nb::handle(Py_None),
                              {"start", self.plan.options().name, site});
  options.cancel = scope.is_valid() ? nb::inst_ptr<engine::CancelScope>(scope) : nullptr;
  if (arguments.deadline)
    options.deadline = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                              std::chrono::duration<double>(*arguments.deadline));
  if (arguments.timed) out.times.resize(self.plan.graph().nodes().size());
  options.times = out.times;
  std::vector<engine::Var> ready;
  std::vector<engine::Value> values;
  for (nb::handle input : inputs) values.emplace_back(PyRef::Borrow(input.ptr()));
  Translated([&] {
    if (outputs) options.outputs = *outputs = OutputVars(self.plan.graph(), *state);
    options.inputs = ready = arguments.ready.empty() ? AwaitInputs(self, inputs, state, site) : arguments.ready;
    const PolicyHere block(state);
    if (arguments.policy) options.policy = engine::PolicyByName(*arguments.policy);
    const engine::Policy used = options.policy.value_or(state->engine.policy());
    if (engine::RulesOf(used).measures_plans) options.shape = self.shape = ShapeOf(inputs);
    const bool on_workers = !state->caller_runs && engine::UsesWorkers(used);
    // Outside of bodies a push that runs ops may run those of other threads as well, which may wait for ops that need the GIL.
    const bool here = CurrentBody() && !engine::UsesWorkers(used) && self.keeps_gil && ready.empty();
    if (here) {
      const DropsAtEnd drops;
      out.run = self.plan.TryStart(values, options, site);
    } else if (on_workers) {
      out.run = self.plan.TryStart(values, options, site);
    }
    if (!out.run) {
      const DropsAtEnd drops;
      PushWithoutGil([&] { out.run = self.plan.Start(values, options, site); });
    }
    RaiseInterrupt();
    if (!ready.empty() && arguments.ready.empty()) HoldInputs(inputs, out.run.var(), state, site);
  });
  DropDeferred();
  return out;
}

namespace {

// start, and a Value for each output of the plan.
nb::object Call(const PyPlan& self, nb::sequence inputs, bool timed) {
  std::vector<engine::Var> vars;
  nb::object run = nb::cast(StartRun(self, inputs, {.timed = timed}, &vars));
  nb::object outputs = OutputValues(std::move(vars), run, self.engine);
  return nb::make_tuple(run, outputs);
}

// What the policy cost_model knows, or how long the nodes of `timed` took; times are in seconds.
nb::dict Explain(const PyPlan& self, const PyRun* timed) {
  const engine::Explanation told = Translated([&] {
    return engine::Explain(self.plan, self.shape,
                           timed && timed->run.done() ? std::span<const engine::NodeTime>(timed->times)
                                                      : std::span<const engine::NodeTime>());
  });
  static constexpr const char* kStates[] = {"not used", "waiting", "measuring", "comparing", "scheduled", "went back"};
  nb::dict out;
  const auto list = [&](const char* name, auto&& of) {
    nb::list all;
    for (const auto& node : told.nodes) all.append(of(node));
    out[name] = all;
  };
  using Node = engine::Explanation::Node;
  list("keys", [](const Node& node) { return node.cost.key; });
  list("costs", [](const Node& node) { return node.cost.nanos / 1e9; });
  list("spreads", [](const Node& node) { return node.cost.spread / 1e9; });
  list("samples", [](const Node& node) { return node.cost.samples; });
  list("ranks", [](const Node& node) { return node.rank / 1e9; });
  list("slacks", [](const Node& node) { return node.slack / 1e9; });
  list("batches", [](const Node& node) { return node.batch; });
  list("devices", [](const Node& node) { return node.device; });  // whether the cost is time on a GPU
  out["state"] = kStates[static_cast<int>(told.state)];
  out["said"] = told.said;
  out["path"] = told.path;
  out["workers"] = told.workers;
  const std::pair<const char*, double> times[] = {
      {"work", told.work},         {"critical", told.critical}, {"bound", told.bound}, {"makespan", told.makespan()},
      {"dispatch", told.dispatch}, {"before", told.before},     {"after", told.after}};
  for (const auto& [name, nanos] : times) out[name] = nanos / 1e9;
  out["text"] = told.Text();
  out["dot"] = told.work > 0 ? told.Dot() : self.plan.Dot();
  return out;
}

nb::list Nodes(const PyPlan& self) {
  nb::list out;
  for (const auto& node : self.plan.graph().nodes()) {
    nb::list effects;
    for (const auto& e : node.effects) effects.append(nb::make_tuple(e.var.name(), engine::AccessModeName(e.mode)));
    out.append(
        nb::make_tuple(node.name.c_str(), std::string(node.site.file) + ":" + std::to_string(node.site.line), effects));
  }
  return out;
}

}  // namespace

std::vector<engine::Var> OutputVars(const engine::Graph& graph, EngineState& state) {
  std::vector<engine::Var> vars;
  for (const engine::ValueId value : graph.outputs()) {
    const uint32_t producer = graph.values()[value.index].producer;
    vars.push_back(state.engine.NewVar(producer == UINT32_MAX ? "argument" : graph.nodes()[producer].name.c_str()));
  }
  return vars;
}

nb::object OutputValues(std::vector<engine::Var> vars, nb::handle run, const std::weak_ptr<EngineState>& engine) {
  nb::object all = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(vars.size())));
  for (size_t i = 0; i < vars.size(); ++i) {
    PyObject* made = NewValue(std::move(vars[i]), engine);
    AsValue(made)->run = Py_NewRef(run.ptr());
    AsValue(made)->output = static_cast<uint32_t>(i);
    Noted(AsValue(made));
    PyTuple_SET_ITEM(all.ptr(), i, made);
  }
  return all;
}

void BindGraph(nb::module_& m) {
  nb::class_<engine::Graph>(m, "Graph", "A recorded program. engine.graph makes one from a function.")
      .def(nb::init<>())
      .def(
          "input",
          [](engine::Graph& self, nb::handle name) {
            return self.Input(OpName(name, name, {"input", {}, {}})).index;
          },
          nb::arg("name"), nb::sig("def input(self, name: str) -> int"), "A value that each run is given.")
      .def("add", &Add, nb::arg("fn"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("reads"), nb::arg("updates"),
           nb::kw_only(), nb::arg("name"), nb::arg("engine"), nb::arg("place") = nb::none(), nb::arg("priority") = 0,
           nb::arg("run_always") = false, nb::arg("graph_key") = nb::none(), nb::arg("collective") = false,
           nb::sig("def add(self, fn: Callable[..., object], inputs: list[int], outputs: int, reads: Vars, "
                   "updates: Vars, *, name: str, engine: Engine, place: Placement | str | None = None, "
                   "priority: int = 0, run_always: bool = False, graph_key: GraphKey | None = None, "
                   "collective: bool = False) -> tuple[int, int]"),
           "Adds a node: fn(*input values) -> a tuple of `outputs` values. Returns (node, first output).")
      .def(
          "order",
          [](engine::Graph& self, uint32_t before, uint32_t after) {
            Translated([&] { self.Order({before, 0, 0}, {after, 0, 0}); });
          },
          nb::arg("before"), nb::arg("after"), "Node `before` ends before node `after` starts.")
      .def(
          "output", [](engine::Graph& self, uint32_t value) { Translated([&] { self.Output({value}); }); },
          nb::arg("value"), "Makes a value an output of a run.")
      .def_prop_ro(
          "size", [](const engine::Graph& self) { return self.nodes().size(); }, "How many nodes it has.")
      .def(
          "compile",
          [](const engine::Graph& self, const PyEngine& engine, nb::handle name, bool static_alloc, bool static_shape) {
            engine::PlanOptions options{.name = OpName(name, name, {"compile", {}, {}}),
                                        .static_alloc = static_alloc,
                                        .static_shape = static_shape};
            return Translated([&] {
              return PyPlan{self.Compile(engine.state->engine, options), engine.state, KeepsGil(self), Stateless(self)};
            });
          },
          nb::arg("engine"), nb::kw_only(), nb::arg("name") = "plan", nb::arg("static_alloc") = false,
          nb::arg("static_shape") = false,
          nb::sig("def compile(self, engine: Engine, *, name: str = 'plan', static_alloc: bool = False, "
                  "static_shape: bool = False) -> Plan"));

  nb::class_<RecordingBlock>(m, "RecordingBlock",
                             "For `with`: this thread's pushes and calls of ops are recorded in a graph.")
      .def(
          "__init__",
          [](RecordingBlock* self, nb::object recorder, engine::Graph& graph) {
            ::new (self) RecordingBlock{std::move(recorder), &graph};
          },
          nb::arg("recorder"), nb::arg("graph"), nb::keep_alive<1, 3>(),
          nb::sig("def __init__(self, recorder: object, graph: Graph) -> None"))
      .def("__enter__", &RecordingBlock::Enter, nb::sig("def __enter__(self) -> None"))
      .def(
          "__exit__", [](RecordingBlock& self, nb::args) { self.Exit(); },
          nb::sig("def __exit__(self, *exc: object) -> None"));

  m.def(
      "recorder", [] { return innermost ? nb::borrow(innermost) : nb::none(); }, nb::sig("def recorder() -> Any"),
      "What this thread's open RecordingBlock was made with; None: nothing is recorded.");

  m.def(
      "is_recording", [] { return recording != nullptr && !CurrentBody(); },
      "Whether this thread is recording a function.");

  nb::class_<PyPlan>(m, "Plan", "A graph that was made ready to run, any number of times, also concurrently.")
      .def("_call", &Call, nb::arg("inputs"), nb::arg("timed") = false,
           nb::sig("def _call(self, inputs: Sequence[object], timed: bool = False) -> tuple[Run, tuple[Any, ...]]"),
           "Starts a run and returns it, and a Value for each output, which is there as soon as its node has settled.")
      .def(
          "start",
          [](const PyPlan& self, nb::sequence inputs, std::optional<std::string> policy, std::optional<int> priority,
             nb::handle cancel, std::optional<double> deadline, bool timed) {
            return StartRun(self, inputs, {std::move(policy), priority, cancel, deadline, timed});
          },
          nb::arg("inputs") = nb::make_tuple(), nb::kw_only(), nb::arg("policy") = nb::none(),
          nb::arg("priority") = nb::none(), nb::arg("cancel") = nb::none(), nb::arg("deadline") = nb::none(),
          nb::arg("timed") = false,
          nb::sig("def start(self, inputs: Sequence[object] = (), *, policy: str | None = None, priority: int | None "
                  "= None, "
                  "cancel: CancelScope | None = None, deadline: float | None = None, timed: bool = False) -> Run"),
          "Starts a run and returns at once. Nodes that have not begun `deadline` seconds from now are skipped.\n"
          "`timed`: afterwards Run.times says when each node ran.")
      .def("__repr__",
           [](const PyPlan& self) {
             return std::string("<engine.Plan '") + self.plan.options().name.c_str() +
                    "': " + std::to_string(self.plan.graph().nodes().size()) + " nodes>";
           })
      .def_prop_ro(
          "name", [](const PyPlan& self) { return std::string(self.plan.options().name.c_str()); },
          "What traces and messages call it.")
      .def_prop_ro(
          "edges",
          [](const PyPlan& self) {
            std::vector<std::pair<uint32_t, uint32_t>> edges;
            for (const auto& e : self.plan.graph().Edges()) edges.emplace_back(e.from, e.to);
            return edges;
          },
          nb::sig("def edges(self) -> list[tuple[int, int]]"), "Dependencies between nodes, by number.")
      .def_prop_ro("nodes", &Nodes, nb::sig("def nodes(self) -> list[tuple[str, str, list[tuple[str, str]]]]"),
                   "(name, where it was recorded, [(Var, access mode)]) of each node.")
      .def_prop_ro(
          "tasks",
          [](const PyPlan& self) {
            std::vector<std::vector<uint32_t>> tasks;
            for (const auto& task : self.plan.tasks()) tasks.push_back(task.nodes);
            return tasks;
          },
          nb::sig("def tasks(self) -> list[list[int]]"),
          "The nodes of each task, which run one after the other; in topological order.")
      .def("explain", &Explain, nb::arg("run").none() = nb::none(),
           nb::sig("def explain(self, run: Run | None = None) -> dict[str, Any]"),
           "What the policy cost_model knows of the shapes that ran last, or how long the nodes of a timed run\n"
           "took. engine.explain shows it.")
      .def(
          "save_costs",
          [](const PyPlan& self, nb::handle path) {
            const std::string file = Text(nb::str(path), "save_costs: path");
            Translated([&] { self.plan.cost_model()->Save(file); });
          },
          nb::arg("path"), nb::sig("def save_costs(self, path: object) -> None"),
          "Writes the costs that were measured under cost_model to a text file.")
      .def(
          "load_costs",
          [](const PyPlan& self, nb::handle path) {
            const std::string file = Text(nb::str(path), "load_costs: path");
            Translated([&] { self.plan.cost_model()->Load(file); });
          },
          nb::arg("path"), nb::sig("def load_costs(self, path: object) -> None"),
          "Reads a file that save_costs wrote, so that runs under cost_model need no window. UsageError, with\n"
          "the line, if the file is broken.")
      .def(
          "remeasure", [](const PyPlan& self) { self.plan.cost_model()->Remeasure(); },
          "Forgets the costs that were measured under cost_model. The window opens again, counted from now.")
      .def(
          "describe", [](const PyPlan& self) { return self.plan.Describe(); },
          "The plan as text, one line for each task.")
      .def(
          "dot", [](const PyPlan& self) { return self.plan.Dot(); }, "The graph in Graphviz's language.");

  nb::class_<PyRun>(m, "Run", nb::is_weak_referenceable(), "A run in flight, and its outputs.")
      .def_prop_ro(
          "done", [](const PyRun& self) { return self.run.done(); }, "Whether it has ended.")
      .def_prop_ro(
          "var",
          [](const PyRun& self) {
            return PyVar{self.run.var(), self.engine};
          },
          // Without its Run the Var would be that of the next run that gets the frame.
          nb::for_getter(nb::keep_alive<0, 1>()), nb::for_getter(nb::sig("def var(self) -> Var")),
          "The Var that the run writes when it ends. It keeps the run, and so what that has returned.")
      .def(
          "output",
          [](PyRun& self, size_t index) {
            if (!self.run.done()) WaitVar({self.run.var(), self.engine}, TimeoutOf(nb::none()));  // gives the GIL up
            const engine::Site site = CallerSite();
            return Translated([&] { return nb::borrow(self.run.Output<PyRef>(index, site).get()); });
          },
          nb::arg("index"), nb::sig("def output(self, index: int) -> Any"), "An output, once the run has ended.")
      .def_prop_ro(
          "times",
          [](const PyRun& self) {
            std::vector<std::tuple<double, double, int>> out;
            if (self.run.done())
              for (const auto& t : self.times)
                out.emplace_back(static_cast<double>(t.begin) / 1e9, static_cast<double>(t.end) / 1e9, t.worker);
            return out;
          },
          nb::sig("def times(self) -> list[tuple[float, float, int]]"),
          "(begin, end, worker) of each node, in seconds of one clock. Empty unless the run was started `timed`\n"
          "and has ended.");
}

}  // namespace engine_python
