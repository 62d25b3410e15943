// Errors: what the engine throws, and what it knows about a failed op.
//
// An op that fails poisons the Vars that it would have changed. Ops that read or update a poisoned Var are skipped and
// pass the same error on. A successful write clears the error; Engine::ClearError clears it and keeps the value. Every
// wait on a poisoned Var throws a new OpError. Errors that no wait has thrown are kept for WaitAll (64 whole, the rest
// counted); at shutdown they go to EngineOptions::on_unobserved.
//
// Threads: every object here may be read on any thread.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/op.h"

namespace engine {

namespace detail {
struct CompletionState;
}

// Base of everything that the engine itself throws. Thrown as such if the system refuses a thread.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Kinds of errors, a row each: class, status of the C API (ENGINE_E_...), bases of the class in Python, what it means.
// From these rows come the classes below, the answers of the C API (c_api/error.cc), and, written out by .ci/tables.py,
// python/engine/errors.py and the table in docs/concepts.md. A new kind is a row here and a status in c_api/base.h, without
// which the C API does not compile.
//
// A plain kind has a text and nothing else. All are classes derived from Error.
// clang-format off
#define ENGINE_PLAIN_ERRORS(X)                                                                                         \
  X(UsageError, USAGE, "Error, ValueError",                                                                            \
    "A call cannot be honoured: a null, deleted or foreign Var, an unknown pool, a wait inside its own op, a value "   \
    "out of range. The call changed nothing.")                                                                         \
  X(BackPressureError, BACKPRESSURE, "Error",                                                                          \
    "Too many ops are pending: the hard bound (``hard_max_pending``) was reached.")                                    \
  X(CancelledError, CANCELLED, "OpError",                                                                              \
    "The cancel scope of the op was cancelled before the op started.")                                                 \
  X(DeadlineError, DEADLINE, "OpError, TimeoutError",                                                                  \
    "The deadline of a run had passed before this op of it started.")                                                  \
  X(ShutdownError, SHUTDOWN, "OpError",                                                                                \
    "The engine was shut down before the op could finish.")                                                            \
  X(ForkedWhilePending, FORKED, "OpError",                                                                             \
    "The Var had pending writes when the process forked; in the child they never happen.")                             \
  X(CompletionError, COMPLETION, "OpError",                                                                            \
    "An asynchronous op lost its completion without calling it, or called it twice.")                                  \
  X(CommunicatorError, COMMUNICATOR, "OpError",                                                                        \
    "A collective failed: an error of the library or of another rank, a timeout, an abort; or there is no library.")   \
  X(StageTimeoutError, STAGE_TIMEOUT, "Error, TimeoutError",                                                           \
    "An item waited too long for room in its stage, or a consumer too long for an item.")
// The kinds that have more than a text: OpError and EndOfData below, DeviceError in device.h.
#define ENGINE_ERRORS(X)                                                                                               \
  X(OpError, OP, "Error", "Waits throw it: an op failed. It says which op, where it was pushed, and why it failed.")   \
  X(DeviceError, DEVICE, "OpError",                                                                                    \
    "A call of a device failed, the device was lost, or there is no such device.")                                     \
  X(EndOfData, END_OF_DATA, "Error",                                                                                   \
    "There is no more data: a source may raise it, and ``take`` of a stage and ``step`` of a smart stage do.")         \
  ENGINE_PLAIN_ERRORS(X)
// clang-format on

#define ENGINE_DEFINE_ERROR(Class, ...) \
  class Class : public Error {          \
   public:                              \
    using Error::Error;                 \
  };
ENGINE_PLAIN_ERRORS(ENGINE_DEFINE_ERROR)
#undef ENGINE_DEFINE_ERROR

// EndOfData: a source throws it when there is no more data (engine/stage.h).
class EndOfData : public Error {
 public:
  EndOfData() : Error("end of data") {}
  using Error::Error;
};

// OpError: what a wait throws. It has the op that failed, where that op was pushed, the ops that passed the error on,
// and the cause.
class OpError : public Error {
 public:
  struct Hop {
    std::string op;
    Site site;
  };
  OpError(const std::string& what, std::string op, Site site, std::vector<Hop> path, std::exception_ptr cause)
      : Error(what), op_(std::move(op)), site_(site), path_(std::move(path)), cause_(std::move(cause)) {}

  const std::string& op() const noexcept { return op_; }           // name of the op that failed first
  Site site() const noexcept { return site_; }                     // where that op was pushed
  const std::vector<Hop>& path() const noexcept { return path_; }  // skipped ops that passed the error on; the first 16
  // What the op's body threw, or the engine's own reason.
  std::exception_ptr cause() const noexcept { return cause_; }
  [[noreturn]] void RethrowCause() const { std::rethrow_exception(cause_); }

 private:
  std::string op_;
  Site site_;
  std::vector<Hop> path_;
  std::exception_ptr cause_;
};

// Completion: ends an asynchronous op. It can be copied; call it once, on any thread, before or after the body returns.
// If the last copy is dropped uncalled, the op fails. A second call is reported as an error and changes nothing. A
// Completion may outlive the engine; calling or dropping it then does nothing and is not reported.
class Completion {
 public:
  Completion() noexcept = default;
  Completion(const Completion& other) noexcept;
  Completion(Completion&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Completion& operator=(Completion other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Completion();

  void operator()() { Finish(nullptr); }
  void Fail(std::exception_ptr cause) { Finish(cause ? std::move(cause) : Unspecified()); }
  template <class E>
    requires(!std::is_same_v<std::decay_t<E>, std::exception_ptr>)
  void Fail(E&& error) {
    Finish(std::make_exception_ptr(std::forward<E>(error)));
  }
  explicit operator bool() const noexcept { return state_ != nullptr; }

 private:
  friend class detail::EngineCore;
  explicit Completion(detail::CompletionState* counted) noexcept : state_(counted) {}
  static std::exception_ptr Unspecified();
  void Finish(std::exception_ptr cause);
  detail::CompletionState* state_ = nullptr;
};

namespace detail {
template <class F>
void InvokeClosure(F& fn, RunContext& ctx, Completion* done) {
  if constexpr (std::is_invocable_v<F&, RunContext&, Completion>) {
    fn(ctx, std::move(*done));
  } else if constexpr (std::is_invocable_v<F&, RunContext&>) {
    fn(ctx);
  } else {
    fn();
  }
}
}  // namespace detail

}  // namespace engine
