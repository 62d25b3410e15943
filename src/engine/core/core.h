// EngineCore: one engine. What it has is kept by its owners, each with its own lock, its own way over a fork and a file of its
// own (slots, gate, epochs, admission, caller_pool, op_chains, pools, threads, watchdog). EngineCore brings them together:
// it has what each op looks at, and the steps that an op goes through:
//   push.cc       validate, take a block, fill it, register          execute.cc   run, settle, release, propagate
//   wait.cc       waits and driving the caller's ops                 drain.cc     WaitAll
//   shutdown.cc   draining and the end                               fork.cc      fork
//   completion.cc asynchronous ops                                   stop_start.cc  stop, start
// Counted: by the Engine handle, each live Var, and each Completion, so that all of these may outlive the engine.
// Lock order: README.md. No lock is held while user code runs, but change_mu_: who wants that is refused inside ops and hooks.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/admission.h"
#include "core/caller_pool.h"
#include "core/device_side.h"
#include "core/epochs.h"
#include "core/gate.h"
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
#include "sched/processor_turns.h"

namespace engine::detail {

class Draft;
class LentRoles;
class Registered;

PolicyChoice ChoiceOf(PolicyStamp stamp);

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
  void PushSync(const OpDesc& desc, ClosureRef fn, Site site);  // the common case of it, for the compiler to narrow
  void PushOperator(const std::shared_ptr<Operator::State>& state, const int* priority, Site site);
  std::shared_ptr<Operator::State> NewOperator(const PushRequest& request);
  void ReleaseHeld(CompletionState* claim);

  // Where an op goes that is pushed by this thread now, and what it is under there.
  struct PoolChoice {
    uint8_t pool = 0;
    uint8_t intra_op = 0;
    uint32_t flags = 0;
  };
  PoolChoice ChoosePool(const Placement& place);
  uint8_t DefaultPoolOf(PolicyStamp stamp) const {
    return stamp.rules().uses_workers ? pools_.default_pool() : kCallerPool;
  }
  // Of a drawn up op (draft.h): its place in the order, and its start if it is ready.
  void StartRecord(ThreadSlot& slot, Draft draft);
  void DropUnregistered(ThreadSlot& slot, OpRecord* op);
  void RecycleRecord(ThreadSlot& slot, OpRecord* op);
  // Members of chains: how many the chain holds then, 0 if somebody needed it meanwhile, and it has been released.
  uint32_t PushChained(const OpDesc& desc, ClosureRef fn, Site site, OpKindId kind, PoolChoice choice, bool may_wait,
                       ChainOwner& owner);
  void PushNode(const OpDesc& desc, ClosureRef fn, Site site, ChainOwner& owner);  // of a run, into its chain
  OpChains& chains() { return chains_; }
  VarCore* NewVar(std::string_view name);
  void DeleteVar(VarCore* var);
  void PushClear(VarRef var, Site site);

  // --- execute.cc
  // Runs the op on this thread and settles it. Returns the successor to run next on this worker, if any. A counted copy of
  // its error goes to `raised`, if given.
  OpRecord* Execute(ThreadSlot& slot, OpRecord* op, Worker* worker, ErrorRecord** raised = nullptr);
  OpRecord* Finish(ThreadSlot& slot, OpRecord* op, ErrorRecord* error, Worker* worker);  // consumes the count
  template <bool kBody>  // whether it is the end of the op's own body
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
  void Post(ThreadSlot& slot, OpRecord* op);  // ready op to its pool, with a wake
  static bool Cancelled(OpRecord* op);
  ErrorRecord* BeforeRun(OpRecord* op);
  void SettlePoison(OpRecord* op, ErrorRecord* error);
  void SetPoison(VarCore* var, ErrorRecord* error);
  void NoteCompleted(ThreadSlot& slot, uint8_t epoch);
  void NoteError(ErrorRecord* root) { errors_.Add(root); }
  // relaxed: a failing op raises it before it releases its Vars, and that order carries it.
  bool poisoned() const { return poisoned_.load(std::memory_order_relaxed) != 0; }
  bool tracing() const { return tracing_.load(std::memory_order_relaxed); }
  static RunContext MakeContext(EngineCore* core, OpRecord* op, int worker) { return {core, op, worker}; }
  // --- internal_ops.cc
  Draft NewInternal(ThreadSlot& slot, VarRef var, AccessMode mode, OpKindId kind, Site site);
  void RegisterInternal(ThreadSlot& slot, Draft draft);
  void EndWait(Pass& pass, OpRecord* op);
  void ClearPoison(Pass& pass, OpRecord* op);  // of its Var
  static Access* FindAccess(OpRecord* op, const VarCore* var);
  static ErrorRecord* FirstPoison(OpRecord* op);
  static OpRecord* OpOf(const RunContext& ctx) { return ctx.op_; }

