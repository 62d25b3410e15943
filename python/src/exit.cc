// Exit: what happens when the interpreter ends, and in the child of a fork.
#include <cstdio>

#include <unistd.h>

#include "await.h"
#include "bindings.h"
#include "failure.h"
#include "gil.h"
#include "site.h"
#include "stage_host.h"
#include "tracing.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// Registered with atexit: shuts every engine down while Python still runs, so that no engine thread asks for the GIL of
// an interpreter that is being taken apart. Ctrl-C during this means that the user does not want to wait: the process
// ends at once, because threads inside a body can be neither joined nor left alone.
void ShutDownAll() {
  if (Leaving()) return;
  for (const StatePtr& state : LiveStates()) {
    try {
      Interruptible([state] { state->engine.Shutdown(); });
      state->shut_down = true;
    } catch (nb::python_error& error) {
      const bool interrupted = error.matches(PyExc_KeyboardInterrupt);
      error.restore();
      PyErr_Print();
      if (interrupted) {
        std::fputs("engine: interrupted while ops were pending; leaving without them\n", stderr);
        std::fflush(nullptr);
        _exit(130);
      }
    }
  }
  CancelStages();  // last, because pending ops may have taken items from them
  Leave();
}

}  // namespace

void BindExit(nb::module_& m) {
  m.def(
      "_configure",
      [](nb::handle errors, nb::handle package_folder, unsigned long main_thread) {
        SetErrorsModule(errors.ptr());
        SetPackageFolder(Text(package_folder, "package_folder"));
        SetMainThread(main_thread);
      },
      nb::sig("def _configure(errors: object, package_folder: str, main_thread: int) -> None"));
  m.def("_shut_down_all", &ShutDownAll);
  m.def(
      "_light_traceback", [](nb::handle traceback) { return nb::steal(LightTraceback(traceback.ptr())); },
      nb::arg("traceback").none(), nb::sig("def _light_traceback(traceback: object) -> Any"));
  m.def("_after_fork_in_child", [] {
    AfterForkInChild();
    ForgetPendingCalls();
    ForgetAsides();
    ForgetProducers();
    ForgetTraces();
  });
}

}  // namespace engine_python
