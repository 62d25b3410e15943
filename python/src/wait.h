// Wait: blocking calls that give the GIL up and still answer to Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <optional>

#include "handle.h"

namespace engine_python {

inline constexpr auto kSlice = std::chrono::milliseconds(50);  // how long Ctrl-C may go unnoticed

// Seconds as Python gives them; null for None. TypeError or ValueError otherwise.
std::optional<double> TimeoutOf(nanobind::handle given);

// Waits for `var`; false after the timeout. Raises what its op raised, or KeyboardInterrupt.
bool WaitVar(const PyVar& var, std::optional<double> timeout);
// As WaitVar, also for readers.
void WaitToWrite(const PyVar& var);
bool WaitAll(const StatePtr& state, std::optional<double> timeout);

// Runs `block`, which may block and must own what it uses, with the GIL given up. On the main thread it runs on a
// helper thread, so that signals are handled meanwhile: a handler that raises abandons it, and when it then ends
// `late` (optional) gets what it threw. Raises Python exceptions.
void Interruptible(std::function<void()> block, std::function<void(std::exception_ptr)> late = {});

}  // namespace engine_python
