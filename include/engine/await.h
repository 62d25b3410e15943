// co_await on a Var and on a Data: the coroutine resumes when the writes that it waits for have ended, and no thread
// waits.
//
//   Job Report(engine::Data<double> y) {       // any coroutine type
//     const double& value = co_await y;        // throws OpError if y is poisoned
//     std::printf("%g\n", value);
//   }
//
// The co_await pushes an op that reads the Var, and the coroutine resumes inside that op: behind the writes pushed so
// far, beside other readers, and before later writes. The op ends when the coroutine suspends again or ends. Until then
// the coroutine may look at the object, and a wait for the same Var is refused. It runs on a worker of the default
// pool, or where ResumeOn says.
//
// Threads:   co_await is legal on any thread; what follows it runs on a worker. Without workers, and under naive and
//            inline, it runs on the next thread that drives the engine (a wait). Bulks hold, and captures record, none
//            of these ops.
// Ownership: the coroutine is the caller's. It must not be destroyed while it is suspended here.
// Order:     as a push: at the soft bound of pending ops a thread outside of ops waits for room, as in Push.
// Errors:    thrown by the co_await. OpError if the Var is poisoned, as Wait throws it. CancelledError if the
//            CancelScope that was current at the co_await has been cancelled before the coroutine resumes. UsageError
//            for a null or deleted Var, and after Shutdown: then the coroutine is not suspended. During Shutdown it
//            resumes as any op runs; a Var whose completion never comes is then poisoned with ShutdownError. A
//            coroutine that the parent had suspended stays suspended in a fork's child.
//            An exception that leaves the coroutine itself (an unhandled_exception() that throws) ends the process.
#pragma once

#include <coroutine>
#include <exception>

#include "engine/data.h"

namespace engine {

namespace detail {

// Pushes an op of `var`'s engine that reads `var` and calls `fn`. The op runs even if `var` is poisoned.
void PushResume(VarRef var, ClosureRef fn, Placement place, Site site);

class Resumption {
 public:
  bool await_ready() const noexcept { return false; }

 protected:
  // After the push the coroutine may resume at any time, and this object may be gone.
  auto BodyFor(std::coroutine_handle<> at) noexcept {
    return [this, at](RunContext& ctx) noexcept {
      try {
        error_ = ctx.error();
      } catch (...) {  // there was no memory for the OpError
        error_ = std::current_exception();
      }
      at.resume();
    };
  }
  void ThrowIfFailed() {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  std::exception_ptr error_;
};

class VarResumption : public Resumption {
 public:
  VarResumption(VarRef var, Placement place) noexcept : var_(var), place_(place) {}
  void await_suspend(std::coroutine_handle<> at, Site site = std::source_location::current()) {
    PushResume(var_, RefClosure(BodyFor(at)), place_, site);
  }
  void await_resume() { ThrowIfFailed(); }

 private:
  const VarRef var_;
  const Placement place_;
};

template <class T>
class DataResumption : public VarResumption {
 public:
  DataResumption(const Data<T>& data, Placement place) noexcept : VarResumption(data, place), data_(data) {}
  const T& await_resume() {
    ThrowIfFailed();
    return data_.object();
  }

 private:
  const Data<T>& data_;
};

}  // namespace detail

// co_await var: returns nothing.
inline detail::VarResumption operator co_await(const Var& var) noexcept { return {var, Cpu()}; }
// co_await data: returns the object. The coroutine may look at it until it suspends again or ends; the Data must live
// that long.
template <class T>
detail::DataResumption<T> operator co_await(const Data<T>& data) noexcept {
  return {data, Cpu()};
}
template <class T>
void operator co_await(Data<T>&& data) = delete;  // the Data would be gone, and the object with it

// co_await ResumeOn(place, var): as co_await var, but the coroutine resumes at `place`, for instance Io().
inline detail::VarResumption ResumeOn(Placement place, const Var& var) noexcept { return {var, place}; }
template <class T>
detail::DataResumption<T> ResumeOn(Placement place, const Data<T>& data) noexcept {
  return {data, place};
}

}  // namespace engine
