#include "wait.h"

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "body.h"
#include "failure.h"
#include "gil.h"
#include "push.h"
#include "site.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

Nanoseconds Duration(double seconds) {
  constexpr double kLongest = 3e8;  // ten years, so that computing with clocks cannot overflow
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(std::min(seconds, kLongest)));
}

// Whether waits run ops on the waiting thread.
bool RunsOps(const EngineState& state) { return state.caller_runs || state.engine.workers() == 0; }

// The part of a wait that the main thread does itself, in slices, with a look for signals after each. It is one slice,
// because a helper thread costs more than most waits take; or all slices, if the wait runs ops, because these must stay
// on the thread that waits. Null: not ready yet, wait for the rest in one piece. Shortens `timeout` by the time that it
// waited.
template <class Wait>
std::optional<bool> WaitInSlices(const EngineState& state, std::optional<double>* timeout, const Wait& wait) {
  if (!WaitsForSignals()) return {};
  do {
    const bool last = *timeout && Duration(**timeout) <= kSlice;
    const Nanoseconds slice = last ? Duration(**timeout) : Nanoseconds(kSlice);
    bool ready = false;
    const auto begin = std::chrono::steady_clock::now();
    WithoutGil([&] { ready = wait(slice); });
    RaiseInterrupt();
    if (ready) return true;
    CheckSignals();
    if (last) return false;
    if (*timeout) **timeout -= std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  } while (RunsOps(state));
  return {};
}

// Whether the helper has ended, for which this waits a slice at most.
bool EndsInASlice(HelpedWait& wait) {
  bool done = false;
  WithoutGil([&] {
    std::unique_lock lock(wait.mutex);
    done = wait.ended.wait_for(lock, kSlice, [&] { return wait.done; });
  });
  return done;
}

// Raises the error that an abandoned wait_all got from the engine, if there is one. With `to_the_end`, when everything has
// ended: then those waits end, too, and this waits until they have. So the error is raised by this wait, and not by a later one.
void RaiseOfAbandoned(EngineState& state, bool to_the_end) {
  for (size_t i = 0; i < state.abandoned.size();) {
    const std::shared_ptr<HelpedWait> wait = state.abandoned[i];
    {
      std::unique_lock lock(wait->mutex);
      if (!wait->done && !to_the_end) {
        ++i;
        continue;
      }
    }
    while (!EndsInASlice(*wait)) CheckSignals();
    // Meanwhile another thread may have been here.
    if (std::erase(state.abandoned, wait) != 0 && wait->thrown) Raise(wait->thrown);
    i = 0;
  }
}

}  // namespace

void CheckSignals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

bool WaitsForSignals() { return OnMainThread() && !CurrentBody(); }

std::optional<double> TimeoutOf(nb::handle given) {
  if (given.is_none()) return {};
  const double seconds = PyFloat_AsDouble(given.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
    PyErr_Clear();
    RaiseTypeError(std::string("timeout is ") + ATypeOf(given.ptr()) + "; seconds or None are expected");
  }
  if (std::isnan(seconds)) RaiseError("UsageError", "timeout is not a number; give seconds, or None");
  return std::max(seconds, 0.0);
}

void Interruptible(std::function<void()> block, std::vector<std::shared_ptr<HelpedWait>>* abandoned) {
  if (!WaitsForSignals()) {
    try {
      WithoutGil(block);
    } catch (...) {
      Raise(std::current_exception());
    }
    return;
  }
  auto wait = std::make_shared<HelpedWait>();
  Away away;
  if (abandoned) abandoned->reserve(abandoned->size() + 1);
  // The helper waits in one piece, as the engine needs it: a wait that is cut into slices would start over with each
  // slice, and a thread that keeps pushing could delay it for ever.
  std::thread([wait, away = std::move(away), block = std::move(block)]() mutable {
    std::exception_ptr error;
    try {
      block();
    } catch (...) {
      error = std::current_exception();
    }
    block = nullptr;
    ForgetThread();  // with zero workers, bodies have run on this thread
    std::unique_lock lock(wait->mutex);
    wait->thrown = std::move(error);
    wait->done = true;
    wait->ended.notify_all();
  }).detach();
  try {
    while (!EndsInASlice(*wait)) CheckSignals();
  } catch (...) {
    if (abandoned) abandoned->push_back(std::move(wait));
    throw;
  }
  if (wait->thrown) Raise(wait->thrown);
}

