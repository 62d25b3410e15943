// Sleeper: a thread that sleeps until another one has work for it, and shall do that work beside the other one, not after it.
// Linux may wake a thread on the processor of its waker while others are idle: in a virtual machine always, because an idle
// processor looks like a preempted one there. Then one of the two waits for milliseconds. So whoever wakes a Sleeper takes its
// own processor out of the Sleeper's affinity, and the Sleeper puts that processor back once it runs.
//
// Threads: its owner's lock is taken around SendAway, and around ComeBack unless the wake itself orders the two.
// Errors:  none. Affinities that cannot be read or set stay as they are; so do those of a thread that is pinned to one
//          processor.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <optional>

namespace engine::detail {

class Sleeper {
 public:
  // On the thread that is about to sleep.
  void Lie() noexcept { thread_ = gettid(); }
  // On the thread that is about to wake it.
  void SendAway() noexcept;
  // On the thread itself, when it has been woken.
  void ComeBack() noexcept {
    if (allowed_) TakeBack();
  }

 private:
  void TakeBack() noexcept;

  pid_t thread_ = 0;
  std::optional<cpu_set_t> allowed_;  // where it might run before it was sent away
};

}  // namespace engine::detail
