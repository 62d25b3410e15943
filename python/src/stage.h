// Stage: the binding of StagingArea. The producers are threads of Python, so that an interpreter that ends treats one which
// is stuck in its source as any daemon thread, with no frame of ours on its stack.
#pragma once

#include <nanobind/nanobind.h>

namespace engine_python {

// At exit, after the engines have ended: cancels every stage and waits a while for producers to leave their sources.
void CancelStages();

void BindStage(nanobind::module_& m);

}  // namespace engine_python
