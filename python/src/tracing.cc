// The block of engine.trace. engine/tracing.py adds what it reads from the recorded events.
//
// Threads: the GIL guards it all. StartTrace and StopTrace are called with the GIL, because they wait for nobody who needs
//          it. So two threads never begin or end traces of one engine at once.
// Fork:    the child traces nothing. A block that is open there ends without events.
#include "tracing.h"

#include <nanobind/stl/string.h>

#include <map>
#include <string>
#include <utility>

#include "engine/trace.h"
#include "failure.h"
#include "gil.h"
#include "handle.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

struct TraceBlock;

// By engine: the block that traces it. A second one would take the first one's events. Each block has its engine in `open`, so
// the engine lives as long as the block is in here.
std::map<const EngineState*, TraceBlock*>& Running() {
  static auto* const running = new std::map<const EngineState*, TraceBlock*>;
  return *running;
}

// `with engine.trace():`. Python runs signal handlers between the instructions of Python code, and so never between the
// beginning of the trace and that of the block, nor between their ends: Ctrl-C leaves no trace running.
struct TraceBlock {
  TraceBlock(StatePtr engine, bool gives_way) : given(std::move(engine)), yields(gives_way) {}
  TraceBlock(const TraceBlock&) = delete;
  ~TraceBlock() {
    try {
      End();         // the block was never left: somebody called __enter__ alone
    } catch (...) {  // there is no memory for what was recorded, which nobody wants
    }
  }

  void Begin() {
    const StatePtr engine = open ? open : given ? given : DefaultState();
    if (const auto found = Running().find(engine.get()); found != Running().end()) {
      TraceBlock& other = *found->second;
      if (!other.yields) RaiseError("UsageError", "trace: a trace of this engine is already running; end it first");
      other.End();
      other.whole = false;
    }
    Running()[engine.get()] = this;
    open = engine;
    whole = true;
    try {
      engine->engine.StartTrace();
    } catch (...) {
      Running().erase(engine.get());
      open.reset();
      throw;
    }
  }
  // Takes what was recorded, unless that was done already.
  void End() {
    const auto found = Running().find(open.get());
    if (found == Running().end() || found->second != this) return;
    Running().erase(found);
    recorded = open->engine.StopTrace();
  }

  StatePtr given;     // null: the default engine
  bool yields;        // to a trace that begins meanwhile: it ends then, and has what was recorded so far
  StatePtr open;      // the engine, from __enter__ to __exit__
  bool whole = true;  // no other trace has ended it
  engine::Trace recorded;
};

nb::object EnterTrace(TraceBlock& self) {
  try {
    self.Begin();
  } catch (const nb::python_error&) {
    throw;
  } catch (...) {
    Raise(std::current_exception());
  }
  return nb::find(self);
}

void ExitTrace(TraceBlock& self, nb::args) {
  const nb::object object = nb::find(self);
  if (!self.open) RaiseError("UsageError", "trace: this block is not open; enter it with `with`");
  std::string json;
  try {
    self.End();
    self.open.reset();
    const engine::Trace recorded = std::exchange(self.recorded, {});
    WithoutGil([&] { json = engine::ChromeTraceJson(recorded); });
  } catch (...) {
    self.open.reset();
    Raise(std::current_exception());
  }
  object.attr("_ended")(json);
}

}  // namespace

void ForgetTraces() { Running().clear(); }

void BindTracing(nb::module_& m) {
  nb::class_<TraceBlock>(m, "TraceBlock", "What starts and ends a trace. engine.Trace is made of it.")
      .def(
          "__init__",
          [](TraceBlock* self, nb::handle engine, bool yields) {
            new (self) TraceBlock(engine.is_none() ? nullptr : StateOf(engine, "trace"), yields);
          },
          nb::arg("engine").none(), nb::arg("yields"),
          nb::sig("def __init__(self, engine: Engine | None, yields: bool) -> None"))
      .def("__enter__", &EnterTrace, nb::sig("def __enter__(self) -> TraceBlock"))
      .def("__exit__", &ExitTrace, nb::sig("def __exit__(self, *exc: object) -> None"))
      .def_prop_ro("_open", [](const TraceBlock& self) { return self.open != nullptr; })
      .def_prop_ro("_whole", [](const TraceBlock& self) { return self.whole; });
  m.def(
      "_traced", [](nb::handle engine) { return Running().contains(StateOf(engine, "trace").get()); },
      nb::arg("engine").none());
}

}  // namespace engine_python
