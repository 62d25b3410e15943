// OpChain: ops for one device that have their places in the order and are issued together, one after another on one
// thread. A bulk consists of such chains; that is all that the core knows of bulks.
//
// An op of a chain is a member. It is registered like any op, with one more grant to wait for, its start. The chain
// gives that grant: to the first member when the chain is released, to each later one when the member before it has
// been issued (or waits inside its body and lends its worker away). So the edges that a chain adds all point in the
// order in which its owner pushed.
// When a member's turn comes and it still waits for an op outside, the chain waits with it, provided that no other
// member could be ready earlier: each of them comes behind one before it, or names all Vars of the waiting member.
// Otherwise the members that have all other grants stay in the chain, and nothing blocks them any more; each other
// member starts by itself when its last grant comes. So a member waits only for its turn and for what it depends on.
// That matters, because what another member waits for may itself wait for this one, in ways that the engine cannot see
// (a body that calls a Completion, a thread that releases a HeldOp after a wait). The members are looked at twice at
// most, so the cost is proportional to their number.
//
// An open chain must not keep anybody waiting. Whoever registers an op behind a member, except in the same chain, finds
// the chain there (Dependency::NoteHeld) and releases it after the registration. WaitAll, a push that waits for room,
// and shutdown release all chains.
//
// Threads:   one owner appends; any thread may release.
// Ownership: blocks of the Vars' arena, of a size class of their own, so that a stale pointer always leads to a chain.
//            At worst it leads to a block that is in use again, and releases that chain early, which costs a dispatch.
// Order:     `lock` is taken before a tail; under it only what a registration takes is taken.
#pragma once

#include <atomic>
#include <cstdint>

#include "order/op_record.h"

namespace engine::detail {

struct alignas(64) OpChain {
  // Taken by the owner for the time of a registration. acquire/release: guards all fields below. Survives recycling.
  std::atomic<uint32_t> lock{0};
  // Members may be held. Set before the first member takes its place, cleared when the members are released. relaxed: a
  // thread that finds a member at a tail took the tail's lock, and so sees at least the value that was there when the
  // member came.
  std::atomic<bool> open{false};
  uint32_t count = 0;    // members appended since the chain was opened; 0: closed
  uint64_t opening = 0;  // counts openings, so that an owner recognizes its own chain
  // While open: the members, linked by extra.next. After the release: the members that have not started; only the
  // thread that runs the chain uses them.
  OpRecord* last = nullptr;
  // On a cache line of the thread that runs the chain, while others look at `open`.
  alignas(64) OpRecord* first = nullptr;
  // What OthersMayBeReady has found when the first member was blocked. Used by the thread that runs the chain.
  enum : uint8_t { kNotLookedAt, kEachBehindTheOneBefore, kLookedAt } order = kNotLookedAt;
};

// Stands in place of the chain in an op that has left its chain, because the chain's block may be reused. An op that is
// still in the chain is recognized by the chain's own address.
inline constinit OpChain g_let_go;

// One for each HeldOps, so that all chains that may be open are found. It names the chain that its HeldOps opened last.
// The engine keeps it.
struct ChainOwner {
  std::atomic<OpChain*> chain{nullptr};  // written by the pushing thread; release: publishes the chain's block
  uint64_t opening = 0;                  // that of the chain when the owner opened it; used by the pushing thread only
};

inline constexpr uint32_t kChainClass = sizeof(OpChain) / 64;
static_assert(kChainClass != kVarClass);

// Spins, because an owner keeps the lock only for the time of a push.
class ChainLock {
 public:
  explicit ChainLock(OpChain& chain) : chain_(chain) {
    if (chain_.lock.exchange(1, std::memory_order_acquire)) [[unlikely]]
      Spin();
  }
  ~ChainLock() { chain_.lock.store(0, std::memory_order_release); }
  ChainLock(const ChainLock&) = delete;

 private:
  [[gnu::noinline]] void Spin() {
    for (uint32_t round = 0; chain_.lock.exchange(1, std::memory_order_acquire); ++round)
      ProductionEnv::SpinOnLock(round);
  }
  OpChain& chain_;
};

inline bool ProductionEnv::Holds(void* holder) {
  return static_cast<OpChain*>(holder)->open.load(std::memory_order_relaxed);
}

}  // namespace engine::detail
