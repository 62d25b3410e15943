// World: one random program while it runs: an engine, its Vars, the threads that use it, and what each op does.
// Afterwards the checks look at its History.
//
// Each op notes the version of every Var that it sees or makes. It also reads and writes one value for each Var, which
// only the engine's order guards. A skipped op notes its place in the order in the destructor of its closure.
//
// Threads:   one thread calls Run; bodies and closures call the other methods on any thread.
// Ownership: the World owns the engine, all records, and all handles that outlive their threads.
#pragma once

#include <unistd.h>

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "completer.h"
#include "engine/bulk.h"
#include "engine/comm.h"
#include "engine/device/device_memory.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/spi/held_ops.h"
#include "engine/stage.h"
#include "error_log.h"
#include "noise.h"
#include "shape.h"

namespace engine::oracle {

class World {
 public:
  World(const Shape& shape, uint64_t seed);
  ~World();
  World(const World&) = delete;

  void Run();
  History TakeHistory();
  ErrorLog& log() { return log_; }
  // Says where the engine is now, for a report of a hang.
  std::string DescribePending() const;
  int forks() const { return forks_; }
  pid_t child() const { return child_; }  // of a fork, while it is waited for; 0: none

  // --- what closures call

  void SyncBody(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx);
  void AsyncBody(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx, Completion done);
  void DeviceBody(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx);
  void ClosureDestroyed(OpRecord& op, const std::vector<Var>& vars);

 private:
  static constexpr uint32_t kMaxVars = 20000;
  static constexpr uint32_t kSlots = 4;
  static constexpr uint32_t kNodeRoots = 10'000'000;  // the roots of nodes start here
  static constexpr int kMaxForks = 5;

  struct KeptRun {
    engine::Run run;
    OpRecord* op;
    Var output = {};  // of the run's output, if it has one
  };
  // What a thread of the program owns: its records and its handles.
  struct Pusher {
    uint64_t number = 0;
    uint32_t pushed = 0;
    std::deque<OpRecord> ops;
    std::vector<ClearRecord> clears;
    std::vector<WaitRecord> waits;
    std::deque<HeldOp> held;
    std::shared_ptr<HeldOps> held_ops;
    std::deque<KeptRun> runs;
    CancelScope never;
    bool in_destructor = false;  // of a closure, which may be inside an op or not
  };
  // The Vars of an op: as its push names them, and each one once.
  struct Sets {
    std::vector<Var> reads, updates, writes, by_use;
  };
  // A Var that is deleted now and then and replaced by a new one.
  struct Slot {
    std::mutex mu;
    Var var;
    uint32_t index = 0;
  };
  struct Scope {
    CancelScope scope;
    std::atomic<uint64_t> begin{kNever}, end{kNever};  // ticks; the pusher that sets `begin` may cancel
  };
  struct PlanInfo {
    Plan plan;
    std::vector<NodeRecord> nodes;  // what they are before a run
    std::vector<Use> uses;
    size_t observer = 0;
    size_t maker = SIZE_MAX;  // the node that makes the plan's output
  };
  // How an op is pushed, and which Vars it may have.
  struct Want {
    int depth = 0;
    bool apart = false;               // only Vars for which bodies of other ops may wait
    bool wide = true;                 // it may have very many Vars
    bool deleted = true;              // it may name Vars that are deleted at the same time
    const KeptRun* behind = nullptr;  // it reads this run's Var
    bool behind_output = false;       // or rather that of the run's output
  };
  struct Put;  // one push: its record, sets and description

  bool Has(uint64_t feature) const { return s_.Has(feature); }
  bool Inside(const Pusher& me) const { return me.number == kInside; }
  static constexpr uint64_t kInside = 1000;  // numbers of the pushers that bodies use start here

  // world.cc
  EngineOptions Options();
  void MakeEngine();
  void UseAllLanes();
  void End();
  void Settle();
  void DropMail();
  void RefreshSlot(Slot& slot, bool by_delete);

