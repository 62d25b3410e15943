// Priority: which values are allowed, and the level of the ready queues for each.
//
// Threads: pure functions. Errors: UsageError, which names the op and says what is allowed.
#pragma once

#include <cstdint>

#include "engine/op.h"

namespace engine::detail {

inline constexpr int kLevels = kMaxPriority - kMinPriority + 1;
inline constexpr int kNormalLevel = kMaxPriority;  // level 0 is the most urgent

[[noreturn, gnu::cold]] void RefusePriority(int priority, const char* op, Site site);

// Called first by a push, an operator, a node or a run, before anything is taken for it.
inline void CheckPriority(int priority, const Name& op, Site site) {
  // Unsigned, so that one comparison checks both bounds and nothing overflows.
  if (static_cast<unsigned>(priority) - static_cast<unsigned>(kMinPriority) >= unsigned{kLevels}) [[unlikely]]
    RefusePriority(priority, op.c_str(), site);
}

constexpr uint8_t LevelOf(int checked_priority) { return static_cast<uint8_t>(kMaxPriority - checked_priority); }

}  // namespace engine::detail
