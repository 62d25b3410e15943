// Engine: runs pushed ops asynchronously, each as soon as its Vars allow.
//
//   engine::Engine eng({.workers = 4});
//   engine::Var a = eng.NewVar("a"), b = eng.NewVar("b");
//   eng.Push({.name = "load", .writes = {a}}, [&] { x = Load(); });
//   eng.Push({.name = "scale", .reads = {a}, .writes = {b}}, [&] { y = 2 * x; });
//   eng.Wait(b);   // throws OpError if "load" or "scale" failed
//
// Threads:   every method may be called on any thread; each method's comment says what is refused inside an op or a
//            hook.
// Ownership: several engines may coexist; Vars, Operators and Completions may outlive their engine.
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
#include "engine/held_op.h"
#include "engine/op.h"
#include "engine/operator.h"
#include "engine/options.h"
#include "engine/policy.h"
#include "engine/stats.h"
#include "engine/submitter.h"
#include "engine/timeout.h"
#include "engine/trace.h"
#include "engine/var.h"

namespace engine {

template <class T>
class Data;

// CancelScope: ops pushed under the scope are skipped with CancelledError if they have not started when Cancel() is
// called. Copies share one scope. `Enter` makes the scope the current one of the calling thread until the object that
// it returns is destroyed.
class CancelScope {
 public:
  CancelScope();
  // Copies only: a scope that was moved from would be none.
  CancelScope(const CancelScope&) = default;
  CancelScope& operator=(const CancelScope&) = default;
  void Cancel() noexcept;
  bool cancelled() const noexcept;

  class Entered {
   public:
    Entered(Entered&&) = delete;
    ~Entered();

   private:
    friend class CancelScope;
    explicit Entered(CancelScope& scope) noexcept;
    CancelScope* outer_;
  };
  [[nodiscard]] Entered Enter() noexcept { return Entered(*this); }

 private:
  friend class detail::EngineCore;
  std::shared_ptr<std::atomic<bool>> cancelled_;
};

class Engine final : public Submitter {
 public:
  // Throws UsageError for options that are not allowed, and Error if the system refuses a thread; nothing is left
  // behind then.
  explicit Engine(EngineOptions options = {});
  // Shuts down (see Shutdown). A destructor that runs inside one of the engine's own ops or hooks would wait for
  // itself: it reports that to on_unobserved (inside on_unobserved: to stderr), and leaves the shutdown to another
  // thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Var NewVar(std::string_view name = {}, void* tag = nullptr);  // tag: see VarRef::tag
  // Ends the variable behind the ops that are pending on it. From now on the engine refuses every other handle of it.
  void Delete(Var& var, Site site = std::source_location::current());

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

  // Waits until every write of `var` that has been pushed so far has ended. Throws OpError if `var` is poisoned.
  // Inside an op the calling thread sleeps and lends its worker to a stand-in thread. UsageError: the op itself names
  // `var`, or the wait would need more stand-ins than max_spare_threads.
  void Wait(VarRef var, Site site = std::source_location::current());
  // Waits likewise, and returns the object. The caller may look at it until an op that updates or writes it is pushed.
  template <class T>
  const T& Wait(const Data<T>& data, Site site = std::source_location::current()) {
    Wait(static_cast<VarRef>(data), site);
    return data.object();
  }
  // As Wait, but returns false after `timeout`. An abandoned wait leaves nothing behind.
  bool WaitFor(VarRef var, Timeout timeout, Site site = std::source_location::current());
  // As WaitFor without any time, but the thread runs no op meanwhile, whatever the policy: for callers that hold a lock which
  // bodies take, as Python's. It may return false although the Var is settled, when a device has to be asked first.
  bool TryWait(VarRef var, Site site = std::source_location::current());
  // Whether every write of `var` that has been pushed so far has ended, failed or not. Does not wait.
  bool Settled(VarRef var, Site site = std::source_location::current()) const;
  // Waits for the writers and the readers of `var`: afterwards the host may reuse what the Var stands for.
  void WaitToWrite(VarRef var, Site site = std::source_location::current());
  // Waits until every push that returned before this call has ended; later pushes cannot delay it. Then throws the
  // first error that nobody has seen yet. UsageError inside an op.
  void WaitAll();
  bool WaitAllFor(Timeout timeout);
  // As WaitAllFor, for front ends with errors of their own: it throws none, and those that nobody has seen stay so.
  bool Drain(Timeout timeout);

  // Clears the error of `var` in order, keeping its value and version: a failed step need not lose the weights.
  void ClearError(VarRef var, Site site = std::source_location::current());

  // Stop: each worker finishes the op that it runs and is joined. Pushes on a stopped engine take their places and run
  // nothing, whatever the policy; they do not wait for room, and only the hard bound refuses them. Start: makes the
  // workers again. Both may be repeated.
  // Stop, Start and Shutdown never overlap: each waits until an earlier one, on whatever thread, has returned.
  // UsageError inside an op or a hook of this engine. After Shutdown all three do nothing.
  // Start throws Error if the system refuses a thread: the engine is still stopped then, and Start may be called again.
  void Stop();
  void Start();

  // Settles every op exactly once, also those that a Stop left queued; joins the threads; reports unseen errors. Later
  // pushes throw UsageError. A second call does nothing. Throws only what Start throws, if the engine was stopped;
  // Shutdown may be called again then.
  void Shutdown();

  // The policy of all later pushes that are under no PolicyScope.
  void SetPolicy(const PolicyChoice& choice);
  void SetPolicy(Policy policy, PolicyOptions options = {}) { SetPolicy(PolicyChoice{policy, options}); }
  // The policy of this thread's pushes until the PolicyScope is destroyed. Scopes nest.
  [[nodiscard]] PolicyScope EnterPolicy(const PolicyChoice& choice) { return PolicyScope(core_, choice); }
  // The policy that a push of this thread would get now.
  PolicyChoice policy_choice() const;
  Policy policy() const { return policy_choice().policy; }

  // The placement of a named pool. The UsageError for an unknown name lists the engine's pools.
  Placement Pool(std::string_view name) const;
  int workers() const noexcept;
  EngineStats stats() const;
  DeviceStats device_stats() const;
  // Device `index`, the one that Gpu(index) names. UsageError if there is none.
  Device& device(int index) const;

  // Ends the trace before, if one is on.
  void StartTrace();
  // Empty if no trace is on.
  Trace StopTrace();

  // What is pending and why, as the watchdog prints it: each blocked Var with the op that owns it and the ops that wait
  // for it, and each completion that has not come, with the lines of the pushes. Holds up pushes for a moment.
  std::string DescribePending() const;

 private:
  friend class HeldOps;
  friend class Redirect;
  friend class Graph;
  friend class Communicator;
  friend uint64_t LateLooks(const Engine& engine);  // engine/testing/late_looks.h
  void Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) override;
  void SubmitUncommon(const OpDesc& desc, detail::ClosureRef fn, Site site);
  bool TrySubmit(const OpDesc& desc, detail::ClosureRef fn, Site site) override;
  HeldOp SubmitHeld(const OpDesc& desc, detail::ClosureRef fn, Site site);
  Operator MakeOperator(const OpDesc& desc, detail::ClosureRef fn, Site site);

  detail::EngineCore* core_;
};

// The engine's version, as "major.minor.patch".
const char* Version() noexcept;

}  // namespace engine
