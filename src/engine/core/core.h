// EngineCore: one engine. It has the fields that every op looks at, and the steps that an op goes through:
//   push.cc        validate, take a block, fill it, register     execute.cc      run, settle, release, propagate
//   wait.cc        wait for a Var, run the caller pool's ops     drain.cc        WaitAll
//   shutdown.cc    drain and end                                 fork.cc         fork
//   completion.cc  asynchronous ops                              stop_start.cc   Stop and Start
// What these steps share belongs to owners, each with its own file, its own lock and its own AfterForkInChild: slots,
// gate, epochs, admission, caller_pool, op_chains, pools, threads, watchdog. The recorder of traces has no owner: it is
// fields of this class and functions of trace.cc.
//
// Threads:   any.
// Ownership: counted by the Engine handle, each live Var and each Completion, so that these may outlive the engine.
// Order:     README.md has the order of locks. No lock but change_mu_ is taken while user code runs; the calls that
//            take change_mu_ are refused inside ops and hooks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/admission.h"
#include "core/caller_pool.h"
#include "core/device_side.h"
#include "core/epochs.h"
#include "core/gate.h"
#include "core/kernel.h"
#include "core/op_chains.h"
#include "core/pools.h"
#include "core/push_scopes.h"
#include "core/slots.h"
#include "core/threads.h"
#include "core/watchdog.h"
#include "engine/trace.h"
#include "order/error_record.h"
#include "order/op_kind.h"
#include "order/op_record.h"
#include "sched/pool.h"

namespace engine::detail {

class Draft;
class LentRoles;
class Registered;

PolicyChoice ChoiceOf(PolicyStamp stamp);
// Fills in the defaults that depend on the machine. Throws UsageError that says what is allowed.
EngineOptions CheckedOptions(EngineOptions options);

class EngineCore final : public PoolHost {
 public:
  explicit EngineCore(EngineOptions options);

  // --- push.cc
  struct PushRequest {
    const OpDesc* desc;
    ClosureRef closure;
    Site site;
    uint32_t flags = 0;  // kAsyncOp
    OpKindId kind{};
    bool may_wait = true;  // false: TryPush
  };
  bool Push(const PushRequest& request);                        // false: would have to wait
  CompletionState* PushHeld(const PushRequest& request);        // its claim, counted
  void PushSync(const OpDesc& desc, ClosureRef fn, Site site);  // of a synchronous op; apart, so that it inlines well
  void PushOperator(const std::shared_ptr<Operator::State>& state, const int* priority, Site site);
  std::shared_ptr<Operator::State> NewOperator(const PushRequest& request);
  void ReleaseHeld(CompletionState* claim);

  // The pool of an op that this thread pushes now, and what the thread's policy adds to the op.
  struct PoolChoice {
    uint8_t pool = 0;
    uint8_t intra_op = 0;
    uint32_t flags = 0;
  };
  PoolChoice ChoosePool(const Placement& place);
  uint8_t DefaultPoolOf(PolicyStamp stamp) const { return stamp.at_push ? kCallerPool : pools_.default_pool(); }
  // Gives the op its place in the order, and starts it if it is ready.
  void StartRecord(ThreadSlot& slot, Draft draft);
  // The same for an op that has parts: internal ops that take their places together with it. `accesses`: of all of them,
  // as Protocol::RegisterTogether needs them. If it throws, the parts are still the caller's.
  void StartTogether(ThreadSlot& slot, Draft draft, std::span<Access* const> accesses);
  void DropUnregistered(ThreadSlot& slot, OpRecord* op);
  void RecycleRecord(ThreadSlot& slot, OpRecord* op);
  // Pushes a member of a chain (op_chain.h). Returns how many ops the chain holds now; 0: the chain has been released.
  uint32_t PushChained(const OpDesc& desc, ClosureRef fn, Site site, OpKindId kind, PoolChoice choice, bool may_wait,
                       ChainOwner& owner);
  void PushNode(const OpDesc& desc, ClosureRef fn, Site site, ChainOwner& owner);  // a node of a run, into its chain
  OpChains& chains() { return chains_; }
  VarCore* NewVar(std::string_view name, void* tag = nullptr);
  void DeleteVar(VarCore* var);
  void PushClear(VarRef var, Site site);

