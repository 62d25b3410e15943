// Executor: makes an engine usable by code that knows executors, schedulers and coroutines.
//
//   engine::Executor io(eng, engine::Io());
//   io.execute([] { Fetch(); });       // as the executors of asio
//   co_await io.schedule();            // as a scheduler of P2300; each awaitable is a sender there
//
// Each function that it is given runs as an op without Vars: beside everything else, and Shutdown waits for it.
//
// Threads:   any. No function ever runs inside the call, whatever the policy. Bulks hold, and captures record, none of
//            these ops.
// Ownership: a value. It names its engine and does not keep it alive.
// Order:     none between two calls. At the soft bound of pending ops a thread outside of ops waits for room, as in
//            Push.
// Errors:    UsageError after Shutdown. An exception of a function is the failure of its op, for which nobody waits:
//            WaitAll throws it, or on_unobserved gets it. co_await throws CancelledError as in await.h.
#pragma once

#include "engine/await.h"

namespace engine {

class Executor {
  class Schedule;

 public:
  explicit Executor(Engine& engine, Placement place = Cpu()) noexcept : engine_(&engine), place_(place) {}

  // Runs `fn()` or `fn(RunContext&)`.
  template <detail::SyncBody F>
  void execute(F&& fn, Site site = std::source_location::current()) const {
    engine_->PushHeld({.name = "execute", .place = place_}, std::forward<F>(fn), site);
  }
  // co_await executor.schedule(): the coroutine resumes at the executor's placement.
  [[nodiscard]] Schedule schedule() const noexcept { return Schedule(*engine_, place_); }

  friend bool operator==(const Executor&, const Executor&) noexcept = default;

 private:
  class Schedule : public detail::Resumption {
   public:
    Schedule(Engine& engine, Placement place) noexcept : engine_(engine), place_(place) {}
    void await_suspend(std::coroutine_handle<> at, Site site = std::source_location::current()) {
      engine_.PushHeld({.name = "schedule", .place = place_, .run_always = true}, BodyFor(at), site);
    }
    void await_resume() { ThrowIfFailed(); }

   private:
    Engine& engine_;
    const Placement place_;
  };

  Engine* engine_;
  Placement place_;
};

}  // namespace engine
