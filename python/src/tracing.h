// Tracing: the block of engine.trace.
#pragma once

#include <nanobind/nanobind.h>

namespace engine_python {

void BindTracing(nanobind::module_& m);
// In the child of a fork, where no engine is traced.
void ForgetTraces();

}  // namespace engine_python