  // --- wait.cc
  enum class WaitKind { kRead, kWrite };
  void RefuseWaitInHook() const;
  bool Wait(VarRef var, WaitKind kind, Clock::time_point deadline, Site site);
  void AwaitInside(std::atomic<uint32_t>& word);  // until it is kDone; inside an op
  void NoteIdle() override;                       // waiters for room and drains look again
  // Between Stop and Start no push runs an op: the op may wait for a pool that is stopped, and the thread that pushes may be the
  // one that will start it.
  bool Stopped() const { return pools_.stopped(); }
  // Runs one op of the caller pool on this thread, unless it is inside an op, of any engine. `epoch`: the parity that it was pushed in.
  bool DriveOne(uint8_t* epoch = nullptr);
  // Waits until `word` is kDone, driving and sleeping; false at the deadline. `inside`: what a wait inside an op has lent.
  bool Park(std::atomic<uint32_t>& word, Clock::time_point deadline, LentRoles* inside);
  void CheckVar(const VarCore* var, const char* what, const char* op, Site site) const;

  // --- drain.cc
  bool WaitAll(Clock::time_point deadline, bool report);
  bool AllOverSoon(Clock::time_point deadline);
  bool WaitForEpochs(Clock::time_point deadline);
  bool PollBusyFaster();  // hurries them for who waits; false: none is busy
  void DeliverDrainNote(Worker& worker, const OpRecord* next) override;

  // --- completion.cc
  CompletionState* NewCompletion(ThreadSlot& slot, OpRecord* op, uint32_t called = 0);  // with one count
  static void NoteReturned(const Completion& ours);                                     // the body has returned
  Completion NewCompletionOf(ThreadSlot& slot, OpRecord* op) { return Completion(NewCompletion(slot, op)); }
  Completion Defer(OpRecord* op);
  OpRecord* EndDeferredBody(ThreadSlot& slot, OpRecord* op, ErrorRecord* error);
  void FinishAsync(OpRecord* op, std::exception_ptr cause);
  void DropCompletion(CompletionState* state);  // one count
  void ReleaseAllHeld();
  void FailPendingCompletions(const std::exception_ptr& cause);
  CompletionState* PendingCompletions(bool held);
  void ReportLate(const char* op, Site site, std::exception_ptr cause);  // an error that no Var can carry

  // --- device/
  DeviceSide& devices() const { return *devices_; }
  // relaxed: whoever runs an op for a device is behind the making of its pool.
  void NoteDevices() { has_devices_.store(true, std::memory_order_relaxed); }
  bool HostWaits() const {  // for everything, or for room
    return epochs_.AnyAwaited() || admission_.Waiters();
  }

