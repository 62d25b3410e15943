// The extension module engine._core. The package exports its functions, and adds what is easier to write in Python.
#include <nanobind/nanobind.h>

#include "arrays.h"
#include "bindings.h"
#include "body.h"
#include "cancel.h"
#include "engine/engine.h"
#include "policy.h"
#include "push.h"
#include "tracing.h"

NB_MODULE(_core, m) {
  using namespace engine_python;
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(
        PyExc_ImportError,
        "engine: this is a sub-interpreter; the engine's threads serve the main interpreter only, so import and "
        "use engine there");
    throw nanobind::python_error();
  }
  nanobind::set_leak_warnings(false);  // Vars in a program's globals outlive the module; they are no leak
  m.attr("__version__") = engine::Version();
  BindCancel(m);
  BindVar(m);
  auto engine_class = BindEngine(m);
  BindPolicy(m, engine_class);
  BindBody(m);
  BindPush(m, engine_class);
  BindStage(m);
  BindBulk(m, engine_class);
  BindTracing(m);
  BindExtent(m);
  BindMemory(m);
  BindValue(m);
  BindOp(m);
  BindAside(m);
  BindAwait(m);
  BindGraph(m);
  BindReplay(m);
  BindArrays(m);
  BindComm(m);
  BindSmart(m);
  BindNative(m);
  BindMxnet(m);
  BindExit(m);
  BindSignatures(m);
}
