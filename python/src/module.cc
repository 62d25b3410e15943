// The extension module engine._core. The package exports its functions, and adds what is easier to write in Python.
#include <nanobind/nanobind.h>

#include "arrays.h"
#include "bindings.h"
#include "body.h"
#include "cancel.h"
#include "engine/engine.h"
#include "push.h"

NB_MODULE(_core, m) {
  using namespace engine_python;
  nanobind::set_leak_warnings(false);  // Vars in a program's globals outlive the module; they are no leak
  m.attr("__version__") = engine::Version();
  BindCancel(m);
  BindVar(m);
  auto engine_class = BindEngine(m);
  BindBody(m);
  BindPush(m, engine_class);
  BindStage(m);
  BindBulk(engine_class);
  BindGraph(m);
  BindArrays(m);
  BindComm(m);
  BindSmart(m);
  BindNative(m);
  BindMxnet(m);
  BindExit(m);
}
