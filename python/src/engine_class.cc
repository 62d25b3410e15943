// The binding of Engine, without pushes and Vars.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "bindings.h"
#include "failure.h"
#include "gil.h"
#include "options.h"
#include "policy.h"
#include "push.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// Calls fn without the GIL, and raises in Python what it throws.
template <class F>
void Blocking(F&& fn) {
  try {
    WithoutGil(fn);
  } catch (...) {
    Raise(std::current_exception());
  }
}

// The policy's name and the parameters that it takes.
nb::tuple TupleOf(const engine::PolicyChoice& choice) {
  const engine::PolicyInfo& info = engine::Policies()[static_cast<size_t>(choice.policy)];
  nb::dict parameters;
  for (const engine::PolicyParameter& taken : info.parameters) {
#define ENGINE_PUT_PARAMETER(type, key, ...) \
  if (taken.name == #key) parameters[#key] = choice.options.key;
    ENGINE_POLICY_PARAMETERS(ENGINE_PUT_PARAMETER)
#undef ENGINE_PUT_PARAMETER
  }
  return nb::make_tuple(info.name, parameters);
}

StatePtr NewFrom(nb::handle keywords, const char* call) {
  engine::EngineOptions options;
  try {
    options = engine::EngineOptions::FromEnv();
  } catch (...) {
    Raise(std::current_exception());
  }
  PyOptions given = OptionsFrom(keywords, std::move(options), call);
  const engine::Policy policy = given.engine.policy;
  StatePtr state = NewState(std::move(given.engine), given.max_pending_bytes);
  state->caller_runs = !engine::UsesWorkers(policy);
  return state;
}

nb::tuple PolicyOf(const PyEngine& self) {
  const PolicyHere policy(self.state);
  return TupleOf(self.state->engine.policy_choice());
}

nb::tuple SetPolicy(const PyEngine& self, nb::handle name, nb::kwargs parameters) {
  const engine::PolicyChoice choice = ChoiceFrom(name, parameters);
  nb::tuple previous = PolicyOf(self);
  EngineState& state = *self.state;
  // Pushes read `caller_runs` under the GIL. While either policy may be in force, they must give the GIL up.
  state.caller_runs = true;
  Blocking([&] { state.engine.SetPolicy(choice); });
  state.caller_runs = !engine::UsesWorkers(choice.policy);
  return previous;
}

#define ENGINE_STAT(name, what) out[#name] = stats.name;
nb::dict Stats(const PyEngine& self) {
  const engine::EngineStats stats = self.state->engine.stats();
  nb::dict out;
  ENGINE_COUNTERS(ENGINE_STAT)
  return out;
}

nb::dict DeviceStatsOf(const PyEngine& self) {
  const engine::DeviceStats stats = self.state->engine.device_stats();
  nb::dict out;
  ENGINE_DEVICE_COUNTERS(ENGINE_STAT)
  return out;
}
#undef ENGINE_STAT

engine::Placement GpuPlace(int device, std::optional<int> lane) {
  if (device < 0 || device > UINT16_MAX || (lane && (*lane < 0 || *lane >= engine::Placement::kAnyLane)))
    RaiseError("UsageError", "gpu: device " + std::to_string(device) +
                                 (lane ? ", lane " + std::to_string(*lane) : std::string()) +
                                 "; both count from 0, devices to " + std::to_string(UINT16_MAX) + ", lanes to " +
                                 std::to_string(engine::Placement::kAnyLane - 1));
  return engine::Gpu(static_cast<uint16_t>(device), lane ? static_cast<uint8_t>(*lane) : engine::Placement::kAnyLane);
}

std::string StopTrace(const PyEngine& self) {
  std::string json;
  Blocking([&] { json = engine::ChromeTraceJson(self.state->engine.StopTrace()); });
  return json;
}

std::string DescribePending(const PyEngine& self) {
  std::string text;
  Blocking([&] { text = self.state->engine.DescribePending(); });
  return text;
}

// A placement as a program writes it; a named pool by its number, because only its engine knows the name.
std::string TextOf(const engine::Placement& place) {
  using PlaceKind = engine::Placement::Kind;
  const std::string index = std::to_string(place.index);
  switch (place.kind) {
    case PlaceKind::kDefault: return "engine.cpu()";
    case PlaceKind::kPool: return "<engine.Placement: pool " + index + ">";
    case PlaceKind::kIo: return "engine.io()";
    case PlaceKind::kCopyIn: return "engine.copy_in(" + index + ")";
    case PlaceKind::kCopyOut: return "engine.copy_out(" + index + ")";
    case PlaceKind::kGpu: {
      const bool any = place.lane == engine::Placement::kAnyLane;
      return "engine.gpu(" + index + (any ? ")" : ", lane=" + std::to_string(place.lane) + ")");
    }
    case PlaceKind::kCommunicator: return "<engine.Placement: communicator " + index + ">";
  }
  return "<engine.Placement>";
}

std::string TextOf(const PyEngine& self) {
  const EngineState& state = *self.state;
  if (state.shut_down) return "<engine.Engine: shut down>";
  const engine::EngineStats stats = state.engine.stats();
  const std::string policy = engine::Policies()[static_cast<size_t>(state.engine.policy())].name;
  return "<engine.Engine: " + std::to_string(state.engine.workers()) + " workers, " + policy + ", " +
         std::to_string(stats.pushed - std::min(stats.completed, stats.pushed)) + " ops pending>";
}

}  // namespace

