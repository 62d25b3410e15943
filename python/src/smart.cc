// The binding of SmartStep: what engine.smart_stage is made of. Threads, order and the end of data are Python's: the stages
// are those of engine.staged.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bindings.h"
#include "engine/spi/smart_step.h"
#include "run.h"
#include "site.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

struct PySmartStep {
  std::shared_ptr<engine::SmartStep> step;
  std::weak_ptr<EngineState> engine;
};

struct PyItem {
  explicit PyItem(engine::StepItem given) : item(std::move(given)) {}
  PyItem(PyItem&&) = default;
  engine::StepItem item;
};

std::vector<engine::Value> ValuesOf(nb::sequence objects) {
  std::vector<engine::Value> values;
  for (nb::handle object : objects) values.emplace_back(PyRef::Borrow(object.ptr()));
  return values;
}

// True for what the Python callable says so of. Called by producers, without the GIL.
engine::ExceptionFilter FilterOf(nb::handle judge) {
  return [judge = std::make_shared<const PyRef>(PyRef::Borrow(judge.ptr()))](const std::exception_ptr& thrown) {
    const PythonScope python;
    const nb::object error = nb::steal(ToPython(thrown));
    const int said = PyObject_IsTrue(nb::handle(judge->get())(error).ptr());
    return said == 1;
  };
}

PySmartStep Make(const PyEngine& engine, const engine::Graph& graph, const std::vector<uint32_t>& sourced,
                 const std::string& name, size_t capacity, int num_threads, int stream, nb::handle judge, bool on,
                 bool on_cpu, std::vector<uint32_t> targets, nb::handle input_state, int max_levels, int profile_steps,
                 int guard_steps) {
  engine::SmartStageOptions options{
      .stage = {.name = name, .capacity = capacity, .num_threads = num_threads, .stage_subgraph_stream_id = stream},
      .do_smart_stage = on,
      .stage_subgraph_on_cpu = on_cpu,
      .arrays = PythonArrays(engine.state),
      .targets = std::move(targets),
      .max_levels = max_levels,
      .profile_steps = profile_steps,
      .guard_steps = guard_steps};
  for (nb::handle var : input_state) options.input_state.push_back(nb::cast<const PyVar&>(var).var);
  if (!judge.is_none()) options.stage.ignored_exception_types = FilterOf(judge);
  std::vector<engine::ValueId> inputs;
  for (uint32_t index : sourced) inputs.push_back({index});
  return Translated([&] {
    return PySmartStep{
        std::make_shared<engine::SmartStep>(engine.state->engine, graph, std::move(inputs), std::move(options)),
        engine.state};
  });
}

StatePtr Alive(const PySmartStep& self) {
  StatePtr state = self.engine.lock();
  if (!state) RaiseError("ShutdownError", "the engine of the steps is gone");
  return state;
}

// Starts the whole step, or its rest; gives the GIL up only where the call may wait or run nodes.
PyRun Start(const PySmartStep& self, PyItem& item, nb::sequence given, bool rest) {
  const engine::Site site = CallerSite();
  const StatePtr state = Alive(self);
  PyRun out;
  out.engine = self.engine;
  auto values = ValuesOf(given);
  const auto start = [&](bool may_wait) {
    out.run = rest ? self.step->StartRest(item.item, values, {}, site, may_wait)
                   : self.step->StartWhole(item.item, values, {}, site, may_wait);
  };
  Translated([&] {
    const bool here = !state->naive && state->engine.policy() == engine::Policy::kThreaded && !item.item.error;
    if (here) start(false);
    if (!out.run) WithoutGil([&] { start(true); });
  });
  DropDeferred();
  return out;
}

PyRun Profile(const PySmartStep& self, PyItem& item, nb::sequence given, double source_seconds) {
  const engine::Site site = CallerSite();
  const StatePtr state = Alive(self);
  PyRun out;
  out.engine = self.engine;
  auto values = ValuesOf(given);
  Translated([&] { WithoutGil([&] { out.run = self.step->Profile(item.item, values, {}, source_seconds, site); }); });
  DropDeferred();
  return out;
}

void RunLevel(const PySmartStep& self, size_t level, PyItem& item) {
  const auto step = self.step;
  Translated([&] { WithoutGil([&] { step->RunLevel(level, item.item); }); });
  DropDeferred();
}

const char* ModeName(const PySmartStep& self) {
  switch (self.step->mode()) {
    case engine::SmartStep::Mode::kProfile: return "profile";
    case engine::SmartStep::Mode::kWhole: return "whole";
    case engine::SmartStep::Mode::kHalves: return "halves";
    case engine::SmartStep::Mode::kStaged: return "staged";
  }
  return "";
}