  // --- execute.cc
  // Runs the op on this thread and settles it. Returns the successor to run next on this worker, or null. `raised`, if
  // given, gets the op's error, counted.
  OpRecord* Execute(ThreadSlot& slot, OpRecord* op, Worker* worker, ErrorRecord** raised = nullptr);
  OpRecord* Finish(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker);  // consumes the count
  template <bool kBody>  // true: called at the end of the op's body
  OpRecord* FinishInline(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker);
  OpRecord* CountEnd(ThreadSlot& slot, Pass& pass, uint8_t epoch, Worker* worker);
  OpRecord* CountEndInline(ThreadSlot& slot, Pass& pass, uint8_t epoch, Worker* worker);
  OpRecord* Dispatch(Pass& pass, Worker* worker, const OpRecord* keep = nullptr);
  ENGINE_INLINE void CompleteInline(Pass& pass, OpRecord* op) {
    // Before the release: the block may outlive its op, pinned until the next push on its Var. relaxed: the watchdog's
    // look is ordered by the push gate.
    CheckState(op, Bit(OpState::kRunning) | Bit(OpState::kAsync), "an op ends that does not run");
    op->extra.state.store(OpState::kFree, std::memory_order_relaxed);
    if (!Protocol::CompleteSoleWrite(pass, op)) Protocol::Complete(pass, op);
  }
  void Complete(Pass& pass, OpRecord* op);
  // Puts a ready op into its pool, and wakes a worker if none looks.
  void Post(ThreadSlot& slot, OpRecord* op, Beside beside = Beside::kNo);
  static bool Cancelled(OpRecord* op);
  static void DropScope(OpRecord* op);
  static void LeaveBody(ThreadSlot& slot, OpRecord* op);
  void DestroyClosure(OpRecord* op);
  ErrorRecord* BeforeRun(OpRecord* op);
  static ErrorRecord* GaveUpBefore(const char* name, Site site);
  void SettlePoison(OpRecord* op, ErrorRecord* error);
  void SetPoison(VarCore* var, ErrorRecord* error);
  void NoteCompleted(ThreadSlot& slot, uint8_t epoch);
  void NoteError(ErrorRecord* root) { errors_.Add(root); }
  // relaxed: a failing op adds to it before it releases its Vars; whoever is granted such a Var sees that.
  bool poisoned() const { return poisoned_.load(std::memory_order_relaxed) != 0; }
  bool gave_up() const { return gave_up_.load(std::memory_order_relaxed); }
  bool tracing() const { return tracing_.load(std::memory_order_relaxed); }
  static RunContext MakeContext(EngineCore* core, OpRecord* op, int worker) { return {core, op, worker}; }
  // --- internal_ops.cc
  Draft NewInternal(ThreadSlot& slot, VarRef var, AccessMode mode, OpKindId kind, Site site);
  void RegisterInternal(ThreadSlot& slot, Draft draft);
  static Access* FindAccess(OpRecord* op, const VarCore* var);
  static ErrorRecord* FirstPoison(OpRecord* op);
  static OpRecord* OpOf(const RunContext& ctx) { return ctx.op_; }

