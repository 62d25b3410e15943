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
#include "engine/policy.h"
#include "engine/spi/held_ops.h"
#include "engine/submitter.h"
#include "engine/timeout.h"
#include "engine/trace.h"
#include "engine/var.h"

namespace engine {

template <class T>
class Data;

// A named set of threads beside the default CPU pool.
struct PoolOptions {
  std::string name;
  int threads = 1;
  std::vector<int> cpus = {};  // affinity: thread i runs on cpus[i % size]; empty: anywhere
  // Hooks; see EngineOptions for what they may do.
  std::function<void(int worker)> on_start = {};  // runs on each worker before its first op
  std::function<void(int worker)> on_end = {};    // runs on each worker after its last op, also where on_start threw
};

// Durations: any that nanoseconds cannot hold, as milliseconds::max(), is for ever.
// Hooks (on_start, on_end, on_stall, on_unobserved): one that throws is reported on stderr, and all goes on. Each may push;
// after the shutdown that is refused, like any push. Stop, Start and Shutdown inside a hook of the same engine are refused
// (UsageError), because they would wait for the hook; an engine destroyed there is shut down by another thread. A wait
// that has to sleep is refused in on_start and on_end: it may be for their own worker. No hook is called once the
// engine's destructor has returned, unless another thread finishes the shutdown: then until that is over.
struct EngineOptions {
  int workers = -1;            // of the default pool; -1: one a core; 0: ops run inside waits, bounded pushes and drain
  int intra_op_threads = -1;   // of a pool's ParallelFor arena; -1: as many as the pool has workers
  int io_threads = 4;          // of the I/O pool, made on first use
  std::vector<int> cpus = {};  // affinity of the default pool
  std::function<void(int worker)> on_start = {};  // hooks of the default pool
  std::function<void(int worker)> on_end = {};
  std::vector<PoolOptions> pools = {};
  // Device i is Gpu(i). Empty: the CUDA devices of the machine, each made on first use.
  std::vector<std::shared_ptr<Device>> devices = {};
  int streams_per_device = 4;  // that ops without a lane of their own are spread over; 1: everything in push order
  std::string thread_name = "engine";  // prefix of the threads' names, at most 9 characters are shown

  size_t max_pending = 16384;  // soft: an outside push waits while more are pending and any can make progress
  size_t hard_max_pending = size_t{1} << 26;  // any push beyond throws BackPressureError
  int max_spare_threads = 64;                 // stand-ins for workers whose op waits; beyond it such a wait throws
  // Longest idle spin of a worker or waiter before it sleeps; 0: none. More than a second counts as a second.
  std::chrono::microseconds spin{20};
  // At shutdown, for completions that never come; then ShutdownError, once their bodies have returned.
  std::chrono::milliseconds drain_timeout{30000};
  std::chrono::milliseconds stall_timeout{0};  // watchdog: report after this long without progress; 0: no watchdog
  std::function<void(std::string_view report)> on_stall = {};    // default: writes to stderr
  std::function<void(const OpError& error)> on_unobserved = {};  // default: writes to stderr
  Policy policy = Policy::kThreaded;
  PolicyOptions policy_options = {};
  int start_step = 100;  // of cost_model, where its own parameters do not say
  int stop_step = 200;

  // Defaults overridden by ENGINE_WORKERS, ENGINE_IO_THREADS, ENGINE_MAX_PENDING, ENGINE_SPIN_US, ENGINE_POLICY,
  // ENGINE_STALL_TIMEOUT_MS, START_NODE_STATS_STEP, STOP_NODE_STATS_STEP (DeepRec's names). The only place of the library that reads the environment. Throws UsageError.
  static EngineOptions FromEnv();
};

// Counters since the engine was made; summed over threads, so a snapshot is not one instant.
struct EngineStats {
  uint64_t pushed = 0;            // ops accepted, internal ones (waits, deletions) left out
  uint64_t completed = 0;         // ops settled: ran, failed, skipped or cancelled
  uint64_t skipped = 0;           // of these, skipped because of an error or a cancel
  uint64_t inlined = 0;           // run straight after the op that released them, without a queue
  uint64_t dispatches = 0;        // runs of ops: a bulk is one, unless it was split; any other op is one
  uint64_t split_looks = 0;       // at members of bulks, where one before them waits for an op outside
  uint64_t stolen = 0;            // taken from another worker
  uint64_t wakeups = 0;           // futex wakes of workers
  uint64_t sleeps = 0;            // times a worker went to sleep
  uint64_t spare_threads = 0;     // stand-in threads alive
  uint64_t slab_bytes = 0;        // memory taken for ops, groups and Vars; returned when the engine goes
  uint64_t slab_allocations = 0;  // times that memory was taken from the system
  uint64_t unseen_errors = 0;
  uint64_t backpressure_waits = 0;
};

// What was asked of the devices by the engine itself, since it was made. Bodies ask for more.
struct DeviceStats {
  uint64_t issued = 0;   // ops whose order is on a device, and whose Vars have been released
  uint64_t retired = 0;  // of these, known to have ended
  uint64_t records = 0;
  uint64_t waits = 0;         // of one stream for another
  uint64_t waits_elided = 0;  // that were implied by what the stream is behind already
  uint64_t events = 0;        // made; they are used again
  uint64_t queries = 0;
  uint64_t host_waits = 0;  // times that a host op or a wait had to be put aside until a device got there
  uint64_t late_looks = 0;  // of these, noticed only as a timer ran out: none, but by chance
  uint64_t host_syncs = 0;  // where memory ran out; nowhere else
  uint64_t lanes = 0;
  uint64_t graph_captures = 0;  // of bulks, see GraphKey
  uint64_t graph_instantiations = 0;
  uint64_t graph_updates = 0;  // nodes, or whole executables, that got new params
  uint64_t graph_launches = 0;
};

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
