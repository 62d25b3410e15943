// Push: engine.push and engine.push_async, for the default engine and for any.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/op.h"
#include "handle.h"
#include "site.h"

namespace engine_python {

// None, a Placement, "io" or the name of a pool.
engine::Placement PlaceOf(const StatePtr& state, nanobind::handle place, const Where& at);

void BindPush(nanobind::module_& m, nanobind::class_<PyEngine>& cls);

}  // namespace engine_python