nb::class_<PyEngine> BindEngine(nb::module_& m) {
  nb::class_<engine::Placement>(m, "Placement",
                                "Which threads run an op, or which device: engine.io(), pool(name), gpu(i).")
      .def(
          "__eq__",
          [](const engine::Placement& a, nb::handle other) {
            if (!nb::isinstance<engine::Placement>(other)) return false;
            const auto& b = *nb::inst_ptr<engine::Placement>(other);
            return a.kind == b.kind && a.index == b.index && a.lane == b.lane;
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object) -> bool"))
      .def("__hash__",
           [](const engine::Placement& a) { return static_cast<int>(a.kind) << 24 | a.lane << 16 | a.index; })
      .def("__repr__", [](const engine::Placement& place) { return TextOf(place); });
  m.def(
      "cpu", [] { return engine::Cpu(); }, "The default CPU pool.");
  m.def(
      "io", [] { return engine::Io(); },
      "The I/O pool: threads for work that blocks, so that such work never occupies a compute worker.");
  m.def("copy_in", &engine::CopyIn, nb::arg("device") = 0,
        "Copies to a device: one thread and one stream, in push order.");
  m.def("copy_out", &engine::CopyOut, nb::arg("device") = 0,
        "Copies from a device: one thread and one stream, in push order.");

  m.def("gpu", &GpuPlace, nb::arg("device") = 0, nb::arg("lane") = nb::none(),
        nb::sig("def gpu(device: int = 0, lane: int | None = None) -> Placement"),
        "Device `device` of the engine. The op's body issues work on engine.cuda_stream() and does not wait\n"
        "for it. `lane`: the number of a stream; without it the op goes to the stream of an op that it\n"
        "follows, or to the stream with the least to do.");

  nb::class_<PyEngine> cls(
      m, "Engine", nb::is_weak_referenceable(),
      "Runs pushed callables, each as soon as its Vars allow. Takes the keywords of engine.init. Several\n"
      "engines may coexist; the functions of the module use one that is made on first use.");
  cls.def(
         "__init__", [](PyEngine* self, nb::kwargs options) { new (self) PyEngine{NewFrom(options, "Engine")}; },
         nb::sig("def __init__(self, *" ENGINE_PY_KEYWORDS ") -> None"))
      .def(
          "wait_all", [](const PyEngine& self, nb::handle timeout) { return WaitAll(self.state, TimeoutOf(timeout)); },
          nb::arg("timeout") = nb::none(), nb::sig("def wait_all(self, timeout: float | None = None) -> bool"),
          "Waits until every push that returned before this call has ended; False after `timeout` seconds. Then\n"
          "raises the first error that nobody has seen yet. UsageError inside an op. Gives the GIL up; Ctrl-C\n"
          "interrupts it.")
      .def(
          "clear_error",
          [](const PyEngine& self, nb::handle var) {
            const PyVar found = VarOf(var, [] { return std::string("clear_error: argument"); });
            const engine::Site site = CallerSite();
            RefuseWhileRecording("clear_error", site, "no run would do that; clear it outside of the function");
            Blocking([&] { self.state->engine.ClearError(found.var, site); });
          },
          nb::arg("var").none(), nb::sig("def clear_error(self, var: VarLike) -> None"),
          "Clears the error of a Var, in order, and keeps the value and the version.")
      .def("set_policy", &SetPolicy, nb::arg("name").none(), nb::arg("parameters"),
           nb::sig("def set_policy(self, name: str, **parameters: bool | int) -> tuple[str, dict[str, bool | int]]"),
           "Sets the policy of all later pushes that are under no `policy` block: see engine.policies(). Returns\n"
           "the policy before. UsageError, which says what is allowed, for an unknown name or parameter or a\n"
           "value out of range.")
      .def_prop_ro("policy", &PolicyOf, nb::sig("def policy(self) -> tuple[str, dict[str, bool | int]]"),
                   "(name, parameters) of the policy that a push of this thread would get.")
      .def(
          "stop", [](const PyEngine& self) { Interruptible([state = self.state] { state->engine.Stop(); }); },
          "Stops the workers: they finish the ops that they run, and end. Pushes queue up. May be repeated.")
      .def(
          "start", [](const PyEngine& self) { Blocking([&] { self.state->engine.Start(); }); },
          "Makes the workers again after stop().")
      .def(
          "shutdown",
          [](const PyEngine& self) {
            Interruptible([state = self.state] { state->engine.Shutdown(); });
            self.state->shut_down = true;
          },
          "Ends every op and the threads, and reports errors that nobody has seen. Later pushes raise\n"
          "UsageError. An op whose done() has not come after drain_timeout fails with ShutdownError. UsageError\n"
          "inside an op.")
      .def(
          "pool",
          [](const PyEngine& self, nb::handle name) {
            try {
              return self.state->engine.Pool(Text(name, "pool: name"));
            } catch (const engine::Error&) {
              Raise(std::current_exception());
            }
          },
          nb::arg("name").none(), nb::sig("def pool(self, name: str) -> Placement"),
          "The placement of a named pool. The UsageError for an unknown name lists the pools.")
      .def("__repr__", [](const PyEngine& self) { return TextOf(self); })
      .def_prop_rw(
          "max_pending_bytes", [](const PyEngine& self) { return self.state->bytes->most(); },
          [](const PyEngine& self, uint64_t most) { self.state->bytes->SetMost(most); },
          nb::for_getter(nb::sig("def max_pending_bytes(self) -> int")),
          nb::for_setter(nb::sig("def max_pending_bytes(self, most: int, /) -> None")),
          "Soft bound, in bytes, on what pending calls of ops keep: their arguments and their results, each of which\n"
          "counts as large as the last result of its op. 0: no bound. A call from outside of ops waits while they\n"
          "keep more and counted calls run. Not counted: calls made while this is 0, engine.push, recorded functions.")
      .def_prop_ro(
          "pending_bytes", [](const PyEngine& self) { return self.state->bytes->pending(); },
          "How many bytes the calls that max_pending_bytes counts keep now.")
      .def_prop_ro(
          "workers", [](const PyEngine& self) { return self.state->engine.workers(); },
          "How many threads the default pool has.")
      .def("stats", &Stats, nb::sig("def stats(self) -> dict[str, int]"), "Counters since the engine was made.")
      .def("device_stats", &DeviceStatsOf, nb::sig("def device_stats(self) -> dict[str, int]"),
           "Counters of the calls that the engine itself made to its devices; bodies make more.")
      .def(
          "start_trace", [](const PyEngine& self) { Blocking([&] { self.state->engine.StartTrace(); }); },
          "Starts a trace. engine.trace is the block that does this and writes the file.")
      .def("stop_trace", &StopTrace,
           "Ends the trace and returns it, as JSON in Chrome's format; without events if none was running.")
      .def("describe_pending", &DescribePending,
           "Says what is pending and why: blocked Vars, the ops that own them and wait for them, missing\n"
           "completions.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Engine"))
      .def(
          "__exit__", [](nb::object self, nb::args) { self.attr("shutdown")(); },
          nb::sig("def __exit__(self, *exc: object) -> None"))
      .def(
          "__eq__",
          [](const PyEngine& self, nb::handle other) {
            return nb::isinstance<PyEngine>(other) && nb::inst_ptr<PyEngine>(other)->state == self.state;
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object) -> bool"))
      .def("__hash__", [](const PyEngine& self) {
        return static_cast<Py_hash_t>(reinterpret_cast<uintptr_t>(self.state.get()) >> 4);
      });

  m.def("default_workers", &engine::EngineOptions::DefaultWorkers, "How many workers -1 stands for.");
  m.def(
      "default", [] { return PyEngine{DefaultState()}; }, "The engine behind the functions of the module.");
  m.def(
      "policies",
      [] {
        nb::dict out;
        for (const auto& info : engine::Policies()) {
          nb::dict parameters, policy;
          for (const auto& p : info.parameters) parameters[p.name.c_str()] = p.type + ": " + p.help;
          policy["help"] = info.help;
          policy["parameters"] = parameters;
          out[info.name.c_str()] = policy;
        }
        return out;
      },
      nb::sig("def policies() -> dict[str, dict[str, Any]]"),
      "The policies that set_policy knows: their help, and their parameters with types, ranges and defaults.");
  m.def(
      "init",
      [](nb::kwargs options) {
        if (HasDefaultState()) {
          RaiseError("UsageError",
                     "init: the default engine is already running; call it before the first use, or "
                     "make an Engine of your own");
        }
        SetDefaultState(NewFrom(options, "init"));
      },
      nb::sig("def init(*" ENGINE_PY_KEYWORDS ") -> None"), "Makes the default engine. See engine.init.");
  return cls;
}

}  // namespace engine_python
