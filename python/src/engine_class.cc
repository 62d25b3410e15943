// The binding of Engine: everything but pushes and Vars.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "failure.h"
#include "gil.h"
#include "options.h"
#include "push.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// Calls fn with the GIL given up, raising in Python what it throws.
template <class F>
void Blocking(F&& fn) {
  try {
    WithoutGil(fn);
  } catch (...) {
    Raise(std::current_exception());
  }
}

const char* NameOf(engine::Policy policy) {
  for (const auto& info : engine::Policies()) {
    if (info.policy == policy) return info.name.data();
  }
  return "?";
}

StatePtr NewFrom(nb::handle keywords) {
  engine::EngineOptions options;
  try {
    options = engine::EngineOptions::FromEnv();
  } catch (...) {
    Raise(std::current_exception());
  }
  options = OptionsFrom(keywords, std::move(options));
  const engine::Policy policy = options.policy;
  const bool raise_at_push = options.policy_options.raise_at_push;
  StatePtr state = NewState(std::move(options));
  state->naive = policy == engine::Policy::kNaive;
  state->policy_name = NameOf(policy);
  state->raise_at_push = raise_at_push;
  return state;
}

nb::tuple PolicyOf(const PyEngine& self) { return nb::make_tuple(self.state->policy_name, self.state->raise_at_push); }

nb::tuple SetPolicy(const PyEngine& self, nb::handle name, bool raise_at_push) {
  nb::tuple previous = PolicyOf(self);
  EngineState& state = *self.state;
  try {
    const engine::Policy policy = engine::PolicyByName(Text(name, "set_policy: name"));
    // Pushes read `naive` under the GIL; while either policy may be in force they must give it up.
    const bool naive = policy == engine::Policy::kNaive;
    if (naive) state.naive = true;
    WithoutGil([&] { state.engine.SetPolicy(policy, {.raise_at_push = raise_at_push}); });
    state.naive = naive;
    state.policy_name = NameOf(policy);
    state.raise_at_push = raise_at_push;
  } catch (const nb::python_error&) {
    throw;
  } catch (...) {
    const std::exception_ptr thrown = std::current_exception();
    state.naive = state.policy_name == "naive";
    Raise(thrown);
  }
  return previous;
}

nb::dict Stats(const PyEngine& self) {
  const engine::EngineStats stats = self.state->engine.stats();
  nb::dict out;
#define ENGINE_STAT(field) out[#field] = stats.field
  ENGINE_STAT(pushed);
  ENGINE_STAT(completed);
  ENGINE_STAT(skipped);
  ENGINE_STAT(inlined);
  ENGINE_STAT(dispatches);
  ENGINE_STAT(stolen);
  ENGINE_STAT(wakeups);
  ENGINE_STAT(sleeps);
  ENGINE_STAT(spare_threads);
  ENGINE_STAT(slab_bytes);
  ENGINE_STAT(slab_allocations);
  ENGINE_STAT(unseen_errors);
  ENGINE_STAT(backpressure_waits);
#undef ENGINE_STAT
  return out;
}

// (Chrome JSON, [(name, lane, begin_ns, end_ns, op, skipped), ...])
nb::tuple StopTrace(const PyEngine& self) {
  std::vector<engine::TraceEvent> events;
  std::string json;
  Blocking([&] {
    events = self.state->engine.StopTrace();
    json = engine::ChromeTraceJson(events);
  });
  nb::list list;
  for (const auto& e : events) list.append(nb::make_tuple(e.name, e.lane, e.begin_ns, e.end_ns, e.op, e.skipped));
  return nb::make_tuple(json, list);
}

std::string DescribePending(const PyEngine& self) {
  std::string text;
  Blocking([&] { text = self.state->engine.DescribePending(); });
  return text;
}

}  // namespace

