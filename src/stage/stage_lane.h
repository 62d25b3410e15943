// Which device lane a stage has.
#pragma once

#include <cstdint>

#include "engine/stage_options.h"

namespace engine::detail {

// Of the device's lanes, the one that stage_subgraph_stream_id `id` stands for; any where it is 0, the main one.
uint8_t LaneOfStage(int id) noexcept;

// On a producer's thread, before its first item: what StageLane gives from here on.
void EnterStageLane(const StageOptions& options);

}  // namespace engine::detail
