// Op: a function, the Vars that it reads and writes, where it runs, and what it is called.
//
// `OpDesc` is written in the call that pushes it. Modes:
//   reads    the op sees the value; readers between two writers run together;
//   updates  the op sees the value and changes it, alone;
//   writes   the op replaces the value without looking at it, alone; a good write clears a Var's error.
// A Var named several times counts once, in its strongest role; Read or Update together with Write is Update.
//
// Threads:   a body runs on a worker of its placement's pool; bodies of ops that do not conflict run together.
// Ownership: the closure is moved into the engine and destroyed on the thread that ran or skipped it.
// Errors:    whatever a body throws, of any type, poisons what the op would have written (see error.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <string_view>
#include <type_traits>

#include "engine/var.h"

namespace engine {

class CancelScope;
class Completion;
class Device;
class DeviceMemory;
class Engine;
class NodeContext;
template <class Tag>
struct DeviceHandle;
using Stream = DeviceHandle<struct StreamTag>;

namespace detail {
class EngineCore;
struct HeldOwner;
struct OpRecord;
}  // namespace detail

// Name: text with static lifetime, so that a push copies a pointer. Literals convert by themselves; text made
// at run time is interned once (`Name::Intern`) and kept for the life of the process.
class Name {
 public:
  constexpr Name() noexcept = default;
  consteval Name(const char* literal) : text_(literal) {}  // NOLINT: implicit by design
  static Name Intern(std::string_view text);
  constexpr const char* c_str() const noexcept { return text_; }

 private:
  friend struct Site;
  friend struct detail::OpRecord;
  static constexpr Name FromStatic(const char* text) noexcept {
    Name n;
    n.text_ = text;
    return n;
  }
  const char* text_ = "";
};

// Site: where an op was pushed. `Site site = std::source_location::current()` as a default argument is the caller's line.
struct Site {
  const char* file = "";
  uint32_t line = 0;
  constexpr Site() noexcept = default;
  constexpr Site(const char* file_name, uint32_t line_number) noexcept : file(file_name), line(line_number) {}
  constexpr Site(const std::source_location& at) noexcept : file(at.file_name()), line(at.line()) {}  // NOLINT
  static Site At(Name file, uint32_t line) noexcept { return {file.c_str(), line}; }
};

// Role: what an op does with a Var that it names.
enum class Role : uint8_t { kRead, kUpdate, kWrite };

// Placement: which threads run an op, and on what. Named pools: Engine::Pool("name").
struct Placement {
  enum class Kind : uint8_t { kDefault, kPool, kIo, kCopyIn, kCopyOut, kGpu, kCommunicator };
  Kind kind = Kind::kDefault;
  uint16_t index = 0;       // of the pool, of the device, or of the communicator (comm.h)
  uint8_t lane = kAnyLane;  // kGpu: a lane of its own, or whichever suits
  static constexpr uint8_t kAnyLane = 0xff;
  friend bool operator==(const Placement&, const Placement&) noexcept = default;
};
// The default CPU pool.
constexpr Placement Cpu() noexcept { return {}; }
// Threads of their own for work that blocks; never takes a compute worker.
constexpr Placement Io() noexcept { return {Placement::Kind::kIo, 0}; }
// Ordered copy lanes, one thread and one stream each, made on first use: to and from device `device`. Where the engine
// has no such device they are threads all the same.
constexpr Placement CopyIn(uint16_t device = 0) noexcept { return {Placement::Kind::kCopyIn, device}; }
constexpr Placement CopyOut(uint16_t device = 0) noexcept { return {Placement::Kind::kCopyOut, device}; }
// A device: the body issues work on ctx.stream() and does not wait for it. The op is over for device ops when it is
// issued, for the host when the device has done it. `lane` asks for a stream by number (stages); otherwise
// the op goes where its producer went, or to the stream with the least to do (EngineOptions::streams_per_device).
constexpr Placement Gpu(uint16_t device = 0, uint8_t lane = Placement::kAnyLane) noexcept {
  return {Placement::Kind::kGpu, device, lane};
}

// What a device op is, for bulks that come again: members of equal kinds in equal order are one structure, which the
// engine launches as a graph once it has seen it often enough. From then on the body runs only when params change.
// So the body must issue the same calls for the same kind and params, and do nothing else. Copy lanes launch no graphs.
struct GraphKey {
  uint64_t kind = 0;      // operator, launch shape, types: everything but pointers and scalars. 0: never in a graph
  uint64_t params = 0;    // of pointers and scalars: a hash, or a version that moves with them
  bool one_call = false;  // the body issues exactly one kernel or copy: it can be given new params alone
};

struct OpDesc {
  Name name = {};
  VarSet reads = {};
  VarSet updates = {};
  VarSet writes = {};
  Placement place = {};
  int priority = 0;               // higher first among ready ops; kMinPriority to kMaxPriority
  bool run_always = false;        // runs even when an input is poisoned, and when cancelled (MXNet: kNoSkip)
  CancelScope* cancel = nullptr;  // none: the calling thread's current scope, if it has one
  GraphKey graph = {};            // device ops only
};
inline constexpr int kMinPriority = -2;
inline constexpr int kMaxPriority = 2;

// What a body may ask while it runs. Valid inside the body only.
class RunContext {
 public:
  // Runs body(begin, end) over [0, n) in pieces of at least `grain` on the pool's intra-op arena (oneTBB).
  // Isolated: no other op ever runs on this stack. The first exception of a piece is rethrown here. A piece is inside the
  // op, whichever thread runs it: it may push, under the op's scopes; it may not wait for ops of its engine (UsageError). In the child
  // of a process that forked after its first ParallelFor, oneTBB has lost its threads: the calling thread runs everything.
  void ParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body);
  // Index of the worker in its pool; -1 where a caller's thread drives the engine.
  int worker() const noexcept { return worker_; }
  const char* name() const noexcept;
  // The version of `var` that this op sees (Read), or makes (Update, Write). Throws UsageError if the op
  // does not name `var`.
  uint64_t version(VarRef var) const;
  // Why this op would have been skipped if it were not run_always: an OpError, as a wait throws it, or CancelledError. Null:
  // for no reason. Of an op, not of a node of a plan.
  std::exception_ptr error() const;
  // True once the op's cancel scope was cancelled: long bodies may look at it and stop early.
  bool cancelled() const noexcept;