nb::class_<PyEngine> BindEngine(nb::module_& m) {
  nb::class_<engine::Placement>(m, "Placement", "Which threads run an op: engine.io(), engine.pool(name), copy lanes.")
      .def(
          "__eq__",
          [](const engine::Placement& a, nb::handle other) {
            if (!nb::isinstance<engine::Placement>(other)) return false;
            const auto& b = *nb::inst_ptr<engine::Placement>(other);
            return a.kind == b.kind && a.index == b.index;
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object) -> bool"))
      .def("__hash__", [](const engine::Placement& a) { return static_cast<int>(a.kind) << 16 | a.index; });
  m.def(
      "cpu", [] { return engine::Cpu(); }, "The default CPU pool.");
  m.def(
      "io", [] { return engine::Io(); }, "Threads of their own for work that blocks; never takes a compute worker.");
  m.def("copy_in", &engine::CopyIn, nb::arg("device") = 0, "The ordered copy lane to a device: one thread.");
  m.def("copy_out", &engine::CopyOut, nb::arg("device") = 0, "The ordered copy lane from a device: one thread.");

  nb::class_<PyEngine> cls(m, "Engine", nb::is_weak_referenceable(),
                           "Runs pushed callables, each as soon as its Vars allow. Takes the keywords of engine.init.\n"
                           "Several may coexist; the functions of the module use one that is made on first use.");
  cls.def(
         "__init__", [](PyEngine* self, nb::kwargs options) { new (self) PyEngine{NewFrom(options)}; },
         nb::sig("def __init__(self, **options: Any) -> None"))
      .def(
          "wait_all", [](const PyEngine& self, nb::handle timeout) { return WaitAll(self.state, TimeoutOf(timeout)); },
          nb::arg("timeout") = nb::none(), nb::sig("def wait_all(self, timeout: float | None = None) -> bool"),
          "Waits for every push that returned before; False after `timeout` seconds. Then raises the first error that\n"
          "nobody has seen yet. Refused (UsageError) inside an op. Gives the GIL up; Ctrl-C works.")
      .def(
          "clear_error",
          [](const PyEngine& self, nb::handle var) {
            const PyVar found = VarOf(var, [] { return std::string("clear_error: argument"); });
            const engine::Site site = CallerSite();
            Blocking([&] { self.state->engine.ClearError(found.var, site); });
          },
          nb::arg("var").none(), nb::sig("def clear_error(self, var: VarLike) -> None"),
          "Clears the error of a Var in order, keeping its value and version.")
      .def("set_policy", &SetPolicy, nb::arg("name").none(), nb::kw_only(), nb::arg("raise_at_push") = false,
           nb::sig("def set_policy(self, name: str, *, raise_at_push: bool = False) -> tuple[str, bool]"),
           "\"threaded\": ready ops go to the workers; \"naive\": each op runs inside its push, for debugging, and "
           "with\n"
           "`raise_at_push` raises there too. For pushes from now on; returns the previous (name, raise_at_push).\n"
           "UsageError, listing what there is, for an unknown name.")
      .def_prop_ro("policy", &PolicyOf, nb::sig("def policy(self) -> tuple[str, bool]"), "(name, raise_at_push).")
      .def(
          "stop", [](const PyEngine& self) { Interruptible([state = self.state] { state->engine.Stop(); }); },
          "Workers finish what they are running and end; pushes queue up. May be repeated.")
      .def(
          "start", [](const PyEngine& self) { Blocking([&] { self.state->engine.Start(); }); }, "Goes on after stop().")
      .def(
          "shutdown",
          [](const PyEngine& self) {
            Interruptible([state = self.state] { state->engine.Shutdown(); });
            self.state->shut_down = true;
          },
          "Finishes every op, ends the threads, reports errors that nobody has seen. Later pushes raise UsageError.\n"
          "What still waits for a done() after drain_timeout fails with ShutdownError. Refused inside an op.")
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
          "The placement of a named pool. UsageError, listing the pools there are, for an unknown name.")
      .def_prop_ro("workers", [](const PyEngine& self) { return self.state->engine.workers(); })
      .def("stats", &Stats, nb::sig("def stats(self) -> dict[str, int]"), "Counters since the engine was made.")
      .def("start_trace", [](const PyEngine& self) { Blocking([&] { self.state->engine.StartTrace(); }); })
      .def("stop_trace", &StopTrace,
           nb::sig("def stop_trace(self) -> tuple[str, list[tuple[str, str, int, int, int, bool]]]"),
           "(Chrome trace JSON, [(name, lane, begin_ns, end_ns, op, skipped), ...]).")
      .def("describe_pending", &DescribePending,
           "What is pending and why: blocked Vars, the ops that own them and wait for them, missing completions.")
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

  m.def(
      "default", [] { return PyEngine{DefaultState()}; }, "The engine behind the functions of the module.");
  m.def(
      "policies",
      [] {
        nb::dict out;
        for (const auto& info : engine::Policies())
          out[nb::str(info.name.data(), info.name.size())] = nb::str(info.help.data(), info.help.size());
        return out;
      },
      nb::sig("def policies() -> dict[str, str]"), "The policies that set_policy knows, with their help.");
  m.def(
      "init",
      [](nb::kwargs options) {
        if (HasDefaultState()) {
          RaiseError("UsageError",
                     "init: the default engine is already running; call it before the first use, or "
                     "make an Engine of your own");
        }
        SetDefaultState(NewFrom(options));
      },
      nb::sig("def init(**options: Any) -> None"), "Makes the default engine. See engine.init.");
  return cls;
}

}  // namespace engine_python
