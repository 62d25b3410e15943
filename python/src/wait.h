// Wait: blocking calls that give the GIL up and still react to Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <optional>

#include "engine/room_watch.h"
#include "failure.h"
#include "gil.h"
#include "handle.h"

namespace engine_python {

inline constexpr auto kSlice = std::chrono::milliseconds(50);  // how long Ctrl-C may stay unnoticed

// The seconds that Python gives, 0 for less; nothing for None. TypeError for what is no number, UsageError for NaN.
std::optional<double> TimeoutOf(nanobind::handle given);

// Whether a signal handler can run on this thread, and nobody else waits for this thread's op.
bool WaitsForSignals();
// Raises what a signal handler raised.
void CheckSignals();
// Calls `push` without the GIL. Where it waits for room on the main thread, signals are handled meanwhile; raises what their
// handlers raised, and then nothing was pushed. As RaiseInterrupt also says, behind the push, of an op that it has run.
template <class Push>
void PushWithoutGil(Push&& push) {
  if (WaitsForSignals()) {
    WithoutGil([&] {
      const engine::RoomWatch watch(kSlice, [] {
        const PythonScope python;
        CheckSignals();
      });
      push();
    });
  } else {
    WithoutGil(push);
  }
  RaiseInterrupt();
}

// Waits for `var`; false after the timeout. Raises what the op raised, or KeyboardInterrupt.
bool WaitVar(const PyVar& var, std::optional<double> timeout);
// Raises Unreadable if this thread is recording a function. `why`: what is wrong with that, and what to do instead.
void RefuseWhileRecording(const char* what, const engine::Site& site,
                          const char* why =
                              "the data of this moment would be part of every replay; read it in an op, or outside of "
                              "the function");
// Whether the writes that were pushed so far have ended; does not wait.
bool Settled(const PyVar& var);
// As WaitVar, but returns (in time, what it would raise or None). Raises what is no error of an op.
nanobind::object Outcome(const PyVar& var, std::optional<double> timeout);
// As WaitVar, and waits for the readers too.
void WaitToWrite(const PyVar& var);
bool WaitAll(const StatePtr& state, std::optional<double> timeout);

// Calls `block`, which may block and must own what it uses, without the GIL. On the main thread a helper thread calls
// it, so that signals are handled meanwhile. A signal handler that raises abandons the block, which then goes into the
// list `abandoned` (optional; the GIL guards it) with what it throws. Raises Python exceptions.
void Interruptible(std::function<void()> block, std::vector<std::shared_ptr<HelpedWait>>* abandoned = nullptr);

}  // namespace engine_python