  // --- wait.cc
  enum class WaitKind { kRead, kWrite, kLook };  // kLook: as kRead, but the thread neither sleeps nor runs an op
  void RefuseWaitInHook() const;
  bool Wait(VarRef var, WaitKind kind, Clock::time_point deadline, Site site);
  bool SettledNow(VarRef var, Site site) const;
  void AwaitInside(std::atomic<uint32_t>& word);  // inside an op: waits until the word is kDone
  void NoteIssuerIdle(Worker& worker) override { devices_->NoteIdle(worker); }
  void NoteIdle() override;  // has WaitAll and pushes that wait for room look again
  // Between Stop and Start no push runs an op: the op may wait for a pool that is stopped, and the thread that pushes
  // may be the one that will start it.
  bool Stopped() const { return pools_.stopped(); }
  // Runs one op of the caller pool on this thread. Does nothing inside an op, of whichever engine. `epoch` gets the
  // op's epoch parity, and WaitAll is notified of the op's end by the next call, or by DeliverDrainNote.
  bool DriveOne(uint8_t* epoch = nullptr);
  // Around ops that no worker's state tells of (ThreadSlot::own_runs). DriveOne begins, and ends if it finds no op; so End follows
  // where a driver leaves.
  static void BeginOwnRun(ThreadSlot& slot);
  void EndOwnRun(ThreadSlot& slot);
  // Waits until `word` is kDone; runs ops of the caller pool meanwhile, or sleeps. False at the deadline. `inside`: the
  // roles that a wait inside an op has lent; null outside.
  bool Park(std::atomic<uint32_t>& word, Clock::time_point deadline, LentRoles* inside);
  // UsageError for a null Var, and for one of another engine: of an op that names it among its `what`, or of a call.
  void CheckVar(const VarCore* var, const char* what, const char* op, Site site) const;
  void CheckVar(const VarCore* var, const char* call, Site site) const;

  // --- drain.cc
  bool WaitAll(Clock::time_point deadline, bool report);
  bool AllOverSoon(Clock::time_point deadline);
  // `inside`: the roles lent by the op that waits; null outside any op.
  bool WaitForEpochs(Clock::time_point deadline, LentRoles* inside);
  void AskDevices();      // asks the retirement threads for one look at what has ended
  bool PollBusyFaster();  // has devices polled at the pace of waiters; false: none is busy
  void DeliverDrainNote(ThreadSlot& slot, const OpRecord* next) override;

  // --- completion.cc
  CompletionState* NewCompletion(ThreadSlot& slot, OpRecord* op, uint32_t called = 0);  // with one count
  static void NoteReturned(const Completion& ours);       // called when the op's body has returned
  Completion StartAsync(ThreadSlot& slot, OpRecord* op);  // called before the body of an asynchronous op
  Completion Defer(OpRecord* op);
  OpRecord* EndDeferredBody(ThreadSlot& slot, OpRecord* op, ErrorRecord* error);
  void FinishAsync(OpRecord* op, std::exception_ptr cause);
  void DropCompletion(CompletionState* state);  // drops one count
  void ReleaseAllHeld();
  void FailPendingCompletions(const std::exception_ptr& cause);
  void ForPendingCompletions(bool held, const std::function<void(CompletionState*)>& visit);
  void ReportLate(const char* op, Site site, std::exception_ptr cause);  // an error that no Var can carry

  // --- device/
  DeviceSide& devices() const { return *devices_; }
  // relaxed: an op for a device is pushed after its pool was made, and the pool is made after this call.
  void NoteDevices() { has_devices_.store(true, std::memory_order_relaxed); }
  bool HostWaits() const {  // in WaitAll, or in a push for room
    return epochs_.AnyAwaited() || admission_.Waiters();
  }

  // --- the owners
  // The slot of the calling thread. Here and not in Slots, because the address of an owner in a register costs each
  // push one instruction; FindSlot is out of line for the same reason.
  ThreadSlot& Slot() {
    if (t_engine_id == slots_.id()) [[likely]]
      return *t_slot;
    return FindSlot();
  }
  bool MayPush() const { return phase() == Phase::kOpen || Admission::MayPushLate(*this); }
  void CheckMayPush(const char* op, Site site) const {
    if (!MayPush()) [[unlikely]]
      Admission::Refuse(OpAt(op, site));
  }
  PushGate& gate() { return gate_; }
  Slots& slots() { return slots_; }
  Admission& admission() { return admission_; }
  Pools& pools() { return pools_; }
  class Pool& pool(uint8_t index) const { return pools_.at(index); }
  Threads& threads() { return threads_; }
  CallerPool& caller_pool() { return caller_pool_; }
  Watchdog& watchdog() { return watchdog_; }
  Arena& ops() { return ops_; }

  // --- core.cc
  void StartLostThreads();  // in a fork's child, on its first use of the engine

