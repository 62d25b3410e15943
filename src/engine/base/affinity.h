// The processors of a thread that the engine has confined to one of a pool's `cpus`.
//
// A thread that plays roles in several pools is confined in some and free in others, and Linux gives a new thread the
// processors of whoever makes it: an op that is confined may be the first to need another pool's threads. So what a
// thread had before is kept, given back (Free), and handed on to the threads that it makes (MakeThread).
//
// Errors: none. A refused affinity costs speed, never a result.
#pragma once

#include <sched.h>

#include <optional>

namespace engine::detail {

void ConfineThisThread(int cpu) noexcept;
void FreeThisThread() noexcept;  // nothing, where it is not confined

// What this thread had before it was confined; none: it is not.
std::optional<cpu_set_t> ProcessorsBefore() noexcept;
// For a new thread: these, if there are any, instead of its maker's.
void TakeProcessors(const std::optional<cpu_set_t>& processors) noexcept;

}  // namespace engine::detail
