// StageHost: what a front end does for a stage: it makes the threads, and gives up a lock of its own (the interpreter
// lock of Python) while a stage waits. A stage without a host makes its own threads.
//
// Threads:   Spawn and Await are called on producers and on callers of the stage. Every call is made, and returns,
//            with the front end's lock held. Meanwhile the stage holds no lock that a thread with the front end's lock
//            may wait for.
// Ownership: a stage and its producers share the host. Producers may outlive the stage, which waits for none of them.
// Errors:    Spawn throws std::system_error if the system refuses a thread. Await may throw WaitGivenUp.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "engine/testing/stage_clock.h"

namespace engine {

// The caller gave up a wait. What it waited for goes on, and has not failed. Front ends throw classes that derive from
// this one.
struct WaitGivenUp : std::exception {};

class StageHost {
 public:
  using Time = StageClock::Time;
  // Waits until `until` at most. True: the wait is over. False: it is not, so call again.
  using Attempt = std::function<bool(Time until)>;
  virtual ~StageHost() = default;
  // Runs `produce` on a new thread. `name` is that of the stage.
  virtual void Spawn(const std::string& name, std::function<void()> produce) = 0;
  // Calls `attempt`, which may block, again and again until it returns true.
  virtual void Await(const Attempt& attempt) = 0;
  // As Await, for a consumer that wants an item; an attempt with Time::min() only looks.
  virtual void Take(const Attempt& attempt) { Await(attempt); }

  // Calls host->Await; without a host, waits in `attempt` itself.
  template <class F>
  static void AwaitOn(StageHost* host, F& attempt) {
    if (host) {
      host->Await(std::ref(attempt));
    } else {
      while (!attempt(Time::max())) {
      }
    }
  }
  // As AwaitOn, for a wait that may be long and cannot be cut into attempts.
  template <class F>
  static void Blocking(StageHost* host, F&& wait) {
    const auto attempt = [&](Time) {
      wait();
      return true;
    };
    AwaitOn(host, attempt);
  }
};

}  // namespace engine