  // --- stop_start.cc
  bool OnOwnThread() const;  // true also inside an op or a hook of this engine, on whichever thread
  void Stop() EXCLUDES(change_mu_);
  void Start() EXCLUDES(change_mu_);

  // --- shutdown.cc
  void Shutdown() EXCLUDES(change_mu_);
  void ShutdownOrGiveUp() noexcept;  // for destructors
  void ShutdownElsewhere() noexcept;
  void FreeVar(VarCore* var);
  static Var AdoptVar(VarCore* counted);
  static const ScopePtr& ScopeOf(const CancelScope& scope) { return scope.cancelled_; }
  void EnlistForFork();
  void DelistForFork();
  void Retain() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Release();
  // Keeps the core alive during a call: an op that the calling thread runs meanwhile may destroy the engine.
  struct KeepAlive {
    explicit KeepAlive(EngineCore* counted) : core(counted) { core->Retain(); }
    ~KeepAlive() { core->Release(); }
    KeepAlive(const KeepAlive&) = delete;
    EngineCore* core;
  };
  void ReleaseVarCore(VarCore* var);  // called when the Var's deletion has completed: drops the engine's count

  // --- fork.cc, describe_pending.cc
  std::string DescribePending();
  void BeforeFork();
  void AfterForkInParent();
  void AfterForkInChild();

  EngineStats stats();
  const EngineOptions& options() const { return options_; }
  Phase phase() const { return admission_.phase(); }
  bool closed() const { return phase() == Phase::kClosed; }
  // The policy of a push of this thread. relaxed: a policy publishes nothing.
  PolicyStamp Stamp() const {
    if (t_scopes.policy) [[unlikely]]
      return ScopedStamp();
    return policy_.load(std::memory_order_relaxed);
  }
  PolicyStamp StampOf(const PolicyChoice& choice) const;  // throws if the choice is not allowed
  void SetPolicy(const PolicyChoice& choice);
  void StartTrace() EXCLUDES(trace_mu_);
  Trace StopTrace() EXCLUDES(trace_mu_);
  void TracePush(OpRecord* op) noexcept;
  void TraceSettled(const OpRecord* op) noexcept;  // the Completion of an asynchronous op was called
  void AddTrace(TraceRecord record, Clock::time_point begin, const std::vector<TraceTouch>& touches) noexcept;

 private:
  ~EngineCore();

  Trace EndTrace() REQUIRES(trace_mu_);
  ThreadSlot& FindSlot();
  // policy.cc, push.cc
  PolicyStamp ScopedStamp() const;
  void* TakeBlock(ThreadSlot& slot, size_t bytes, size_t* cls, bool may_wait);
  void MakeTemplate(Operator::State& state);
  void PushTemplate(Operator::State& state, int priority, Site site);
  void PushWithoutTemplate(Operator::State& state, int priority, Site site);
  PoolChoice ChoosePool() const;
  Draft NewRecord(ThreadSlot& slot, const OpDesc& desc, ClosureRef fn, Site site, uint32_t flags, PoolChoice choice,
                  bool may_wait);
  uint32_t ListInline(ThreadSlot* slot, OpRecord* op, const OpDesc& desc) const;
  static uint32_t ListOnce(ThreadSlot* slot, OpRecord* op);
  uint32_t ListAccesses(OpRecord* op, const OpDesc& desc) const;
  static void AddExtras(OpRecord* op, const OpDesc& desc, uint32_t flags, const ScopePtr* scope);
  Registered RegisterAndStart(ThreadSlot& slot, Draft&& draft, uint32_t bias);
  template <class RegisterIt>
  Registered RegisterBy(ThreadSlot& slot, Draft&& draft, RegisterIt register_it);
  void RunAtPush(ThreadSlot& slot, OpRecord* op);
  void RunCallerPool();
  [[noreturn]] void RefuseDeleted(const OpRecord* op, const char* var_name);

