// What the files of the C API share: how exceptions become statuses, and how handles and structs are read.
//
// Threads:   everything is thread-safe; each thread has a last error of its own.
// Ownership: handle tables live as long as the process, so that a handle may outlive its engine and main().
// Errors:    everything below throws UsageError for the caller's mistakes; ToStatus turns it into a status.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "c_api/handles.h"
#include "engine/c_api.h"
#include "engine/comm.h"
#include "engine/plan.h"

namespace engine::capi {

// ---- errors (error.cc)

// BodyError: the failure of a C body, inside the engine.
class BodyError : public Error {
 public:
  BodyError(int32_t code, const std::string& message);
  int32_t code() const noexcept { return code_; }

 private:
  int32_t code_;
};

class IoError : public Error {
 public:
  using Error::Error;
};

// OpErrorText: an OpError in the types of the C API. The view points into this object.
class OpErrorText {
 public:
  explicit OpErrorText(const OpError& error);
  OpErrorText(const OpErrorText&) = delete;
  const EngineOpError* view() const noexcept { return &view_; }

 private:
  std::string text_, op_, cause_text_;
  std::vector<OpError::Hop> path_;
  std::vector<EngineHop> hops_;
  EngineOpError view_ = {};
};

// Called in a catch block: stores the current exception as this thread's last error, and returns its status.
EngineStatus KeepCurrentException(const char* function) noexcept;

// Runs `body`, which returns nothing or a status. No exception leaves it.
template <class Body>
EngineStatus ToStatus(const char* function, Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return ENGINE_OK;
    } else {
      return body();
    }
  } catch (...) {
    return KeepCurrentException(function);
  }
}

inline EngineSite ToC(Site site) noexcept { return {site.file, site.line}; }

// ---- arguments

// The functions that refuse are apart from the checks, because the checks are on the path of every push.
[[noreturn, gnu::cold]] void RefuseNull(const char* what);                        // "the result is null"
[[noreturn, gnu::cold]] void RefuseCount(int64_t count, const char* what);        // negative, or without an array
[[noreturn, gnu::cold]] void RefuseHandle(const void* handle, const char* kind);  // null, or not live

template <class T>
T& Required(T* pointer, const char* what) {
  if (!pointer) RefuseNull(what);
  return *pointer;
}

// `count` as a size, after checking that `array` can hold it.
inline size_t CheckedCount(int64_t count, const void* array, const char* what) {
  if (count < 0 || (count > 0 && !array)) RefuseCount(count, what);
  return static_cast<size_t>(count);
}

inline int64_t NotNegative(int64_t value, const char* what) {
  if (value < 0)
    throw UsageError(std::string(what) + " is " + std::to_string(value) + "; no negative number is allowed");
  return value;
}

inline std::chrono::nanoseconds ReadTimeout(int64_t timeout_ns) {
  // Half of the range, because adding it to a clock's time cannot overflow.
  return std::chrono::nanoseconds(std::min(NotNegative(timeout_ns, "timeout_ns"), INT64_MAX / 2));
}

// The sizes of the growable structs in ENGINE_0.1, which are the smallest that a caller can have. They never change.
template <class Struct>
inline constexpr size_t kFirstSize = 0;
#define ENGINE_FIRST_SIZE(Struct, bytes) \
  template <>                            \
  inline constexpr size_t kFirstSize<Struct> = bytes;
ENGINE_FIRST_SIZE(EnginePoolConfig, 64)
ENGINE_FIRST_SIZE(EngineConfig, 168)
ENGINE_FIRST_SIZE(EngineOpDesc, 96)
ENGINE_FIRST_SIZE(EngineCounters, 104)
ENGINE_FIRST_SIZE(EngineDeviceCounters, 120)
ENGINE_FIRST_SIZE(EnginePlanOptions, 24)
ENGINE_FIRST_SIZE(EngineRunOptions, 40)
ENGINE_FIRST_SIZE(EngineCommunicatorOptions, 184)
ENGINE_FIRST_SIZE(EngineCommunicatorInfo, 48)
#undef ENGINE_FIRST_SIZE

template <class Struct>
void CheckStructSize(size_t size, const char* what) {
  static_assert(kFirstSize<Struct> > 0 && sizeof(Struct) >= kFirstSize<Struct>);
  if (size < kFirstSize<Struct>) {
    throw UsageError(std::string(what) + ".struct_size is " + std::to_string(size) + ", less than " +
                     std::to_string(kFirstSize<Struct>) + ": set it to sizeof the struct");
  }
}

// Copies the fields that the caller knows into `to`, which has the defaults of the others.
template <class Struct>
void ReadStruct(const Struct& from, Struct& to, const char* what) {
  const size_t size = from.struct_size;
  CheckStructSize<Struct>(size, what);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&from);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      throw UsageError(std::string(what) + " sets a field that this library (" + Version() + ") does not know");
    }
  }
  std::memcpy(static_cast<void*>(&to), &from, size < sizeof(Struct) ? size : sizeof(Struct));
}

