// HeldChain: ops for one device whose places in the order are taken, and which are issued together, one after another on
// one thread. What bulk is made of; the core knows no more of it.
//
// A member is registered like any op, with one more grant to wait for, its start, which the chain gives: to the first
// member when the chain is released, to each later one when the one before it has been issued (or, waiting inside its
// body, lends its worker away). So a chain adds edges that point the way in which its owner pushed, and no other.
// When it is a member's turn and the member still waits for an op outside, the chain waits with it if no other member
// could be ready before: if each comes behind one before it, or names all of the waiting one's Vars. Otherwise the members
// that have all other grants stay, and nothing blocks them any more; every other one starts by itself when it is granted
// last. Hence no member waits for anything but what it depends on, and a turn: what another waits for outside may wait for
// the member, in ways that the engine cannot see (a body that calls a Completion, a thread that releases a HeldOp after a
// wait). The members are looked at twice at most, so that this costs by their number.
//
// Nobody may be kept waiting by a chain that is still open. Whoever registers an op behind a member, other than in the
// same chain, finds the chain there (Dependency::NoteHeld) and releases it after its registration. WaitAll, a push
// that waits for room, and shutdown release them all.
//
// Threads:   one owner appends; anybody releases.
// Ownership: blocks of the Vars' arena, of a size of their own, so that a stale pointer always leads to a chain. At
//            worst it releases one early that had been taken anew, which costs a dispatch.
// Order:     `lock`, before a tail; nothing else is taken under it but what a registration takes.
#pragma once

#include <atomic>
#include <cstdint>

#include "order/op_record.h"

namespace engine::detail {

struct alignas(64) HeldChain {
  // Held by its owner for the time of a registration. acquire/release: all that follows. Survives recycling.
  std::atomic<uint32_t> lock{0};
  // Members may be held. Set before the first takes its place, cleared when they are released. relaxed: whoever finds a
  // member at a tail has it from the tail's lock, and sees no older value than that.
  std::atomic<bool> open{false};
  uint32_t count = 0;   // members appended since it was opened; 0: closed
  uint64_t ticket = 0;  // moves with each opening: an owner recognizes its own
  // Open: the members, linked by extra.next. Released: those that have not started, by whoever runs the chain.
  OpRecord* last = nullptr;
  alignas(64) OpRecord* first = nullptr;  // a line of the thread that runs the chain, while others look at `open`
  // What a look at the members found, because the first was blocked; by whoever runs the chain.
  enum : uint8_t { kNotLookedAt, kEachBehindTheOneBefore, kLookedAt } order = kNotLookedAt;
};

// What an op that nobody holds any more says instead of its chain, whose block others may take: those that go on are
// recognized by it as long as the chain has others to start.
inline constinit HeldChain g_let_go;

// One for each HeldOps, so that all chains that may be open are found: the last that it opened. Kept by the engine.
struct HeldOwner {
  std::atomic<HeldChain*> chain{nullptr};  // written by the pushing thread; release: the chain's block
  uint64_t ticket = 0;                     // of that chain when it was opened; the pushing thread's
};

inline constexpr uint32_t kChainClass = sizeof(HeldChain) / 64;
static_assert(kChainClass != kVarClass);

// Spins: an owner appends in the time of a push.
class ChainLock {
 public:
  explicit ChainLock(HeldChain& chain) : chain_(chain) {
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
  HeldChain& chain_;
};

inline bool ProductionEnv::Holds(void* holder) {
  return static_cast<HeldChain*>(holder)->open.load(std::memory_order_relaxed);
}

}  // namespace engine::detail
