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
#include "engine/options.h"
#include "engine/policy.h"
#include "engine/stats.h"
#include "engine/submitter.h"
#include "engine/timeout.h"
#include "engine/trace.h"
#include "engine/var.h"

namespace engine {

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

// Operator: an op registered once and pushed often (MXNet: NewOperator). Its sets are sorted and its closure stored
// once; pushes share the closure, which may run concurrently with itself. Deletion waits for the pending pushes.
class Operator {
 public:
  Operator() noexcept = default;
  explicit operator bool() const noexcept { return state_ != nullptr; }
  struct State;  // the engine's

 private:
  friend class Engine;
  std::shared_ptr<State> state_;
};

// HeldOp: an op whose place in the order is taken and whose start waits for Release(). Released when dropped,
// and by the engine's shutdown.
class HeldOp {
 public:
  HeldOp() noexcept = default;
  HeldOp(HeldOp&& other) noexcept : claim_(std::exchange(other.claim_, nullptr)) {}
  HeldOp& operator=(HeldOp&& other) noexcept {
    Release();
    claim_ = std::exchange(other.claim_, nullptr);
    return *this;
  }
  ~HeldOp() { Release(); }
  void Release() noexcept;

 private:
  friend class Engine;
  detail::CompletionState* claim_ = nullptr;
};

// HeldOps: ops that take their places in the order as they are pushed, and start together, one after another on one
// thread: one dispatch. Merges no accesses, so order, errors, names and waits are those of each op. `bulk.h` adds when
// to let go; what anybody waits for or pushes behind is let go by the engine itself. Source: MXNet's bulk, which merges
// accesses and thereby hides ops from other threads.
//
// Threads: Push by one thread, Release by any. Outlives the engine safely.
class HeldOps {
 public:
  explicit HeldOps(Engine& engine);
  ~HeldOps();  // releases
  HeldOps(const HeldOps&) = delete;
  HeldOps& operator=(const HeldOps&) = delete;

  // Whether an op that is placed there is held: on a device. Every other goes straight to the engine.
  bool Holds(const Placement& place) const;
  // How many ops are held now, this one included. 0: somebody needed this one, and all have been released; or the op is none
  // that is held, and was pushed past those that are.
  template <detail::SyncBody F>
  uint32_t Push(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return PushErased(desc, detail::RefClosure(std::forward<F>(fn)), site);
  }
  // For decorators, closures erased. Try: kNoRoom instead of waiting at the soft bound; nothing was pushed then.
  uint32_t PushErased(const OpDesc& desc, detail::ClosureRef fn, Site site);
  uint32_t TryPushErased(const OpDesc& desc, detail::ClosureRef fn, Site site);
  static constexpr uint32_t kNoRoom = UINT32_MAX;
  // Pushes an op that is not held, whatever Redirect says; those that are stay. False: no room, as above.
  bool PushPast(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait = true);
  void Release() noexcept;
  bool of(const Engine& engine) const noexcept;  // whether they are this engine's
  bool closed() const noexcept;                  // whether that engine takes no more ops

 private:
  friend class detail::EngineCore;
  uint32_t PushOrTry(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait);
  detail::EngineCore* core_;  // counted
  detail::HeldOwner* owner_;  // in the core's list of all that may hold ops
};

// Redirect: while it lives, what this thread pushes to `engine` (Push, TryPush and their asynchronous forms; not held ops
// or Operators) goes to `to` instead: how bulk and capture stand in front of an engine. The innermost one counts, but
// one that `yields` (bulk) only where no other is, and only for ops with a placement of their own: those of the default pool
// pay nothing for it. Ends on its thread, in any order; may outlive the engine.
class Redirect {
 public:
  enum class Rank : uint8_t { kFirst, kYields };
  Redirect(Engine& engine, Submitter& to, Rank rank = Rank::kFirst) noexcept;
  ~Redirect();
  Redirect(const Redirect&) = delete;
  Redirect& operator=(const Redirect&) = delete;

  // Where this thread's pushes to `engine` of ops that are placed there go; null: to the engine itself.
  static Submitter* Of(const Engine& engine, const Placement& place) noexcept;

 private:
  friend class Engine;
  detail::EngineCore* const core_;  // names the engine, and is no longer looked at than that; not counted
  Submitter* const to_;
  const Rank rank_;
  Redirect* outer_;
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

  // Stop: workers finish what they are running and are joined; pushes queue up. Start: goes on. Both may be repeated.
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
