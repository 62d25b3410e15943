// OpRecord: an op in flight; VarCore: a variable. The production side of the dependency protocol.
//
// Block of an op: 64-byte header | accesses, 32 bytes each | extras (chain, cancel scope, graph key) | closure.
// An op with four accesses and 56 bytes of closure and extras is 256 bytes.
//
// States:  kFree -> kWaiting (registered) -> kReady (queued or about to run) -> kRunning [-> kAsync, body over,
//          completion pending] [-> kIssued, on a device] -> kFree. A host op behind device work: kReady -> kBehindDevice
//          -> kReady. Skipped ops go kReady -> kRunning like any other. Transitions are made by the
//          thread that holds the op at that moment; the watchdog only reads them.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>

#include "base/arena.h"
#include "engine/engine.h"
#include "order/dependency.h"

namespace engine::detail {

class EngineCore;
struct ErrorRecord;
struct HeldChain;
struct VarPoints;
struct ThreadSlot;

// A thread's context of one pass through the protocol: its slot, and the ops that became ready, linked by `next`.
struct Pass {
  ThreadSlot* slot;
  OpRecord* ready = nullptr;
  OpRecord* last_ready = nullptr;
};

enum class OpState : uint8_t { kFree, kWaiting, kReady, kRunning, kAsync, kBehindDevice, kIssued };

enum class OpKindId : uint8_t;  // op_kind.h

enum OpFlags : uint32_t {
  kAsyncOp = 1 << 0,  // ends by its Completion
  kScoped = 1 << 1,   // has a cancel scope extra
  kRunAlways = 1 << 2,
  kInternal = 1 << 3,     // done wherever it is granted, by its kind
  kOwnWay = 1 << 4,       // its kind runs it; it has no body
  kOnePinMore = 1 << 7,   // of a waiter, or until all parts of a run have ended
  kInChain = 1 << 9,      // is held, or was, by a chain, a HeldChain extra
  kForgotten = 1 << 10,   // in a fork's child, which its body runs in: its Vars are not its own any more
  kDeviceOp = 1 << 11,    // issued to a device; its block stays until it has retired
  kCapturable = 1 << 12,  // on a device, with a GraphKey extra
  kAtPush = 1 << 16,      // policy naive or inline: runs on its pusher's thread
  kRaise = 1 << 17,       // and throws there
};

struct OpExtra {
  OpRecord* next = nullptr;  // in a list of ready ops
  const ClosureType* closure = nullptr;
  const char* name = "";
  const char* file = "";
  uint32_t line = 0;
  uint32_t flags = 0;
  uint8_t pool = 0;
  uint8_t level = 0;
  uint8_t size_class = 0;        // 0: embedded in its Var; from kLargeClass on: large (arena.h)
  uint8_t closure_offset = 0;    // in 8 bytes, behind the accesses
  uint8_t epoch = 0;             // parity of the WaitAll epoch that it was pushed in
  bool more_behind : 1 = false;  // kInChain: when it ends, the next of its chain starts. Written by who holds it back
  bool merged : 1 = false;       // kInChain: runs straight after the one before it
  bool replayed : 1 = false;     // kInChain: a graph has been launched in place of its body
  uint8_t device = 0;            // kDeviceOp
  uint8_t asked_lane = 0;        // kDeviceOp: a number, Placement::kAnyLane, a channel's, or one of those below
  uint8_t lane = 0;              // kDeviceOp: the lane that it is on
  uint8_t intra_op = 0;          // most threads of its ParallelFor; 0: as many as its pool says
  OpKindId kind{};
  std::atomic<OpState> state;  // not initialised: a recycled block says kFree until it is registered
};

inline constexpr uint8_t kFirstChannelLane = 0x80;
inline constexpr uint8_t kCopyInLane = 0xfe;
inline constexpr uint8_t kCopyOutLane = 0xfd;

struct PusherExtra {
  EngineCore* core = nullptr;
  const char* name = "";
};

struct CompleterExtra {
  std::atomic<ErrorRecord*> poison{nullptr};  // counted; changed by whoever holds the write access
  std::atomic<uint32_t> refs{1};              // handles + 1 for the engine until the deletion has completed
  std::atomic<uint32_t> deleting{0};
  std::atomic<VarPoints*> points{nullptr};  // where device work on it stands; null: there was none
};

struct ProductionEnv {
  template <class T>
  using Atomic = std::atomic<T>;
  using Ctx = Pass;
  using OpExtra = detail::OpExtra;
  using PusherExtra = detail::PusherExtra;
  using CompleterExtra = detail::CompleterExtra;
  static constexpr Mutant kMutant = Mutant::kNone;

