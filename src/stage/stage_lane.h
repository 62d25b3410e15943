// Which device lane the stage on this thread has.
#pragma once

#include "engine/stage_options.h"

namespace engine::detail {

// On a producer's thread, before its first item: what StageLane gives from here on.
void EnterStageLane(const StageOptions& options);

}  // namespace engine::detail
