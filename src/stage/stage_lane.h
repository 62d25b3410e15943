// The device lane of a stage.
#pragma once

#include <cstdint>

#include "engine/stage_options.h"

namespace engine::detail {

// The lane of the device that stage_subgraph_stream_id `id` stands for. 0 is the main one: any lane, as the engine
// chooses.
uint8_t LaneOfStage(int id) noexcept;

// A producer calls it on its own thread, before its first item; StageLane returns that lane there from then on.
void EnterStageLane(const StageOptions& options);

}  // namespace engine::detail
