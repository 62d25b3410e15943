// MXNet on the default engine: the other half is python/mxnet.
#include <dlfcn.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "failure.h"
#include "gil.h"
#include "mxnet/abi.h"
#include "mxnet/failures.h"
#include "mxnet/host.h"
#include "mxnet/library.h"
#include "mxnet/options.h"
#include "options.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// With MXNet's own number of threads; GIL held.
void MakeDefault(nb::handle keywords) {
  PyOptions options;
  try {
    options = OptionsFrom(keywords, engine_mxnet::OptionsFromEnv(), "engine.mxnet.init");
    engine_mxnet::AddPools(options.engine);
  } catch (const engine::Error&) {
    Raise(std::current_exception());
  }
  const bool caller_runs = !engine::UsesWorkers(options.engine.policy);
  StatePtr state = NewState(std::move(options.engine), options.max_pending_bytes);
  state->caller_runs = caller_runs;
  SetDefaultState(std::move(state));
}

// MXNet asks for its engine, on whatever thread.
engine::Engine& EngineForMxnet() {
  PythonScope python;
  try {
    if (!HasDefaultState()) MakeDefault(nb::dict());
    return DefaultState()->engine;
  } catch (nb::python_error& error) {
    throw engine::UsageError(error.what());
  }
}

// In a fork the GIL is held, and ops in Python need it to end.
void WithoutLocks(void (*fn)(void*), void* argument) {
  if (Leaving() || !PyGILState_Check()) return fn(argument);
  WithoutGil([&] { fn(argument); });
}

void Init(nb::kwargs keywords) {
  if (HasDefaultState())
    RaiseError("UsageError",
               "engine.mxnet.init: the default engine is already running; call it before the first use of the engine, "
               "and before mxnet is imported");
  MakeDefault(keywords);
}

// From here on a library that is loaded finds our factories before its own.
void Load() {
  if (const std::string loaded = engine_mxnet::LoadedMxnet(); !loaded.empty())
    RaiseError("UsageError",
               "import engine.mxnet before mxnet: " + loaded + " is loaded already, and keeps its own engine");
  try {
    engine_mxnet::CheckEnv();
  } catch (const engine::Error&) {
    Raise(std::current_exception());
  }
  engine_mxnet::SetHost({&EngineForMxnet, &WithoutLocks});
  if (!dlopen(engine_mxnet::OwnPath(), RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL))
    RaiseError("Error", std::string("engine.mxnet: ") + dlerror());
  if (const std::string other = engine_mxnet::OtherFactories(); !other.empty())
    RaiseError("UsageError", "engine.mxnet: MXNet would take its engine from " + other +
                                 "; preload that library or import engine.mxnet, not both");
}

nb::dict Counts() {
  const auto counts = engine_mxnet::HostLedger().failures.counts();
  nb::dict out;
  out["failed"] = counts.failed;
  out["skipped"] = counts.skipped;
  out["dropped"] = counts.dropped;
  out["unlisted"] = counts.unlisted;
  return out;
}

nb::list Log() {
  nb::list out;
  for (const auto& entry : engine_mxnet::HostLedger().failures.log())
    out.append(nb::make_tuple(entry.op, entry.what, entry.skipped, entry.taken));
  return out;
}

}  // namespace

void BindMxnet(nb::module_& m) {
  m.def("_mxnet_init", &Init, nb::sig("def _mxnet_init(**options: Any) -> None"));
  m.def("_mxnet_load", &Load);
  m.def("_mxnet_active", [] { return engine_mxnet::DropIns() > 0; });
  m.def("_mxnet_counts", &Counts, nb::sig("def _mxnet_counts() -> dict[str, int]"));
  m.def("_mxnet_log", &Log, nb::sig("def _mxnet_log() -> list[tuple[str, str, int, bool]]"));
}

}  // namespace engine_python
