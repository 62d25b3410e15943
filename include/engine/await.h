// co_await on a Var and on a Data: a coroutine goes on when what it needs is there, and no thread waits.
//
//   Job Report(engine::Data<double> y) {       // any coroutine type
//     const double& value = co_await y;        // throws OpError if y is poisoned
//     std::printf("%g\n", value);
//   }
//
// The coroutine goes on inside an op that reads the Var, pushed by the co_await: behind the writes pushed so far, beside other
// readers, and before later writes, until the coroutine suspends again or ends. Up to there it may look at the object, and
// a wait for the same Var is refused. It runs on a worker of the default pool, or where ResumeOn says.
//
// Threads:   the co_await on any thread; what follows it on a worker. Without workers, and under naive and inline, on the
//            thread that drives the engine next (a wait). Bulk and capture leave these ops alone.
// Ownership: the coroutine is the caller's. It may not be destroyed while it is suspended here.
// Order:     as a push: at the soft bound of pending ops an outside thread waits for room, as in Push.
// Errors:    thrown by the co_await. OpError if the Var is poisoned, as Wait throws it. CancelledError if the CancelScope that
//            was current at the co_await has been cancelled when the coroutine would go on. UsageError for a null or deleted
//            Var, and after Shutdown; the coroutine is not suspended then. During Shutdown it goes on as any op runs;
//            what it reads of a completion that never comes is poisoned with ShutdownError. In a fork's child a coroutine
//            that the parent had suspended stays so.
//            What leaves the coroutine itself, an unhandled_exception() that throws, ends the process.
#pragma once

#include <coroutine>
#include <exception>

#include "engine/data.h"

namespace engine {

namespace detail {

// Pushes an op of that Var's engine which reads it and calls `fn`, also where the Var is poisoned.
void PushResume(VarRef var, ClosureRef fn, Placement place, Site site);

class Resumption {
 public:
  bool await_ready() const noexcept { return false; }

 protected:
  // Once it is pushed the coroutine may go on, and this object be gone.
  auto BodyFor(std::coroutine_handle<> at) noexcept {
    return [this, at](RunContext& ctx) noexcept {
      try {
        error_ = ctx.error();
      } catch (...) {  // no memory for it
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
// co_await data: returns the object, to look at until the coroutine suspends again or ends. The Data outlives that.
template <class T>
detail::DataResumption<T> operator co_await(const Data<T>& data) noexcept {
  return {data, Cpu()};
}
template <class T>
void operator co_await(Data<T>&& data) = delete;  // what would be returned goes with it

// co_await ResumeOn(place, var): the coroutine goes on there, Io() for instance.
inline detail::VarResumption ResumeOn(Placement place, const Var& var) noexcept { return {var, place}; }
template <class T>
detail::DataResumption<T> ResumeOn(Placement place, const Data<T>& data) noexcept {
  return {data, place};
}

}  // namespace engine
