// The binding of SmartStage. Special to Python: an item is the arguments of a function, which is recorded with the
// first item.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>

#include "arrays.h"
#include "bindings.h"
#include "engine/smart_stage.h"
#include "policy.h"
#include "push.h"
#include "run.h"
#include "site.h"
#include "stage_host.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

std::vector<engine::Value> ValuesOf(nb::handle objects) {
  std::vector<engine::Value> values;
  for (nb::handle object : objects) values.emplace_back(PyRef::Borrow(object.ptr()));
  return values;
}

// `pull` returns the arguments of the next step as a list.
engine::StepPull PullOf(nb::handle pull) {
  return [pull = std::make_shared<const PyRef>(PyRef::Borrow(pull.ptr()))](std::vector<engine::Value>* values) {
    try {
      *values = ValuesOf(nb::steal(CallSource(*pull)));
      return true;
    } catch (const PyFailure& failure) {
      if (PyErr_GivenExceptionMatches(failure.get(), PyExc_StopIteration)) return false;
      if (OnMainThread() && PyErr_GivenExceptionMatches(failure.get(), PyExc_KeyboardInterrupt))
        throw PyGivenUp(failure);
      throw;
    }
  };
}

class PySmartStage {
 public:
  PySmartStage(const PyEngine& engine, nb::handle pull, nb::handle closed, const nb::dict& stage, const nb::dict& own)
      : engine_(engine.state), host_(PythonHost::Make(nb::find(engine))) {
    engine::SmartStageOptions options{.stage = StageOptionsOf(stage, host_),
                                      .do_smart_stage = nb::cast<std::optional<bool>>(own["do_smart_stage"]),
                                      .stage_subgraph_on_cpu = nb::cast<bool>(own["stage_subgraph_on_cpu"]),
                                      .arrays = PythonArrays(engine.state),
                                      .max_levels = nb::cast<int>(own["max_levels"]),
                                      .profile_steps = nb::cast<int>(own["profile_steps"]),
                                      .guard_steps = nb::cast<int>(own["guard_steps"])};
    if (!closed.is_none()) options.stage.closed_exception_types = FilterOf(closed);
    const Where at{"smart_stage", KeptName(options.stage.name), CallerSite()};
    options.input_state = VarsOf(own["input_state"], "input_state", at);
    const PolicyHere policy(engine.state);  // the policy says whether steps are cut
    steps_ = std::make_unique<engine::SmartStage>(engine.state->engine, PullOf(pull), std::move(options));
    host_->cancel = [this] { steps_->Cancel(); };
  }
  ~PySmartStage() { host_->cancel = {}; }

  // record() -> (graph, how many inputs the items give, marked nodes)
  bool Record(nb::handle record) {
    return steps_->Record([&] {
      const nb::object made = record();
      graph_ = nb::cast<const engine::Graph&>(made[0]);
      engine::RecordedStep step{.graph = nb::cast<const engine::Graph&>(made[0]),
                                .targets = nb::cast<std::vector<uint32_t>>(made[2])};
      for (uint32_t input = 0; input < nb::cast<uint32_t>(made[1]); ++input) step.sourced.push_back({input});
      return step;
    });
  }
  nb::object Next(nb::handle given) {
    PyRun out;
    out.engine = engine_;
    auto values = ValuesOf(given);
    engine::RunOptions run_options;
    std::vector<engine::Var> vars;
    if (graph_) {
      const StatePtr state = engine_.lock();
      if (!state) RaiseNoEngine("smart stage '" + steps_->name() + "'");
      run_options.outputs = vars = OutputVars(*graph_, *state);
    }
    const StatePtr alive = engine_.lock();
    std::optional<PolicyHere> policy;
    if (alive) policy.emplace(alive);
    out.run = steps_->Next(values, run_options, CallerSite());
    policy.reset();
    DropDeferred();
    if (!out.run) return nb::none();
    nb::object run = nb::cast(std::move(out));
    return OutputValues(std::move(vars), run, engine_);
  }
  nb::dict Stats() const {
    const engine::SmartStageStats stats = steps_->stats();
    nb::dict out;
    out["steps"] = stats.steps;
    out["position"] = stats.position;
    out["read"] = stats.read;
    out["skipped"] = stats.skipped;
    out["on"] = stats.on;
    out["stage"] = stats.on ? StatsOf(stats.stage) : nb::dict();
    return out;
  }
  const engine::SmartStage& operator*() const { return *steps_; }
  void Cancel() { steps_->Cancel(); }
  std::string Label() const { return "smart stage '" + steps_->name() + "': "; }