  // --- owners of what it does not keep itself
  // By way of the core where the push path asks, and what is rare out of line: an owner's address in a register is an
  // instruction more for each push.
  ThreadSlot& Slot() {  // of the calling thread
    if (t_engine_id == slots_.id()) [[likely]]
      return *t_slot;
    return FindSlot();
  }
  bool MayPush() const { return phase() == Phase::kOpen || Admission::MayPushLate(*this); }
  void CheckMayPush() const {
    if (!MayPush()) [[unlikely]]
      Admission::Refuse();
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
  ProcessorTurns& turns() { return turns_; }

  // --- core.cc
  void StartLostThreads();  // in the child of a fork, on its first use

  // --- stop_start.cc
  bool OnOwnThread() const;  // also inside an op or a hook of ours on any thread
  void Stop() EXCLUDES(change_mu_);
  void Start() EXCLUDES(change_mu_);

  // --- shutdown.cc
  void Shutdown() EXCLUDES(change_mu_);
  void ShutdownOrGiveUp() noexcept;  // of a destructor
  void ShutdownElsewhere() noexcept;
  void FreeVar(VarCore* var);
  static Var AdoptVar(VarCore* counted);
  static const ScopePtr& ScopeOf(const CancelScope& scope) { return scope.cancelled_; }
  void EnlistForFork();
  void DelistForFork();
  void Retain() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Release();
  // Keeps the core while a call is inside it: an op that the call drives may destroy the engine.
  struct KeepAlive {
    explicit KeepAlive(EngineCore* held) : core(held) { core->Retain(); }
    ~KeepAlive() { core->Release(); }
    KeepAlive(const KeepAlive&) = delete;
    EngineCore* core;
  };
  void ReleaseVarCore(VarCore* var);  // its deletion has completed: drops the engine's count

  // --- fork.cc, describe_pending.cc
  std::string DescribePending();
  void BeforeFork();
  void AfterForkInParent();
  void AfterForkInChild();

  EngineStats stats();
  const EngineOptions& options() const { return options_; }
  Phase phase() const { return admission_.phase(); }
  bool closed() const { return phase() == Phase::kClosed; }
  // What a push of this thread is stamped with. relaxed: a policy publishes nothing.
  PolicyStamp Stamp() const {
    if (t_scopes.policy) [[unlikely]]
      return ScopedStamp();
    return policy_.load(std::memory_order_relaxed);
  }
  PolicyStamp StampOf(const PolicyChoice& choice) const;  // checked
  void SetPolicy(const PolicyChoice& choice);
  void StartTrace();
  std::vector<TraceEvent> StopTrace();
  void TraceRun(const char* name, const char* lane, Clock::time_point begin) noexcept;
  void TraceSkip(ThreadSlot& slot, OpRecord* op, Worker* worker) noexcept;

 private:
  ~EngineCore();

  ThreadSlot& FindSlot();
  // policy.cc, push.cc
  PolicyStamp ScopedStamp() const;
  void* TakeBlock(ThreadSlot& slot, size_t bytes, size_t* cls, bool may_wait);
  void MakeTemplate(Operator::State& state);
  void PushTemplate(Operator::State& state, int priority, Site site);
  PoolChoice ChoosePool() const;
  Draft NewRecord(ThreadSlot& slot, const OpDesc& desc, ClosureRef fn, Site site, uint32_t flags, PoolChoice choice,
                  bool may_wait);
  uint32_t ListInline(ThreadSlot* slot, OpRecord* op, const OpDesc& desc) const;
  static uint32_t ListOnce(ThreadSlot* slot, OpRecord* op);
  uint32_t ListAccesses(OpRecord* op, const OpDesc& desc) const;
  static void AddExtras(OpRecord* op, const OpDesc& desc, uint32_t flags, const ScopePtr* scope);
  Registered RegisterAndStart(ThreadSlot& slot, Draft draft, uint32_t bias);
  void RunAtPush(ThreadSlot& slot, OpRecord* op);
  void DriveLeftOver();
  [[noreturn]] void RefuseDeleted(const OpRecord* op, const char* var_name);

  // push.cc: members of chains
  uint32_t AppendInline(ThreadSlot& slot, Draft& draft, OpChain& chain, ChainOwner& owner, bool open);
  OpChain* OpenChain(ThreadSlot& slot, Draft& draft, ChainOwner& owner, uint32_t* count);
  // execute.cc
  OpRecord* ExecuteWatched(ThreadSlot& slot, OpRecord* op, Worker* worker, ErrorRecord** raised);
  static void PrefetchFollower(OpRecord* op);
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
  void GiveUp(const std::string& why);
  void JoinEverything();

  // fork.cc
  void PoisonPendingAfterFork();

  const EngineOptions options_;
  std::atomic<uint32_t> refs_{1};

  // Read-mostly, looked at by every op.
  // relaxed loads everywhere: a failing op raises it before it releases its Vars, and that order carries it.
  std::atomic<uint32_t> poisoned_{0};  // Vars that carry an error
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
  std::atomic<bool> threads_lost_{false};  // by a fork; made anew on first use
  // Held by Stop, Start and Shutdown until they return, so that each finds the engine running, stopped or ended.
  Mutex change_mu_;

  OpChains chains_{*this};
  Watchdog watchdog_{*this};

  ProcessorTurns turns_;

  std::atomic<Clock::time_point> trace_start_{};  // relaxed: written before tracing_ is released
};

inline void EngineCore::RecycleRecord(ThreadSlot& slot, OpRecord* op) {
  // 0, which wraps: embedded; from kLargeClass on: large.
  if (static_cast<uint8_t>(op->extra.size_class - 1) >= kClasses) [[unlikely]]
    return RecycleOther(op);
  slot.cache.Return(op->extra.size_class, op);
}

inline void ProductionEnv::RecycleRecord(Pass& pass, OpRecord* op) { pass.slot->core->RecycleRecord(*pass.slot, op); }

}  // namespace engine::detail

namespace engine {

struct Operator::State {
  detail::EngineCore* core;
  OpDesc desc;                              // without its sets, which point into the vectors below
  std::vector<Var> reads, updates, writes;  // keeps the Vars alive
  std::optional<CancelScope> scope;
  uint32_t flags;
  const detail::ClosureType* type = nullptr;
  std::unique_ptr<std::byte[]> closure;
  // relaxed: each push is made through a handle that is dropped later, and that order carries it.
  std::atomic<uint64_t> pushed{0};
  std::atomic<int64_t> left{0};  // minus those that have ended; once the last handle is gone, how many have not
  // An op's block, as each push needs it, of so many bytes; 0: pushed like any op.
  static constexpr size_t kMostAccesses = 16;
  size_t bytes = 0;
  alignas(64) std::byte block[sizeof(detail::OpRecord) + kMostAccesses * sizeof(detail::Access) + sizeof(void*)];
  ~State();
  void End(int64_t n);
};

}  // namespace engine
