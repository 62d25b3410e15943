// Op: a function, the Vars that it reads and writes, where it runs, and what it is called.
//
// An `OpDesc` is written in the call that pushes the op. Access modes:
//   reads    the op sees the value; readers between two writers run together;
//   updates  the op sees the value and changes it, alone;
//   writes   the op replaces the value without looking at it, alone; a successful write clears a Var's error.
// A Var that is named several times counts once, in its strongest mode; a read or an update together with a write is an
// update.
//
// Threads:   a body runs on a worker of its placement's pool; bodies of ops that do not conflict may run at the same
//            time.
// Ownership: the closure is moved into the engine, and destroyed on the thread that ran or skipped the op.
// Errors:    whatever a body throws, of any type, poisons the Vars that the op would have changed (see error.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/access_mode.h"
#include "engine/var.h"

namespace engine {

class CancelScope;
class Completion;
class Device;
class DeviceMemory;
class Engine;
class NodeContext;
struct Dim3;
struct KernelLaunch;
template <class Tag>
struct DeviceHandle;
using Stream = DeviceHandle<struct StreamTag>;

namespace detail {
class EngineCore;
struct ChainOwner;
struct OpRecord;
}  // namespace detail

// Name: text that lives as long as the process, so that a push copies only a pointer. Literals convert by themselves;
// `Name::Intern` stores other text once and keeps it for the life of the process.
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

// Site: where an op was pushed. As a default argument, `Site site = std::source_location::current()` is the caller's
// line.
struct Site {
  const char* file = "";
  uint32_t line = 0;
  constexpr Site() noexcept = default;
  constexpr Site(const char* file_name, uint32_t line_number) noexcept : file(file_name), line(line_number) {}
  constexpr Site(const std::source_location& at) noexcept : file(at.file_name()), line(at.line()) {}  // NOLINT
  static Site At(Name file, uint32_t line) noexcept { return {file.c_str(), line}; }
};

// A Var that an op names, and its strongest mode there.
struct NamedVar {
  VarRef var;
  AccessMode mode;
};

// Placement: which threads run an op, and on which device. For named pools see Engine::Pool("name").
struct Placement {
  enum class Kind : uint8_t { kDefault, kPool, kIo, kCopyIn, kCopyOut, kGpu, kCommunicator };
  Kind kind = Kind::kDefault;
  uint16_t index = 0;       // number of the pool, of the device, or of the communicator (comm.h)
  uint8_t lane = kAnyLane;  // kGpu: the number of a lane; kAnyLane: the engine chooses one
  static constexpr uint8_t kAnyLane = 0xff;
  friend bool operator==(const Placement&, const Placement&) noexcept = default;
};
// The default CPU pool.
constexpr Placement Cpu() noexcept { return {}; }
// The I/O pool: threads for work that blocks, so that such work never occupies a compute worker.
constexpr Placement Io() noexcept { return {Placement::Kind::kIo, 0}; }
// The copy lanes of `device`: one thread and one stream for each direction, made on first use; they run ops in push
// order. If the engine has no such device, only the threads exist.
constexpr Placement CopyIn(uint16_t device = 0) noexcept { return {Placement::Kind::kCopyIn, device}; }
constexpr Placement CopyOut(uint16_t device = 0) noexcept { return {Placement::Kind::kCopyOut, device}; }
// A device: the body issues work on ctx.stream() and does not wait for it. For other device ops the op is over when it
// has been issued; for the host it is over when the device has done the work. `lane` asks for a stream by its number
// (stages do); otherwise the op goes to the stream of an op that it follows, or to the stream with the least to do
// (EngineOptions::streams_per_device).
constexpr Placement Gpu(uint16_t device = 0, uint8_t lane = Placement::kAnyLane) noexcept {
  return {Placement::Kind::kGpu, device, lane};
}

// GraphKey: what a device op does, for bulks that are repeated. Two bulks whose members have equal kinds in equal order
// have one structure. Once the engine has seen a structure often enough, it launches such a bulk as a device graph, and
// bodies run only if params have changed. So a body must issue the same calls for the same kind and params, and do
// nothing else. Copy lanes launch no graphs.
struct GraphKey {
  uint64_t kind = 0;      // the operator, launch shape, types: everything but pointers and scalars. 0: never in a graph
  uint64_t params = 0;    // the pointers and scalars, as a hash or as a version that changes with them
  bool one_call = false;  // the body issues exactly one kernel or copy, so the engine can give new params to it alone
};

struct OpDesc {
  Name name = {};
  VarSet reads = {};
  VarSet updates = {};
  VarSet writes = {};
  Placement place = {};
  int priority = 0;               // of ready ops the highest goes first; kMinPriority to kMaxPriority
  bool run_always = false;        // the op runs even if an input is poisoned or its scope is cancelled (MXNet: kNoSkip)
  CancelScope* cancel = nullptr;  // null: the calling thread's current scope, if it has one
  GraphKey graph = {};            // of device ops only
};
inline constexpr int kMinPriority = -2;
inline constexpr int kMaxPriority = 2;

// What a body may ask while it runs. Valid only inside the body.
class RunContext {
 public:
  // Runs body(begin, end) over [0, n) in pieces of at least `grain`, on the intra-op threads of the pool (oneTBB).
  // Meanwhile no other op ever starts on this stack. Rethrows the first exception of a piece. A piece is inside the
  // op, whichever thread runs it: it may push, and its pushes are under the op's scopes; a wait for ops of its own
  // engine is a UsageError. If the process forked after its first ParallelFor, the child runs all pieces on the calling
  // thread, because oneTBB's threads stayed in the parent.
  void ParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body);
  // Index of the worker in its pool; -1 if the caller's thread runs the op.
  int worker() const noexcept { return worker_; }
  const char* name() const noexcept;
  // The version of `var` that this op sees (read), or makes (update, write). UsageError if the op does not name `var`.
  uint64_t version(VarRef var) const;
  // The Vars that the op names, each once, in the order in which it lists them. Empty in a node of a plan.
  std::vector<NamedVar> vars() const;
  // Why this op would have been skipped without run_always: an OpError, as a wait throws it, or a CancelledError. Null
  // if there is no reason, and always in a node of a plan.
  std::exception_ptr error() const;
  // True once the op's cancel scope has been cancelled; a long body may look at it and stop early.
  bool cancelled() const noexcept;

