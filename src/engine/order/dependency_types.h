// What the dependency protocol (dependency.h) works on: Vars, ops, their accesses, the groups of readers, and the words by
// which they find each other.
#pragma once

#include <cstddef>
#include <cstdint>

// The steps below are each a handful of instructions in one hot function; a call costs as much as the step.
#define ENGINE_INLINE [[gnu::always_inline]] inline

namespace engine::detail {

enum class Mode : uint8_t { kRead, kUpdate, kWrite };

// Faults that the checker plants one by one, to show that it would see them.
enum class Mutant {
  kNone,
  kSortedWithoutHolding,  // unlock each Var before locking the next
  kLinkBeforePublish,     // tell the predecessor before the new tail is visible
  kDoneBeforeIdle,        // mark the link DONE, then try tail -> idle, without a pin of the completer's own
  kMissingPin,            // recycle without waiting for a pusher that saw us
  kMissingCloseBias,      // readers count from the entered ones, so zero can come before the close
  kDroppedGrant,          // forget a waiting reader that joined while the group was being granted
  kOrderSwapOnOneVar,     // publish the last Var before locking the others
  kForgottenHolder,       // a reader that joins a group does not learn who holds the write before it
  kSettledLate,           // CompleteOne tells waits of the version after it has let the next write go
};

template <class Env>
struct DependencyTypes {
  template <class T>
  using Atomic = typename Env::template Atomic<T>;
  using Ctx = typename Env::Ctx;
  struct Op;
  struct Var;

  // Tail and link words. Tail: 0 idle | kLocked | Access* (a writer) [| kHeld] | Group* | kGroup [| kOpen] [| kHeld].
  // kOpen: the group was seen granted, so that later readers need not look at it. kHeld: there is a holder to look at.
  static constexpr uintptr_t kLocked = 1;
  static constexpr uintptr_t kGroup = 2;
  static constexpr uintptr_t kOpen = 4;
  static constexpr uintptr_t kHeld = 8;
  static constexpr uintptr_t kBits = 15;
  static constexpr uintptr_t kDone = 1;     // in a writer's link: finished, whoever comes is granted at once
  static constexpr uintptr_t kGranted = 1;  // in Group::waiters

  // One (op, Var, mode), 32 bytes, embedded in the op's block.
  struct Access {
    // Writer: successor (Op* or Group*|kGroup) or kDone; reader: next waiter, then group.
    Atomic<uintptr_t> link;
    Var* var;
    Op* op;
    uint64_t word;  // version << 16 | place in the caller's listing << 2 | mode

    Mode mode() const { return static_cast<Mode>(word & 3); }
    bool read() const { return mode() == Mode::kRead; }
    uint32_t listed() const { return (word >> 2) & 0x3fff; }
    uint64_t version() const { return word >> 16; }
    void set_version(uint64_t v) { word = (v << 16) | (word & 0xffff); }
  };
  static constexpr uint32_t kMaxAccesses = 0x3fff;

  // The readers between two writers, one line. Completers count down from 0; the closer adds how many entered:
  // only then can the count meet zero, so a group never hands out its write too early.
  struct alignas(64) Group {
    Atomic<int64_t> count{0};
    Atomic<uintptr_t> waiters{0};   // list of waiting readers' accesses, or kGranted
    Op* successor = nullptr;        // written by the closer before its add, read by whoever meets zero
    void* holder = nullptr;         // under LOCK: of its readers; kSeveral if they have more than one
    void* holder_before = nullptr;  // under LOCK: of the write that it waits for
  };
  static inline void* const kSeveral = reinterpret_cast<void*>(1);

  struct alignas(64) Var {
    // Pushers' line.
    Atomic<uintptr_t> tail{0};
    Atomic<uint64_t> pushed{0};   // version after all pushed writes; written under LOCK, read by waits
    uint64_t entered = 0;         // readers in the open group; under LOCK
    Atomic<uint32_t> deleted{0};  // under LOCK; nothing may come behind the deletion
    [[no_unique_address]] typename Env::PusherExtra pusher;
    // Completers' line.
    alignas(64) Atomic<uint64_t> settled{0};  // version whose value is there
    [[no_unique_address]] typename Env::CompleterExtra completer;
  };

  struct alignas(64) Op {
    Atomic<uint32_t> wait;  // grants still missing
    Atomic<uint32_t> pins;  // who may still look at the block: one a write (its completer, or a pusher that saw it
                            // unfinished), or one if it writes nothing; and Env::ExtraPins
    [[no_unique_address]] typename Env::OpExtra extra;
    uint16_t n_access;
    bool keeps_version;  // takes Update accesses without making a version (waits to write, error clearing)
    bool deletes;        // ends its Var: nothing may come behind it

    Access* accesses() { return reinterpret_cast<Access*>(this + 1); }
    const Access* accesses() const { return reinterpret_cast<const Access*>(this + 1); }
  };
};

}  // namespace engine::detail