  // push.cc: members of chains
  uint32_t AppendInline(ThreadSlot& slot, Draft& draft, OpChain& chain, ChainOwner& owner, bool open);
  OpChain* OpenChain(ThreadSlot& slot, Draft& draft, ChainOwner& owner, uint32_t* count);
  // execute.cc
  OpRecord* ExecuteWatched(ThreadSlot& slot, OpRecord* op, Worker* worker, ErrorRecord** raised);
  void RunInternal(Pass& pass, OpRecord* op);  // internal_ops.cc
  void RecycleOther(OpRecord* op);             // a deletion, or a block from operator new

  // wait.cc
  ErrorRecord* TakeError(OpRecord* op);
  bool Abandon(OpRecord* op);

  // stop_start.cc
  void RefuseInside(const char* call) const;
  void JoinRoles();

  // shutdown.cc
  void Unobserved(const OpError& error);
  void ReportUnseen();
  bool SettleAll(Clock::time_point deadline);
  bool Drain();
  void GiveUp(const char* why) noexcept;
  void JoinEverything();

  // fork.cc
  void ForgetPoisonAfterFork(VarCore* var);
  std::vector<VarCore*> PoisonPendingAfterFork();  // returns the deleted Vars, which are to be released

  const EngineOptions options_;
  std::atomic<uint32_t> refs_{1};

  // Looked at by every op, and hardly ever written. relaxed loads everywhere: see poisoned().
  std::atomic<uint32_t> poisoned_{0};  // how many Vars carry an error; and one more if the shutdown gave up
  // No op starts any more. relaxed: an op that starts at this very moment may run.
  std::atomic<bool> gave_up_{false};
  std::atomic<bool> tracing_{false};
  std::atomic<bool> has_devices_{false};  // sticky; set before a device op can be pushed
  std::atomic<PolicyStamp> policy_{PolicyStamp{}};
  PushGate gate_;
  Admission admission_{*this};

  alignas(64) Arena ops_;
  Arena vars_;
  Arena completions_;
  ErrorLedger errors_;

  Slots slots_{*this, ops_, vars_, completions_};
  Epochs epochs_{slots_};
  CallerPool caller_pool_{*this, options_.workers == 0};

  std::unique_ptr<DeviceSide> devices_;

  Threads threads_{*this};
  Pools pools_{*this};
  std::atomic<bool> threads_lost_{false};  // the threads are a fork's parent's; the first use makes new ones
  // Stop, Start and Shutdown take it until they return, so that each finds the engine running, stopped or ended.
  Mutex change_mu_;
  Mutex trace_mu_;  // one starts or ends a trace at a time. Renewed in a fork's child

  OpChains chains_{*this};
  Watchdog watchdog_{*this};

  std::atomic<Clock::time_point> trace_start_{};  // relaxed: written before tracing_ is released
};

inline void EngineCore::RecycleRecord(ThreadSlot& slot, OpRecord* op) {
  // Size class 0 (a deletion, which lies in its Var's block) wraps around; from kLargeClass on a block is large.
  if (static_cast<uint8_t>(op->extra.size_class - 1) >= kClasses) [[unlikely]]
    return RecycleOther(op);
  slot.cache.Return(op->extra.size_class, op);
}

inline void ProductionEnv::RecycleRecord(Pass& pass, OpRecord* op) { pass.slot->core->RecycleRecord(*pass.slot, op); }

}  // namespace engine::detail

namespace engine {

struct Operator::State {
  detail::EngineCore* core;
  OpDesc desc;                              // its sets and its scope are those below
  std::vector<Var> reads, updates, writes;  // keeps the Vars alive
  std::optional<CancelScope> scope;
  uint32_t flags;
  std::optional<detail::Kernel> body;
  // relaxed: each push is made through a handle that is dropped after it; the drop carries the count.
  std::atomic<uint64_t> pushed{0};
  std::atomic<int64_t> left{0};  // minus the pushes that have ended; after the last handle, how many have not ended
  // The block that each push copies, and its size; 0: the operator is pushed like any op.
  static constexpr size_t kMostAccesses = 16;
  size_t bytes = 0;
  alignas(64) std::byte block[sizeof(detail::OpRecord) + kMostAccesses * sizeof(detail::Access) + sizeof(void*)];
  void End(int64_t n);
};

}  // namespace engine