  // On a device (Gpu, CopyIn, CopyOut); elsewhere they throw UsageError.
  // Where the op's work goes; all that it must come behind is in front of it already.
  Stream stream() const;
  Device& device() const;
  // Memory of the device, or of the host where the device reaches it, from the engine's pools (device_memory.h).
  // Usable by this op at once, and by ops behind it.
  DeviceMemory Allocate(size_t bytes);
  DeviceMemory AllocatePinned(size_t bytes);
  // What this op's lane keeps under `key`, made by `make` on first use and destroyed with the engine: handles of
  // libraries that want one a stream (cublas.h, cudnn.h).
  void* LaneLocal(const void* key, std::shared_ptr<void> (*make)(RunContext&));
  // True for ops on a device: whoever needs the result waits for it, so the body must not synchronize. (MXNet asks this
  // of bulked ops only.)
  bool defer_sync() const noexcept;

 private:
  friend class detail::EngineCore;
  friend class NodeContext;
  RunContext(detail::EngineCore* core, detail::OpRecord* op, int worker) noexcept
      : core_(core), op_(op), worker_(worker) {}
  detail::EngineCore* core_;
  detail::OpRecord* op_;
  int worker_;
};

namespace detail {

// Whether oneTBB may run pieces here, which this call counts as. Not in the child of a process that had it do so: its threads
// stayed there.
bool UseTbb() noexcept;

// ClosureType: how to move, run and destroy a closure whose type was erased. One static table a type.
struct ClosureType {
  size_t size;
  size_t align;
  bool async;  // the op ends by its Completion
  void (*construct)(void* to, void* from);
  void (*run)(void* self, RunContext& ctx, Completion* done);  // `done` is null for synchronous ops
  void (*destroy)(void* self) noexcept;                        // null: nothing to destroy
};

inline constexpr size_t kInlineClosure = 256;  // larger closures are boxed on the heap

template <class F>
inline constexpr bool kFitsInline = sizeof(F) <= kInlineClosure && alignof(F) <= 16;

template <class F>
void InvokeClosure(F& fn, RunContext& ctx, Completion* done);

template <class F, class Arg, bool kAsync>
struct ClosureTraits {  // Arg: F& (copied) or F&& (moved)
  static void Construct(void* to, void* from) {
    auto& source = *static_cast<std::remove_reference_t<Arg>*>(from);
    if constexpr (kFitsInline<F>) {
      ::new (to) F(static_cast<Arg>(source));
    } else {
      ::new (to) F*(new F(static_cast<Arg>(source)));
    }
  }
  static F& Get(void* self) {
    if constexpr (kFitsInline<F>) {
      return *static_cast<F*>(self);
    } else {
      return **static_cast<F**>(self);
    }
  }
  static void Run(void* self, RunContext& ctx, Completion* done) { InvokeClosure(Get(self), ctx, done); }
  static void Destroy(void* self) noexcept {
    if constexpr (kFitsInline<F>) {
      Get(self).~F();
    } else {
      delete &Get(self);
    }
  }
  static constexpr bool kTrivial = kFitsInline<F> && std::is_trivially_destructible_v<F>;
  static constexpr ClosureType kType{kFitsInline<F> ? sizeof(F) : sizeof(F*),
                                     kFitsInline<F> ? alignof(F) : alignof(F*),
                                     kAsync,
                                     &Construct,
                                     &Run,
                                     kTrivial ? nullptr : &Destroy};
};

}  // namespace detail
}  // namespace engine
