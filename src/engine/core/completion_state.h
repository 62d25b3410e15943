// CompletionState: the shared part of an asynchronous op's Completions, or the claim of a held op.
//
// called: 0 -> 1 once, by whoever calls first (Completion, the last drop, the body's throw, or shutdown). The winner
// settles the op, or starts the held one; `op` is not looked at by anybody else, because its block may be recycled from then
// on. A claim says kUnregistered until its op has taken its place: nobody can win it before.
//
// Blocks of an arena of their own: a stale pointer always leads to a CompletionState, with refs = 0 while it is free. So
// shutdown can walk them while handles come and go: it counts itself in (TryRetain), and then decides by `called`.
//
// In a fork's child, a state that comes from the parent is inert: its op is the parent's alone, and its block stays where it
// is.
//
// Ownership: counted; the last one gives the block back (EngineCore::DropCompletion).
#pragma once

#include <atomic>

#include "base/fork.h"
#include "core/core.h"

namespace engine::detail {

struct alignas(64) CompletionState {
  static constexpr uint32_t kUnregistered = 1;

  std::atomic<uint32_t> refs{0};  // survives recycling
  std::atomic<uint32_t> called{0};
  // release: the end of the body. Partner: the acquire in FailPendingCompletions, which starts nothing beside it.
  std::atomic<bool> returned{false};
  bool held = false;  // a claim: its op waits for it to start
  uint32_t forks = 0;
  EngineCore* core = nullptr;  // counted
  OpRecord* op = nullptr;
  const char* name = "";
  Site site;
  CompletionState* next = nullptr;  // in the list of a shutdown that looks for what is left

  // False: it is free, or about to be. acquire: what was written before the count. Partner: the release store in NewCompletion.
  bool TryRetain() {
    uint32_t n = refs.load(std::memory_order_acquire);
    while (n != 0)
      if (refs.compare_exchange_weak(n, n + 1, std::memory_order_acquire)) return true;
    return false;
  }
  bool Inherited() const noexcept { return forks != Forks(); }
};
static_assert(sizeof(CompletionState) == 64);
inline constexpr uint32_t kCompletionClass = 1;

}  // namespace engine::detail
