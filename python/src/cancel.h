// Cancel: the scope that a push belongs to.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/engine.h"
#include "site.h"

namespace engine_python {

// `given`, or the innermost scope that this context has entered; null where there is none. TypeError otherwise.
nanobind::object ScopeFor(nanobind::handle given, const Where& at);

void BindCancel(nanobind::module_& m);

}  // namespace engine_python
