// What the dependency protocol (dependency.h) works on: Vars, ops, their accesses, the groups of readers, and the words
// by which they find each other.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/access_mode.h"

// Each step below is a handful of instructions in one hot function; a call would cost as much as the step.
#define ENGINE_INLINE [[gnu::always_inline]] inline

namespace engine::detail {

// Faults that the checker plants one at a time, to show that it would find them.
enum class Mutant {
  kNone,
  kSortedWithoutLocking,  // unlocks each Var before it locks the next
  kLinkBeforePublish,     // tells the predecessor before the new tail is visible
  kDoneBeforeIdle,        // marks the link DONE and then tries tail -> idle, without a pin of the completer's own
  kMissingPin,            // recycles without waiting for a pusher that saw the op
  kMissingCloseBias,      // readers count down from the number that entered, so zero can come before the close
  kDroppedGrant,          // forgets a waiting reader that joined while the group was being granted
  kOrderSwapOnOneVar,     // publishes the last Var before it locks the others
  kForgottenHolder,       // a reader that joins a group does not learn who holds the write before it
  kSettledLate,           // CompleteOne sets `settled` after it has granted the next write
  kTogetherOneByOne,      // registers ops that belong together one after the other
};

template <class Env>
struct DependencyTypes {
  template <class T>
  using Atomic = typename Env::template Atomic<T>;
  using Ctx = typename Env::Ctx;
  struct Op;
  struct Var;

  // The words of a tail and of a link. A tail is 0 (idle), kLocked, Access* [|kHeld] of a writer, or
  // Group*|kGroup[|kOpen][|kHeld]. kOpen: the group was seen granted, so later readers need not look at it. kHeld: the
  // tail leads to held ops, so the next registration must look at their holder.
  static constexpr uintptr_t kLocked = 1;
  static constexpr uintptr_t kGroup = 2;
  static constexpr uintptr_t kOpen = 4;
  static constexpr uintptr_t kHeld = 8;
  static constexpr uintptr_t kBits = 15;
  static constexpr uintptr_t kDone = 1;     // in a writer's link: finished; whoever comes next is granted at once
  static constexpr uintptr_t kGranted = 1;  // in Group::waiters

  // One access: an op, a Var and a mode. 32 bytes, in the op's block.
  struct Access {
    // A writer's: its successor (Op* or Group*|kGroup), or kDone. A reader's: the next waiting reader, then its group.
    Atomic<uintptr_t> link;
    Var* var;
    Op* op;
    uint64_t word;  // version << 16 | place in the caller's list << 2 | mode

    AccessMode mode() const { return static_cast<AccessMode>(word & 3); }
    bool read() const { return mode() == AccessMode::kRead; }
    uint32_t listed() const { return (word >> 2) & 0x3fff; }
    uint64_t version() const { return word >> 16; }
    void set_version(uint64_t v) { word = (v << 16) | (word & 0xffff); }
  };
  static constexpr uint32_t kMaxAccesses = 0x3fff;

  // The readers between two writers; one cache line. Completers count down from 0, and the closer (the next writer)
  // adds how many readers entered. Only after that can the count reach zero, so a group never grants its next writer
  // too early.
  struct alignas(64) Group {
    Atomic<int64_t> count{0};
    Atomic<uintptr_t> waiters{0};   // list of waiting readers' accesses, or kGranted
    Op* successor = nullptr;        // written by the closer before it adds; read by whoever takes the count to zero
    void* holder = nullptr;         // under LOCK: the holder of its readers; kSeveral if they have more than one
    void* holder_before = nullptr;  // under LOCK: the holder of the write for which the group waits
  };
  static inline void* const kSeveral = reinterpret_cast<void*>(1);

  struct alignas(64) Var {
    // The pushers' cache line.
    Atomic<uintptr_t> tail{0};
    Atomic<uint64_t> pushed{0};   // version after all pushed writes; written under LOCK, read by waits without it
    uint64_t entered = 0;         // readers in the group at the tail; under LOCK
    Atomic<uint32_t> deleted{0};  // under LOCK; no access may be registered behind the deletion
    [[no_unique_address]] typename Env::PusherExtra pusher;
    // The completers' cache line.
    alignas(64) Atomic<uint64_t> settled{0};  // the version whose value is in place
    [[no_unique_address]] typename Env::CompleterExtra completer;
  };

  struct alignas(64) Op {
    Atomic<uint32_t> wait;  // grants still missing
    // Who may still look at the block: one for each write (its completer, or a pusher that saw it unfinished), or one
    // if the op writes nothing; and Env::ExtraPins.
    Atomic<uint32_t> pins;
    [[no_unique_address]] typename Env::OpExtra extra;
    uint16_t n_access;
    bool keeps_version;  // its Update accesses make no version (waits to write, error clearing)
    bool deletes;        // ends its Var: no access may be registered behind it

    Access* accesses() { return reinterpret_cast<Access*>(this + 1); }
    const Access* accesses() const { return reinterpret_cast<const Access*>(this + 1); }
  };
};

}  // namespace engine::detail
