// StageHost: what a front end does around what a stage does: it brings the threads, and gives up a lock of its own (the
// interpreter lock of Python) where a stage waits. Stages without one have threads of their own.
//
// Threads:   Spawn, Put and Await on producers and on callers of the stage, all of them with the front end's lock held, in
//            which they return, too. A stage holds no lock of its own meanwhile that a thread with the front end's waits for.
// Ownership: a stage and its producers share it. Producers may outlive the stage, which waits for none of them.
// Errors:    Spawn throws std::system_error if there is no thread to be had. Await may throw WaitGivenUp.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "engine/testing/stage_clock.h"

namespace engine {

// The caller gave a wait up; what it waited for goes on and has not failed. The front end's classes derive from it.
struct WaitGivenUp : std::exception {};

class StageHost {
 public:
  using Time = StageClock::Time;
  // Waits until `until` at most. True: it is over. False: `until` came first, try again.
  using Attempt = std::function<bool(Time until)>;
  virtual ~StageHost() = default;
  // Runs `produce` on a new thread, `name` is the stage's.
  virtual void Spawn(const std::string& name, std::function<void()> produce) = 0;
  // Calls `attempt`, which may block, until it says that it is over.
  virtual void Await(const Attempt& attempt) = 0;
  // The same for a consumer that wants an item; with Time::min() the attempt only looks.
  virtual void Take(const Attempt& attempt) { Await(attempt); }
  // Around the hand-over of an item by a producer; returns what `put` returns.
  virtual bool Put(const std::function<bool()>& put) { return put(); }

  // Await, where there is a host; else the attempt waits as long as it takes.
  template <class F>
  static void AwaitOn(StageHost* host, F& attempt) {
    if (host) {
      host->Await(std::ref(attempt));
    } else {
      attempt(Time::max());
    }
  }
  // The same for what may block for long, and cannot be cut into attempts.
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
