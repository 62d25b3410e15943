// AccessMode: what an op does with a Var that it names.
#pragma once

#include <cstdint>

namespace engine {

// kUpdate looks at the old value, kWrite replaces it; both exclude all other ops on the Var.
enum class AccessMode : uint8_t { kRead, kUpdate, kWrite };

// "reads", "updates" or "writes".
constexpr const char* AccessModeName(AccessMode mode) noexcept {
  return mode == AccessMode::kRead ? "reads" : mode == AccessMode::kUpdate ? "updates" : "writes";
}

}  // namespace engine
