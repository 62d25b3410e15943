// Engine: runs pushed ops asynchronously, each as soon as its Vars allow.
//
//   engine::Engine eng({.workers = 4});
//   engine::Var a = eng.NewVar("a"), b = eng.NewVar("b");
//   eng.Push({.name = "load", .writes = {a}}, [&] { x = Load(); });
//   eng.Push({.name = "scale", .reads = {a}, .writes = {b}}, [&] { y = 2 * x; });
//   eng.Wait(b);   // throws OpError if "load" or "scale" failed
//
// Threads:   every method is safe on every thread; the notes say what is refused inside an op or a hook.
// Ownership: several engines may coexist; Vars, Operators and Completions may outlive theirs.
// Order:     see submitter.h. Errors: see error.h. Source: MXNet's include/mxnet/engine.h, each fault repaired.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/device_memory.h"
#include "engine/error.h"
#include "engine/op.h"
#include "engine/operator.h"
#include "engine/options.h"
#include "engine/policy.h"
#include "engine/spi/held_ops.h"
#include "engine/stats.h"
#include "engine/submitter.h"
#include "engine/timeout.h"
#include "engine/trace.h"
#include "engine/var.h"

namespace engine {

template <class T>
class Data;

// CancelScope: ops pushed under it that have not started when Cancel() is called are skipped with CancelledError.
// Copies share one scope. `Enter` makes it the current one of this thread until the guard goes.
class CancelScope {
 public:
  CancelScope();
  void Cancel() noexcept;
  bool cancelled() const noexcept;

  class Guard {
   public:
    Guard(Guard&&) = delete;
    ~Guard();

   private:
    friend class CancelScope;
    explicit Guard(CancelScope& scope) noexcept;
    CancelScope* outer_;
  };
  [[nodiscard]] Guard Enter() noexcept { return Guard(*this); }

 private:
  friend class detail::EngineCore;
  std::shared_ptr<std::atomic<bool>> cancelled_;
};

class Engine final : public Submitter {
 public:
  // Throws UsageError for options that are not allowed, and Error, with nothing left behind, where the system refuses a
  // thread.
  explicit Engine(EngineOptions options = {});
  // Drains (see Shutdown). Inside one of its own ops or hooks, where draining would wait for itself, that is reported
  // to on_unobserved (inside on_unobserved to stderr) and a thread of its own finishes the shutdown.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Var NewVar(std::string_view name = {});
  // Ends the variable now, behind the ops pending on it: other handles of it are refused from here on.
  void Delete(Var& var);

  using Submitter::Push;
  template <detail::SyncBody F>
  Operator NewOperator(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return MakeOperator(desc, detail::RefClosure(std::forward<F>(fn)), site);
  }
  template <detail::AsyncBody F>
  Operator NewAsyncOperator(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return MakeOperator(desc, detail::RefClosure<true>(std::forward<F>(fn)), site);
  }
  void Push(const Operator& op, Site site = std::source_location::current());
  void Push(const Operator& op, int priority, Site site = std::source_location::current());

  template <detail::SyncBody F>
  HeldOp PushHeld(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return SubmitHeld(desc, detail::RefClosure(std::forward<F>(fn)), site);
  }

  // Waits until every write pushed so far on `var` has finished. Throws OpError if `var` is poisoned.
  // Inside an op the thread parks and lends its worker to a stand-in; waiting for a Var that the op itself names is
  // refused (UsageError), as is any wait beyond max_spare_threads.
  void Wait(VarRef var, Site site = std::source_location::current());
  // Waits likewise, and returns the object. It may be looked at until an op that updates or writes it is pushed.
  template <class T>
  const T& Wait(const Data<T>& data, Site site = std::source_location::current()) {
    Wait(static_cast<VarRef>(data), site);
    return data.object();
  }
  // As Wait; false after `timeout`. An abandoned wait leaves nothing behind.
  bool WaitFor(VarRef var, Timeout timeout, Site site = std::source_location::current());
  // Waits for writers and readers: afterwards the host may reuse what the Var stands for.
  void WaitToWrite(VarRef var, Site site = std::source_location::current());
  // Waits for every push that returned before it was called; then throws the first error that nobody has seen yet.
  // Refused inside an op. Later pushes cannot hold it up.
  void WaitAll();
  bool WaitAllFor(Timeout timeout);

  // Clears the error of `var` in order, keeping its value and version: a failed step need not lose the weights.
  void ClearError(VarRef var, Site site = std::source_location::current());

  // Stop: workers finish what they are running and are joined; pushes queue up: they run nothing, under no policy, and wait
  // for no room (only the hard bound refuses). Start: goes on. Both may be repeated.
  // Stop, Start and Shutdown come one after another: each waits until the one before, on whatever thread, has returned.
  // All three are refused (UsageError) inside an op or a hook of this engine. After Shutdown they do nothing.
  // Start throws Error where the system refuses a thread: the engine is still stopped then, and Start may be repeated.
  void Stop();
  void Start();

  // Settles every op exactly once, those too that a Stop has left, joins the threads, reports unseen errors. Later pushes
  // throw UsageError. Idempotent. Throws only what Start throws, if the engine was stopped; it may be repeated then.
  void Shutdown();

  // Of all later pushes that are not under a scope.
  void SetPolicy(const PolicyChoice& choice);
  void SetPolicy(Policy policy, PolicyOptions options = {}) { SetPolicy(PolicyChoice{policy, options}); }
  // Of this thread's pushes, until the guard goes; scopes nest.
  [[nodiscard]] PolicyScope EnterPolicy(const PolicyChoice& choice) { return PolicyScope(core_, choice); }
  // What a push of this thread would be stamped with.
  PolicyChoice policy_choice() const;
  Policy policy() const { return policy_choice().policy; }

  // The placement of a named pool; throws UsageError listing the pools there are.
  Placement Pool(std::string_view name) const;
  int workers() const noexcept;
  EngineStats stats() const;
  DeviceStats device_stats() const;
  // Device i, as Gpu(i) uses it. Throws UsageError if there is none.
  Device& device(int index) const;

  void StartTrace();
  std::vector<TraceEvent> StopTrace();

  // What is pending and why, as the watchdog prints it: blocked Vars with the ops that own them and that wait for
  // them, and completions that have not come, with push sites. Stops pushes for a moment.
  std::string DescribePending() const;

 private:
  friend class HeldOps;
  friend class Redirect;
  friend class Graph;
  friend class Communicator;
  void Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) override;
  bool TrySubmit(const OpDesc& desc, detail::ClosureRef fn, Site site) override;
  HeldOp SubmitHeld(const OpDesc& desc, detail::ClosureRef fn, Site site);
  Operator MakeOperator(const OpDesc& desc, detail::ClosureRef fn, Site site);

  detail::EngineCore* core_;
};

// The engine's version, as "major.minor.patch".
const char* Version() noexcept;

}  // namespace engine