// A look while a function is recorded would take what is there now into the recording, for ever.
void RefuseWhileRecording(const char* what, const engine::Site& site, const char* why) {
  if (!recording || CurrentBody()) return;
  RaiseError("Unreadable", std::string(what) + " at " + site.file + ":" + std::to_string(site.line) +
                               " while the function is recorded: " + why);
}

bool Settled(const PyVar& var) {
  if (recording) RefuseWhileRecording("a look at what is done", CallerSite());
  return EngineOf(var)->engine.Settled(var.var, {});  // of its own engine, so nothing is refused at any line
}

bool WaitVar(const PyVar& var, std::optional<double> timeout) {
  const StatePtr state = EngineOf(var);
  const engine::Site site = CallerSite();
  RefuseWhileRecording("a wait", site);
  try {
    // Most waits find their Var ready, and then the GIL is kept. Otherwise the op may need the GIL, so nobody spins with
    // it, and this thread runs no op with it.
    if (state->engine.TryWait(var.var, site)) return true;
    if (timeout && *timeout <= 0) {
      bool ready = false;
      WithoutGil([&] { ready = state->engine.WaitFor(var.var, Nanoseconds(0), site); });
      return ready;
    }
    const auto wait = [&](Nanoseconds most) { return state->engine.WaitFor(var.var, most, site); };
    if (const auto ready = WaitInSlices(*state, &timeout, wait)) return *ready;
  } catch (const nb::python_error&) {
    throw;
  } catch (...) {
    Raise(std::current_exception());
  }
  auto ready = std::make_shared<bool>(true);
  Interruptible([state, held = var.var, timeout, site, ready] {
    if (timeout) {
      *ready = state->engine.WaitFor(held, Duration(*timeout), site);
    } else {
      state->engine.Wait(held, site);
    }
  });
  return *ready;
}

nb::object Outcome(const PyVar& var, std::optional<double> timeout) {
  RefuseWhileRecording("a wait", CallerSite());
  try {
    return nb::make_tuple(WaitVar(var, timeout), nb::none());
  } catch (nb::python_error& error) {
    // What is pending here is the error of the op, unless it says nothing of one: Ctrl-C, a refused wait.
    if (!Settled(var)) throw;
    nb::object raised = nb::borrow(error.value());
    if (error.matches(PyExc_KeyboardInterrupt) && !nb::hasattr(raised, "__notes__")) throw;
    return nb::make_tuple(true, raised);
  }
}

void WaitToWrite(const PyVar& var) {
  const StatePtr state = EngineOf(var);
  RefuseWhileRecording("a wait", CallerSite());
  Interruptible([state, held = var.var, site = CallerSite()] { state->engine.WaitToWrite(held, site); });
}

bool WaitAll(const StatePtr& state, std::optional<double> timeout) {
  RefuseWhileRecording("wait_all", CallerSite());
  RaiseOfAbandoned(*state, false);
  try {
    const auto wait = [&](Nanoseconds most) { return state->engine.WaitAllFor(most); };
    if (const auto done = WaitInSlices(*state, &timeout, wait)) {
      if (*done) RaiseOfAbandoned(*state, true);
      return *done;
    }
  } catch (const nb::python_error&) {
    throw;
  } catch (...) {
    Raise(std::current_exception());
  }
  auto ready = std::make_shared<bool>(false);
  Interruptible(
      [state, timeout, ready] {
        if (timeout) {
          *ready = state->engine.WaitAllFor(Duration(*timeout));
        } else {
          state->engine.WaitAll();
          *ready = true;
        }
      },
      &state->abandoned);
  if (*ready) RaiseOfAbandoned(*state, true);
  return *ready;
}

}  // namespace engine_python