nb::dict Report(const PySmartStep& self) {
  const engine::SmartStageReport report = self.step->Report();
  nb::dict out;
  nb::list nodes, boundary;
  for (const auto& node : report.nodes) nodes.append(nb::make_tuple(node.name.c_str(), node.reason.c_str()));
  for (const auto& value : report.boundary) boundary.append(nb::make_tuple(value.name.c_str(), value.bytes));
  out["nodes"] = nodes;
  out["boundary"] = boundary;
#define REPORT(field) out[#field] = report.field
  REPORT(staged);
  REPORT(levels);
  REPORT(stage_seconds);
  REPORT(rest_seconds);
  REPORT(staged_seconds);
  REPORT(whole_seconds);
  REPORT(measured_staged_seconds);
  REPORT(measured_whole_seconds);
  REPORT(decided);
  REPORT(on);
#undef REPORT
  out["text"] = report.text.c_str();
  return out;
}

}  // namespace

void BindSmart(nb::module_& m) {
  nb::class_<PyItem>(m, "StepItem", "What the sources give to one step, on its way.")
      .def(
          "__init__",
          [](PyItem* self, nb::sequence values, uint64_t number) {
            new (self) PyItem(engine::StepItem{.values = ValuesOf(values), .number = number});
          },
          nb::arg("values"), nb::arg("number"),
          nb::sig("def __init__(self, values: Sequence[object], number: int) -> None"))
      .def_prop_ro("number", [](const PyItem& self) { return self.item.number; })
      .def_prop_ro("nbytes", [](const PyItem& self) { return self.item.bytes(); });
  nb::class_<PySmartStep>(m, "SmartStep", "A step cut in two. See engine.smart_stage.")
      .def(
          "__init__",
          [](PySmartStep* self, const PyEngine& engine, const engine::Graph& graph,
             const std::vector<uint32_t>& sourced, const std::string& name, size_t capacity, int num_threads,
             int stream, nb::handle judge, bool on, bool on_cpu, std::vector<uint32_t> targets, nb::handle input_state,
             int max_levels, int profile_steps, int guard_steps) {
            new (self) PySmartStep(Make(engine, graph, sourced, name, capacity, num_threads, stream, judge, on, on_cpu,
                                        std::move(targets), input_state, max_levels, profile_steps, guard_steps));
          },
          nb::arg("engine"), nb::arg("graph"), nb::arg("sourced"), nb::kw_only(), nb::arg("name"), nb::arg("capacity"),
          nb::arg("num_threads"), nb::arg("stream"), nb::arg("judge").none(), nb::arg("on"), nb::arg("on_cpu"),
          nb::arg("targets"), nb::arg("input_state"), nb::arg("max_levels"), nb::arg("profile_steps"),
          nb::arg("guard_steps"),
          nb::sig("def __init__(self, engine: Engine, graph: Graph, sourced: list[int], *, name: str, capacity: int, "
                  "num_threads: int, stream: int, judge: Callable[[BaseException], bool] | None, on: bool, "
                  "on_cpu: bool, targets: list[int], input_state: list[Var], max_levels: int, profile_steps: int, "
                  "guard_steps: int) -> None"))
      .def_prop_ro("mode", &ModeName, "How the next step is to be run: profile, whole, halves or staged.")
      .def_prop_ro("levels", [](const PySmartStep& self) { return self.step->levels(); })
      .def(
          "serial", [](const PySmartStep& self, size_t level) { return self.step->serial(level); }, nb::arg("level"))
      .def("asked", [](const PySmartStep& self) { self.step->Asked(); })
      .def(
          "started",
          [](const PySmartStep& self, const PyRun& run) {
            if (self.step->comparing()) Translated([&] { WithoutGil([&] { self.step->Started(run.run); }); });
          },
          nb::arg("run"))
      .def("run_level", &RunLevel, nb::arg("level"), nb::arg("item"))
      .def("start", &Start, nb::arg("item"), nb::arg("given"), nb::arg("rest"),
           nb::sig("def start(self, item: StepItem, given: Sequence[object], rest: bool) -> Run"))
      .def("profile", &Profile, nb::arg("item"), nb::arg("given"), nb::arg("source_seconds"),
           nb::sig("def profile(self, item: StepItem, given: Sequence[object], source_seconds: float) -> Run"))
      .def("report", &Report, nb::sig("def report(self) -> dict[str, Any]"));
}

}  // namespace engine_python
