// Options: EngineOptions from keyword arguments.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/engine.h"

namespace engine_python {

// Overrides `base` by `given` (a dict of the keywords of engine.init). TypeError or UsageError naming the keyword and
// what is allowed.
engine::EngineOptions OptionsFrom(nanobind::handle given, engine::EngineOptions base);

}  // namespace engine_python