  // pushers.cc
  void PusherMain(uint64_t number);
  void BetweenPushes(Pusher& me, Random& random, std::vector<std::unique_ptr<Bulk>>& bulks,
                     std::unique_ptr<PolicyScope>& policy);
  void WaitNowAndThen(Pusher& me, Random& random);
  void AtTheEnd(Pusher& me, Random& random);
  std::unique_ptr<Pusher> NewPusher(uint64_t number);
  Pusher* BorrowPusher();
  void GiveBack(Pusher* pusher);

  // push_one.cc
  void PushOne(Pusher& me, Random& random, int depth);
  OpRecord& NewRecord(Pusher& me, Random& random, const Want& want, Sets* sets);
  uint32_t NextId(Pusher& me);
  void PushAsync(Put& put);
  void PushHeld(Put& put);
  void PushToHeldOps(Put& put);
  bool MayWithhold();
  void ClearOne(Pusher& me, Random& random);
  template <class Push>
  void PushBody(Put& put, Push&& push);
  template <class F>
  void Attempt(Pusher& me, OpRecord& op, F&& push);

  // bodies.cc
  void IssueOnDevice(OpRecord& op, RunContext& ctx);
  void Begin(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx);
  void See(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx);
  void Write(OpRecord& op);
  [[noreturn]] void Throw(OpRecord& op);
  void WhileRunning(OpRecord& op, RunContext& ctx, Random& random);
  void PushInside(OpRecord& op, Random& random);
  bool LacksStandIn(const std::exception& error) const;
  void WaitForOwn(OpRecord& op);
  void WaitForPartner(OpRecord& op);
  void RefusedInside(OpRecord& op);
  void RunPieces(OpRecord& op, RunContext& ctx, Random& random);
  void EndAsync(OpRecord& op, Completion done);
  void LaterOrNow(bool now, std::function<void()> end);

  // destructors.cc, late_context.cc, coroutines.cc
  void PushFromDestructor(OpRecord& op);
  struct EarlyContext {  // what the RunContext said before the op could be over
    bool failed;
  };
  EarlyContext LookEarly(RunContext& ctx);
  void LookLate(const EarlyContext& early, const std::string& name, RunContext& ctx);
  void AwaitVar(Pusher& me, Random& random, uint32_t index);

  // plans.cc
  void MakePlans(Random& random);
  std::unique_ptr<PlanInfo> MakePlan(Random& random, uint32_t number);
  void AddNode(Graph& graph, ValueId in, const PlanInfo& info, uint32_t plan, uint32_t number, Random& random);
  void StartPlan(Pusher& me, Random& random, bool inside);
  void NodeBegin(NodeRecord& node, NodeContext& ctx);
  void NodeEnd(NodeRecord& node);

  // runs.cc
  void KeepRun(Pusher& me, Random& random, KeptRun kept);
  void PushBehindARun(Pusher& me, Random& random, Want& want);
  void DropRuns(Pusher& me, Random& random);

  // operators.cc
  void MakeOperator(Random& random);
  void OperatorBody(const std::vector<Use>& uses, const std::vector<Var>& vars, RunContext& ctx);
  void PushOperator(Random& random);

  // waits.cc
  void WaitForVar(Pusher& me, Random& random, uint32_t index, const Var& var, bool inside);
  void WaitForEverything(Pusher& me, Random& random);
  void WaitForRun(Pusher& me);

  // chaos.cc
  void ChaosMain();
  void StopRacesMain();
  void StopAndStart(Random& random);
  void StartAgain();
  // One thread in so many is refused. With fewer, an engine of a dozen threads would never start; streams are made one by one.
  uint64_t FewThreads() const { return Has(kDevices) && !Has(kStop | kStopRaces) ? 2 + seed_ % 12 : 20 + seed_ % 30; }
  void ShutDownBeside();
  void ForkDuringShutdown();
  void SwitchPolicy(Random& random);

  // forks.cc
  void PrepareForks();
  // A completion that is open over a fork; once `over`, whoever gets it calls it.
  struct Open {
    std::mutex mu;
    Completion done;
    bool over = false;
    void Keep(Completion completion);
    Completion Close();
  };
  void PushOverFork(const std::shared_ptr<std::atomic<bool>>& forked);
  void ForkOnce(Random& random);
  int Child(bool destroy);
  int ClosedChild(bool destroy);
  int WaitForAllVars();
  int OtherPartsInAChild();