  // async: until its body returns; on a device: until it has retired
  static constexpr uint32_t ExtraPins(uint32_t flags) {
    return ((flags & (kAsyncOp | kOnePinMore)) ? 1 : 0) + ((flags & kDeviceOp) ? 1 : 0);
  }
  template <class Op>
  static uint32_t ExtraPins(const Op* op) {
    return ExtraPins(op->extra.flags);
  }
  template <class Op>
  static void* Holder(Op* op) {
    return op->extra.flags & kInChain ? HolderAtTail(op) : nullptr;
  }
  static void* HolderAtTail(void* op);
  template <class Op>
  static bool IsHeld(const Op* op) {
    return op->extra.flags & kInChain;
  }
  static bool Holds(void* holder);
  static void Need(Pass& pass, void* holder);
  template <class Op>
  static void OnReady(Pass& pass, Op* op) {
    AddReady(pass, static_cast<OpRecord*>(op));
  }
  template <class Op>
  static void Recycle(Pass& pass, Op* op) {
    RecycleRecord(pass, static_cast<OpRecord*>(op));
  }
  static void AddReady(Pass& pass, OpRecord* op);
  static void RecycleRecord(Pass& pass, OpRecord* op);
  template <class Group>
  static Group* TakeGroup(Pass& pass) {
    return ::new (TakeGroupBlock(pass)) Group;
  }
  template <class Group>
  static void DropGroup(Pass& pass, Group* group) {
    DropGroupBlock(pass, group);
  }
  static void* TakeGroupBlock(Pass& pass);
  static void DropGroupBlock(Pass& pass, void* group);
  static void SpinOnLock(uint32_t round);
  static void* Scratch(Pass& pass);
  static void Prefetch(const void* line) { PrefetchToWrite(line); }
  template <class Op>
  static void CheckGrant(Op* op, uint32_t n) {
    detail::CheckGrant(static_cast<OpRecord*>(op), n);
  }
  template <class Op>
  static void CheckPins(Op* op, uint32_t n) {
    detail::CheckPins(static_cast<OpRecord*>(op), n);
  }
};

using Protocol = Dependency<ProductionEnv>;
using Access = Protocol::Access;

// Shared with the CancelScope handles; counted, because an op may outlive them.
using ScopePtr = std::shared_ptr<std::atomic<bool>>;

// What an op's header says before the op is registered. Accesses, pins and closure come next.
struct OpHeader {
  const ClosureType* closure = nullptr;
  const char* name = "";
  Site site = {"", 0};
  uint32_t flags = 0;
  OpKindId kind{};
  uint8_t pool = 0;
  uint8_t level = 0;
  uint8_t intra_op = 0;
  size_t size_class = 0;
  size_t closure_at = 0;  // bytes behind the accesses
  bool keeps_version = false;
  bool deletes = false;
};

struct OpRecord : Protocol::Op {
  ENGINE_INLINE void Init(const OpHeader& header) {
    extra.closure = header.closure;
    extra.name = header.name;
    extra.file = header.site.file;
    extra.line = header.site.line;
    extra.flags = header.flags;
    extra.kind = header.kind;
    extra.pool = header.pool;
    extra.level = header.level;
    extra.intra_op = header.intra_op;
    extra.size_class = static_cast<uint8_t>(header.size_class);
    extra.closure_offset = static_cast<uint8_t>(header.closure_at / 8);
    keeps_version = header.keeps_version;
    deletes = header.deletes;
  }
  std::byte* extras() { return reinterpret_cast<std::byte*>(accesses() + n_access); }
  void* closure() { return extras() + size_t{8} * extra.closure_offset; }
  // Extras, in this order, present as the flags say: chain; scope; graph key.
  HeldChain*& chain() { return *reinterpret_cast<HeldChain**>(extras()); }
  ScopePtr& scope() { return *reinterpret_cast<ScopePtr*>(extras() + (extra.flags & kInChain ? sizeof(void*) : 0)); }
  GraphKey& graph() { return *reinterpret_cast<GraphKey*>(extras() + ExtraBytes(extra.flags & ~kCapturable)); }
  static size_t ExtraBytes(uint32_t flags) {
    return (flags & kInChain ? sizeof(void*) : 0) + (flags & kScoped ? sizeof(ScopePtr) : 0) +
           (flags & kCapturable ? sizeof(GraphKey) : 0);
  }
  Name name() const { return Name::FromStatic(extra.name); }
  Site site() const { return {extra.file, extra.line}; }
};
static_assert(sizeof(OpRecord) == 64 && sizeof(Access) == 32);

struct alignas(64) VarCore : Protocol::Var {
  // The deletion is an op like any other, kept here so that it needs no allocation.
  OpRecord delete_op;
  Access delete_access;
};
static_assert(sizeof(VarCore) <= 256);
inline constexpr uint32_t kVarClass = sizeof(VarCore) / 64;

// relaxed: a chain, whichever (held_chains.h).
inline void* ProductionEnv::HolderAtTail(void* op) {
  return std::atomic_ref(static_cast<OpRecord*>(op)->chain()).load(std::memory_order_relaxed);
}

inline VarCore* CoreOf(Protocol::Var* var) { return static_cast<VarCore*>(var); }

}  // namespace engine::detail
