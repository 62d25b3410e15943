// Options as the engine uses them: checked, with the defaults filled in. Throws UsageError naming what is allowed.
#pragma once

#include "engine/engine.h"

namespace engine::detail {

EngineOptions CheckedOptions(EngineOptions options);

}  // namespace engine::detail
