// CompletionState: what the Completions of an asynchronous op share, or the claim of a held op.
//
// `called` changes from 0 to 1 once, by whoever is first: a call of a Completion, the drop of the last one, the throw
// of the body, or a shutdown. The winner settles the asynchronous op, or starts the held one. Nobody else uses `op`,
// because its block may be recycled from then on. A claim has kUnregistered there until its op has its place in the
// order, so that nobody can win it before.
//
// The blocks come from an arena of their own: a stale pointer always leads to a CompletionState, and refs is 0 while
// that is free. So a shutdown can walk over all blocks while handles come and go: it takes a count (TryRetain), and
// then decides by `called`.
//
// Threads:   any.
// Ownership: counted; whoever drops the last count gives the block back (EngineCore::DropCompletion).
// Fork:      a state of the parent does nothing in the child: its op belongs to the parent.
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
  bool held = false;  // a claim: its op waits to be started by it
  uint32_t forks = 0;
  EngineCore* core = nullptr;  // counted
  OpRecord* op = nullptr;
  const char* name = "";
  Site site;
  CompletionState* next = nullptr;  // in the list that a shutdown makes (ForPendingCompletions)

  // False: the state is free, or about to be. acquire: sees all fields. Partner: the release store in NewCompletion.
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