  // collectives.cc, stages.cc
  void CollectivesMain();
  void StagesMain();

  const Shape s_;
  const uint64_t seed_;
  const Noise noise_;
  ErrorLog log_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::unique_ptr<Engine> partner_;  // a second engine, without workers
  Var partner_var_;
  Engine* eng_ = nullptr;  // a pointer, because bodies use the engine while it is being destroyed
  Completer completer_;

  std::vector<Var> vars_;  // the Vars that are never deleted: first s_.vars of them, then s_.apart
  struct alignas(64) Cell {
    uint64_t value = 0;
  };
  std::vector<Cell> cells_;          // by Var
  std::vector<Interval> deletions_;  // by Var
  std::array<Slot, kSlots> slots_;
  std::atomic<uint32_t> next_var_{0}, next_inner_{0};  // these only count
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<std::unique_ptr<PlanInfo>> plans_;

  std::vector<Operator> operators_;
  std::mutex operator_mu_;
  std::deque<OpRecord> operator_ops_;
  std::atomic<uint64_t> operator_pushes_{0};

  std::mutex pushers_mu_;
  std::vector<std::unique_ptr<Pusher>> pushers_;
  std::vector<Pusher*> spare_pushers_;  // for bodies; these are free

  std::mutex mail_mu_;
  std::vector<HeldOp> mail_, left_;                // mail_: any thread may drop them; left_: nobody does
  std::vector<engine::Run> run_mail_, left_runs_;  // likewise
  std::vector<std::shared_ptr<HeldOps>> open_held_ops_, left_held_ops_;
  std::mutex withheld_mu_;
  std::vector<Completion> withheld_;

  // Flags and counters that only steer the program.
  const int pid_ = getpid();  // a fork's child has another one
  std::atomic<bool> stop_chaos_{false}, complete_at_once_{false};
  std::atomic<int64_t> pushes_{0}, at_end_{0}, second_calls_{0}, second_calls_in_time_{0}, withheld_count_{0};
  const std::shared_ptr<Open> open_over_shutdown_;
  std::atomic<bool> end_begins_{false};  // set before the engine is shut down or destroyed
  std::atomic<uint64_t> shutdown_begin_{kNever};
  std::atomic<uint64_t> shutdown_end_{kNever};
  EngineStats stats_;
  bool has_stats_ = false;

  std::mutex fork_mu_;  // guards what comes now: two threads may want to fork
  int forks_ = 0;
  std::atomic<pid_t> child_{0};
  Plan child_plan_;
  Var child_var_;
  int child_runs_ = 0;
  HeldOp child_held_;
  Completion child_completion_;
  engine::Run child_run_;
  std::shared_ptr<HeldOps> child_held_ops_;
  DeviceMemory child_memory_;
  std::vector<Var> pending_over_fork_;  // their writes cannot end before the fork
  // What other threads use while the process forks; null: they are not there.
  std::mutex others_mu_;
  Stage<int>* stage_ = nullptr;
  std::vector<Communicator>* comms_ = nullptr;
};

// ClosureWitness: a part of every closure, which tells the World how the closure's op ended.
class ClosureWitness {
 public:
  ClosureWitness(World* world, OpRecord* op, std::vector<Var> vars);
  ClosureWitness(ClosureWitness&& other) noexcept
      : world_(other.world_), op_(std::exchange(other.op_, nullptr)), vars_(std::move(other.vars_)) {}
  ClosureWitness(const ClosureWitness&) = delete;
  ~ClosureWitness();
  World& world() const { return *world_; }
  OpRecord& op() const { return *op_; }
  const std::vector<Var>& vars() const { return vars_; }

  static int64_t alive();  // in this process; after a program there must be none

 private:
  World* world_;
  OpRecord* op_;
  std::vector<Var> vars_;  // in the order of the record's uses
};

}  // namespace engine::oracle