// Fills the caller's `size` bytes with what fits of `from`, and the rest with zeros.
template <class Struct>
void WriteStruct(const Struct& from, Struct& to, size_t size, const char* what) {
  CheckStructSize<Struct>(size, what);
  auto* bytes = reinterpret_cast<unsigned char*>(&to);
  const size_t known = size < sizeof(Struct) ? size : sizeof(Struct);
  std::memcpy(bytes, &from, known);
  std::memset(bytes + known, 0, size - known);
  to.struct_size = size;
}

// Text that is kept for the life of the process; null gives "". A small cache of the thread spares repeated pushes the
// intern table.
Name InternText(const char* text);
inline Site ToSite(EngineSite site) { return Site::At(InternText(site.file), site.line); }

// Text that the caller frees with EngineStringFree.
char* NewText(const std::string& text);

// ---- handles

struct HeldSlot {
  HeldOp op;
  std::atomic<uint64_t> engine{0};  // release: publishes `op`, which is assigned once. Partner: ReleaseHeldOps
};
struct GraphSlot {
  explicit GraphSlot(EngineHandle its_engine) noexcept : engine(its_engine) {}
  EngineHandle engine;
  Graph graph;
};
struct CommunicatorSlot {
  CommunicatorSlot(EngineHandle its_engine, Communicator made) noexcept
      : engine(its_engine), communicator(std::move(made)) {}
  EngineHandle engine;
  Communicator communicator;
};
struct CompletionSlot {
  explicit CompletionSlot(Completion completion) noexcept : done(std::move(completion)) {}
  Completion done;
  std::atomic<bool> ended{false};
};

// HandleKind: one kind of handle: its C type, its table, and its name in messages.
template <class Handle>
struct HandleKind;

template <class T, uint32_t kKind>
struct HandleKindOf {
  using Object = T;
  static inline constinit HandleTable<T, kKind> table;
};

#define ENGINE_HANDLE(Handle, Object, number, name)          \
  template <>                                                \
  struct HandleKind<Handle> : HandleKindOf<Object, number> { \
    static constexpr const char* kName = name;               \
  };
ENGINE_HANDLE(EngineHandle, Engine, 1, "engine")
ENGINE_HANDLE(EngineVar, Var, 2, "variable")
ENGINE_HANDLE(EngineOperator, Operator, 3, "operator")
ENGINE_HANDLE(EngineHeld, HeldSlot, 4, "held op")
ENGINE_HANDLE(EngineCompletion, CompletionSlot, 5, "completion")
ENGINE_HANDLE(EngineCancelScope, CancelScope, 6, "cancel scope")
ENGINE_HANDLE(EngineGraph, GraphSlot, 7, "graph")
ENGINE_HANDLE(EnginePlan, Plan, 8, "plan")
ENGINE_HANDLE(EngineRun, Run, 9, "run")
ENGINE_HANDLE(EngineDeviceMemory, DeviceMemory, 10, "device memory")
ENGINE_HANDLE(EngineCommunicator, CommunicatorSlot, 11, "communicator")
#undef ENGINE_HANDLE

static_assert(sizeof(void*) == 8, "a handle's 64 bits travel in a pointer");

template <class Handle>
uint64_t ToBits(Handle handle) noexcept {
  return reinterpret_cast<uint64_t>(handle);
}
template <class Handle>
Handle FromBits(uint64_t bits) noexcept {
  return reinterpret_cast<Handle>(bits);
}

// Why a handle is refused: "the engine handle is null", "the variable handle is not live: ..."
std::string WhyRefused(const void* handle, const char* kind);

template <class Handle, class... Args>
Handle NewHandle(Args&&... args) {
  return FromBits<Handle>(HandleKind<Handle>::table.Create(std::forward<Args>(args)...));
}

// The object of a live handle.
template <class Handle>
auto& Live(Handle handle) {
  auto* object = HandleKind<Handle>::table.Peek(ToBits(handle));
  if (!object) RefuseHandle(handle, HandleKind<Handle>::kName);
  return *object;
}

template <class Handle>
void FreeHandle(Handle handle) {
  if (!HandleKind<Handle>::table.Release(ToBits(handle))) RefuseHandle(handle, HandleKind<Handle>::kName);
}

// For the C functions that do nothing else.
template <class Handle>
EngineStatus Free(const char* function, Handle handle) noexcept {
  return ToStatus(function, [&] { FreeHandle(handle); });
}

// ---- between ops and engines (ops.cc)

// True while this thread runs a C body of `engine`.
bool InsideBodyOf(EngineHandle engine) noexcept;
// Releases the held ops of `engine` and frees their handles, because the engine's shutdown would wait for them.
void ReleaseHeldOps(EngineHandle engine);

}  // namespace engine::capi

// What a body sees of its op. Lies on the stack of the call.
struct EngineContext {
  engine::RunContext& run;
  std::mutex mu = {};      // the pieces of a ParallelFor share the context
  std::string error = {};  // what EngineOpSetError was given; under mu
};
