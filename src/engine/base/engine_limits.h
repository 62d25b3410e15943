// Limits that the data structures of one engine have; docs/limits.md lists all limits.
#pragma once

#include <cstdint>

namespace engine::detail {

inline constexpr uint32_t kMaxPools = 80;
inline constexpr uint32_t kMaxDevices = 8;
inline constexpr uint32_t kMaxLanes = 32;
inline constexpr uint32_t kMaxChannels = 16;

}  // namespace engine::detail