 private:
  const std::weak_ptr<EngineState> engine_;  // the host keeps the engine alive
  const std::shared_ptr<PythonHost> host_;
  std::unique_ptr<engine::SmartStage> steps_;
  std::optional<engine::Graph> graph_;  // of the step, once it was recorded
};

template <class F>
auto Of(const PySmartStage& self, F&& fn) {
  return Raising([&] { return self.Label(); }, fn);
}

nb::dict Report(const engine::SmartStageReport& report) {
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
  REPORT(gain);
  REPORT(gain_error);
  REPORT(comparisons);
  REPORT(decided);
  REPORT(sure);
  REPORT(on);
#undef REPORT
  out["text"] = report.text.c_str();
  return out;
}

}  // namespace

void BindSmart(nb::module_& m) {
  nb::class_<PySmartStage>(m, "SmartStage", "What engine.data.smart_stage makes: see there.")
      .def(
          "__init__",
          [](PySmartStage* self, const PyEngine& engine, nb::object pull, nb::object closed, const nb::dict& stage,
             const nb::dict& own) {
            Raising([] { return std::string(); }, [&] { new (self) PySmartStage(engine, pull, closed, stage, own); });
          },
          nb::arg("engine"), nb::arg("pull"), nb::arg("closed").none(), nb::arg("stage"), nb::arg("own"),
          nb::sig(
              "def __init__(self, engine: Engine, pull: Callable[[], list[object]], closed: tuple[type[BaseException], "
              "...] | None, stage: dict[str, Any], own: dict[str, Any]) -> None"))
      .def(
          "cancel", [](PySmartStage& self) { Of(self, [&] { self.Cancel(); }); },
          "Ends now: a thread that waits for a step gets CancelledError, and items that were read ahead are\n"
          "dropped. May be repeated.")
      .def(
          "stats", [](const PySmartStage& self) { return Of(self, [&] { return self.Stats(); }); },
          nb::sig("def stats(self) -> dict[str, Any]"),
          "Counters: steps, position, read, skipped, on. `stage`: the counters of the last level, while steps\n"
          "are staged.")
      .def_prop_ro(
          "report", [](const PySmartStage& self) { return Report((*self).Report()); },
          nb::sig("def report(self) -> dict[str, Any]"),
          "What was decided: nodes with the reasons why they are not staged, boundary, predicted and measured seconds.")
      .def_prop_ro(
          "name", [](const PySmartStage& self) { return (*self).name(); },
          "The name that errors and the names of its threads use.")
      .def(
          "_record",
          [](PySmartStage& self, nb::object record) { return Of(self, [&] { return self.Record(record); }); },
          nb::arg("record"), nb::sig("def _record(self, record: Callable[[], tuple[Graph, int, list[int]]]) -> bool"),
          "Reads the first item and records the step with it, unless that was done already. False: the data has\n"
          "ended.")
      .def(
          "_next", [](PySmartStage& self, nb::object given) { return Of(self, [&] { return self.Next(given); }); },
          nb::arg("given"), nb::sig("def _next(self, given: Sequence[object]) -> tuple[Any, ...] | None"),
          "Starts the next step, and returns its outputs as Values; None at the end of the data. Waits; Ctrl-C "
          "interrupts it.");
}

}  // namespace engine_python
