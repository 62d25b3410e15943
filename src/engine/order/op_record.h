// OpRecord: an op in flight. VarCore: a variable. Both add to the dependency protocol what production needs.
//
// Block of an op: 64-byte header | accesses, 32 bytes each | extras (chain, cancel scope, graph key) | closure.
// An op with four accesses and 56 bytes of closure and extras is 256 bytes.
//
// States: kFree -> kWaiting (registered) -> kReady (queued or about to run) -> kRunning [-> kAsync: the body has
// returned, the completion is pending] [-> kIssued: on a device] -> kFree. A host op behind device work: kReady ->
// kBehindDevice -> kReady. Skipped ops go kReady -> kRunning like any other. The thread that has the op at the moment
// makes the transition; the watchdog only reads the state.
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
struct OpChain;
struct VarPoints;
struct ThreadSlot;

// Pass: what one thread needs for one call into the protocol: its slot, and a list of the ops that became ready.
struct Pass {
  ThreadSlot* slot;
  OpRecord* ready = nullptr;
  OpRecord* last_ready = nullptr;
};

enum class OpState : uint8_t { kFree, kWaiting, kReady, kRunning, kAsync, kBehindDevice, kIssued };

enum class OpKindId : uint8_t;  // op_kind.h

enum OpFlags : uint32_t {
  kAsyncOp = 1 << 0,  // ends when its Completion is called
  kScoped = 1 << 1,   // has a cancel scope, in its extras
  kRunAlways = 1 << 2,
  kInternal = 1 << 3,     // done by its kind, on the thread that grants it
  kOwnWay = 1 << 4,       // run by its kind; it has no body
  kDeferred = 1 << 5,     // its body has asked for a Completion: it ends when that is called
  kHeldBack = 1 << 6,     // pushed by PushHeld: starts when its HeldOp is released
  kOnePinMore = 1 << 7,   // has one more pin: a waiting thread's, or that of a run until all its parts have ended
  kInChain = 1 << 9,      // held by a chain, now or earlier; has an OpChain* in its extras
  kForgotten = 1 << 10,   // this process is a fork's child that goes on inside its body: it must not touch its Vars
  kDeviceOp = 1 << 11,    // issued to a device; its block stays until the op has retired
  kCapturable = 1 << 12,  // on a device, with a GraphKey in its extras
  kAtPush = 1 << 16,      // policy naive or inline: runs on the thread that pushes it
  kRaise = 1 << 17,       // an error is thrown by the push
};

struct OpExtra {
  OpRecord* next = nullptr;  // the next op in a list of ready ops; kDeferred: the CompletionState, a count of it
  const ClosureType* closure = nullptr;
  const char* name = "";
  const char* file = "";
  uint32_t line = 0;
  uint32_t flags = 0;
  uint8_t pool = 0;
  uint8_t level = 0;
  uint8_t size_class = 0;        // 0: lies in its Var's block; kLargeClass and above: large (arena.h)
  uint8_t closure_offset = 0;    // in units of 8 bytes, from the end of the accesses
  uint8_t epoch = 0;             // parity of the WaitAll epoch in which it was pushed
  bool more_behind : 1 = false;  // kInChain: the next member starts when this ends; set by whoever runs the chain
  bool merged : 1 = false;       // kInChain: runs straight after the member before it
  bool replayed : 1 = false;     // kInChain: a device graph, launched with the first of its chain, stands for its body
  uint8_t device = 0;            // kDeviceOp
  uint8_t asked_lane = 0;        // kDeviceOp: a number, Placement::kAnyLane, a channel's, or one of those below
  uint8_t lane = 0;              // kDeviceOp: the lane on which it is
  uint8_t intra_op = 0;          // most threads of its ParallelFor; 0: as its pool's options say
  OpKindId kind{};
  std::atomic<OpState> state;  // not initialised: in a recycled block it is kFree until the op is registered
};

inline constexpr uint8_t kFirstChannelLane = 0x80;
inline constexpr uint8_t kCopyInLane = 0xfe;
inline constexpr uint8_t kCopyOutLane = 0xfd;

struct PusherExtra {
  EngineCore* core = nullptr;
  const char* name = "";
};

struct CompleterExtra {
  std::atomic<ErrorRecord*> poison{nullptr};  // counted; changed by the op that has the write access
  std::atomic<uint32_t> refs{1};              // handles, and 1 for the engine until the deletion has completed
  std::atomic<uint32_t> deleting{0};
  std::atomic<VarPoints*> points{nullptr};  // where device work on the Var stands; null: there was none
  void* tag = nullptr;                      // the program's
};

struct ProductionEnv {
  template <class T>
  using Atomic = std::atomic<T>;
  using Ctx = Pass;
  using OpExtra = detail::OpExtra;
  using PusherExtra = detail::PusherExtra;
  using CompleterExtra = detail::CompleterExtra;
  static constexpr Mutant kMutant = Mutant::kNone;

  // An asynchronous op has one more pin until its body returns, a device op until it has retired.
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
  static void MustRelease(Pass& pass, void* holder);
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

// The flag of a CancelScope. Counted, because an op may outlive the scope's handles.
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
  // Extras, in this order, each present if its flag is set: chain (kInChain), scope (kScoped), graph key (kCapturable).
  OpChain*& chain() { return *reinterpret_cast<OpChain**>(extras()); }
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
  // The deletion is an op like any other. It lies here, so that a deletion needs no memory.
  OpRecord delete_op;
  Access delete_access;
};
static_assert(sizeof(VarCore) <= 256);
inline constexpr uint32_t kVarClass = sizeof(VarCore) / 64;

// relaxed: the result may be a chain that the op has left (op_chain.h).
inline void* ProductionEnv::HolderAtTail(void* op) {
  return std::atomic_ref(static_cast<OpRecord*>(op)->chain()).load(std::memory_order_relaxed);
}

inline VarCore* CoreOf(Protocol::Var* var) { return static_cast<VarCore*>(var); }

}  // namespace engine::detail
