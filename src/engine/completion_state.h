// CompletionState: the shared part of an asynchronous op's Completions, in a recycled 64-byte block.
//
// called: 0 -> 1 once, by whoever calls first (Completion, the last drop, the body's throw, or shutdown). The winner
// settles the op; `op` is not looked at by anybody else, because its block may be recycled from then on.
#pragma once

#include <atomic>

#include "core.h"

namespace engine::detail {

struct alignas(64) CompletionState {
  std::atomic<uint32_t> refs{1};
  std::atomic<uint32_t> called{0};
  EngineCore* core = nullptr;  // counted
  OpRecord* op = nullptr;
  const char* name = "";
  Site site;
};
static_assert(sizeof(CompletionState) == 64);

}  // namespace engine::detail
