// Device lanes of stages. Number 0, the main one, is any lane, as the engine chooses; the others are streams that the
// engine gives to nobody else.

#include "engine/engine.h"
#include "engine/stage_options.h"
#include "stage_lane.h"

namespace engine {
namespace {

constexpr int kLanes = 8;           // besides the main one
constexpr uint8_t kFirstLane = 16;  // lanes of the device from here on are for stages; streams_per_device counts from 0

thread_local Placement t_place;

}  // namespace

int StageLanes(const Engine* engine, int device) noexcept {
  if (!engine) return 1;
  try {
    static_cast<void>(engine->device(device));
  } catch (...) {
    return 1;
  }
  return 1 + kLanes;
}

Placement StageLane() noexcept { return t_place; }

uint8_t detail::LaneOfStage(int id) noexcept {
  return id == 0 ? Placement::kAnyLane : static_cast<uint8_t>(kFirstLane + id - 1);
}

void detail::EnterStageLane(const StageOptions& options) {
  if (!options.engine || StageLanes(options.engine, options.device) == 1) return;
  const auto device = static_cast<uint16_t>(options.device);
  t_place = Gpu(device, LaneOfStage(options.stage_subgraph_stream_id));
}

}  // namespace engine
