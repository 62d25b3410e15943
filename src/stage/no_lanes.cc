// Device lanes of stages where there is no device: the main lane alone.
#include "engine/stage_options.h"

namespace engine {

int StageLanes() noexcept { return 1; }

}  // namespace engine