  // From here on the op is an asynchronous one: it ends when the Completion is called, before or after the body returns. For
  // bodies that find out only while they run; costs nothing where it is not called. An exception of the body fails the op
  // as ever. Throws UsageError if called twice, in an asynchronous op, in a node of a plan, or on a device.
  Completion Defer();

  // On a device (Gpu, CopyIn, CopyOut). Elsewhere these throw UsageError.
  // The stream for the op's work. The work that the op depends on has been ordered in front of it already.
  Stream stream() const;
  Device& device() const;
  // Memory of the device, or host memory that the device reaches, from the engine's pools (device_memory.h). This op
  // and the ops behind it may use the memory at once.
  DeviceMemory Allocate(size_t bytes);
  DeviceMemory AllocatePinned(size_t bytes);
  // Launches a kernel (a __global__ function; on a software device any function) on the op's stream. Its arguments are
  // copied, and converted to the kernel's parameters. See device/launch.h, which has to be included.
  template <class... Params, class... Args>
  void Launch(void (*kernel)(Params...), Dim3 grid, Dim3 block, Args&&... args);
  // The same with dynamic shared memory.
  template <class... Params, class... Args>
  void LaunchShared(void (*kernel)(Params...), Dim3 grid, Dim3 block, size_t shared_bytes, Args&&... args);
  // The object that this op's lane keeps under `key`. `make` makes it on first use; it is destroyed with the engine.
  // For libraries that want one handle for each stream (cublas.h, cudnn.h).
  void* LaneLocal(const void* key, std::shared_ptr<void> (*make)(RunContext&));
  // True for ops on a device: the body must not synchronize, because whoever needs the result waits for it. (In MXNet
  // this is true only of bulked ops.)
  bool defer_sync() const noexcept;

 private:
  friend class detail::EngineCore;
  friend class NodeContext;
  RunContext(detail::EngineCore* core, detail::OpRecord* op, int worker) noexcept
      : core_(core), op_(op), worker_(worker) {}
  void LaunchErased(const KernelLaunch& launch);
  detail::EngineCore* core_;
  detail::OpRecord* op_;
  int worker_;
};

namespace detail {

// Whether oneTBB may run pieces in this process; a true answer counts as a use of oneTBB. False in the child of a
// process that had used it, because oneTBB's threads stayed in the parent.
bool UseTbb() noexcept;

// ClosureType: how to move, run and destroy a closure whose type was erased. Each type of closure has one static table.
struct ClosureType {
  size_t size;
  size_t align;
  bool async;  // the op ends when its Completion is called
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
struct ClosureTraits {  // Arg: F& (the closure is copied) or F&& (it is moved)
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
