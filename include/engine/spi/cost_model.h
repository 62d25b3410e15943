// CostModel: what the policy cost_model knows about one plan. It measures the plan's nodes during a window of runs.
// Later runs then take ready nodes by critical path, and run short nodes in batches; if that is slower, it goes back.
//
//   eng.SetPolicy(engine::Policy::kCostModel, {.start_step = 10, .stop_step = 20});
//   for (int step = 0; step < 200; ++step) plan.Start().Wait();
//   std::puts(engine::Explain(plan).Text().c_str());
//   plan.cost_model()->Save("costs.txt");        // and later, in another process: Load, which needs no window
//
// A step is a run of the plan under this policy, counted at its start; runs may overlap. In steps [start_step,
// stop_step) nodes are timed: by the processor time of their thread, so that time in which the thread is blocked does
// not count; nodes on a GPU by events around what they issue, which are read when the work has retired, so that nobody
// waits for them; asynchronous nodes and nodes on other placements by the clock. Then steps with and without the
// schedule take turns, and are compared in pairs. In all other steps no clock is read. Ops that are pushed have no
// graph to rank: they run as under `threaded`.
//
// Threads:   every method may be called on any thread.
// Ownership: a plan and its copies share one model; a run that the model measures keeps it alive.
// Errors:    UsageError for a file that cannot be read, is no cost file, or is broken (with the line); nothing is taken
//            from such a file. A run that fails, is cancelled or is skipped tells nothing about costs.
// Source:    DeepRec's cost-model executor (averages of elapsed time, frozen for ever, dispatched by constants).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/plan.h"

namespace engine {

struct CostWindow {
  uint32_t start = 100;
  uint32_t stop = 200;
  friend bool operator==(const CostWindow&, const CostWindow&) noexcept = default;
};

// What a node costs, in nanoseconds: the median of its samples and the distance between their quartiles.
struct NodeCost {
  std::string key;  // NodeDesc::cost_key; without one the node's name, with #1, #2 ... if several nodes have it
  uint64_t shape = 0;
  uint64_t samples = 0;
  double nanos = 0;
  double spread = 0;
};

// How a plan runs under cost_model, and why. Times are in nanoseconds.
struct Explanation {
  struct Node {
    std::string name;
    NodeCost cost = {};
    double rank = 0;       // the node's cost plus that of the most expensive chain behind it
    double slack = 0;      // how much later it could end without making the critical path longer
    uint32_t batch = 0;    // nodes of one number run as one task
    uint32_t threads = 1;  // how many its ParallelFor may use; `cost` is with so many
    bool critical = false;
    bool device = false;  // the cost is time on a GPU
  };
  enum class State : uint8_t {
    kNotUsed,    // no run under this policy yet
    kWaiting,    // before start_step
    kMeasuring,  // until stop_step, and until the measured runs have ended
    kComparing,  // steps with and without the schedule take turns
    kScheduled,
    kWentBack,  // the schedule was slower, or could not be made
  };
  State state = State::kNotUsed;
  std::string said;         // the state in words, with the comparison that decided it
  std::vector<Node> nodes;  // by their number in the graph; without costs until something was measured
  std::vector<uint32_t> path;
  int workers = 1;
  double work = 0;      // T1: the sum of the costs
  double critical = 0;  // T-infinity: the longest path
  double bound = 0;     // max(T1 without GPU nodes / workers, T-infinity): no schedule is shorter
  double dispatch = 0;  // measured: the time from when a task and a worker are ready until the task runs
  double before = 0;    // median time of the steps without the schedule; `after`: with it; 0: not compared
  double after = 0;
  double run = 0;  // from the first begin to the last end in the run that is explained; 0: no run is
  uint32_t tasks = 0;

  double makespan() const noexcept {
    if (run > 0) return run;
    return state == State::kWentBack || after == 0 ? before : after;
  }
  std::string Text() const;
  std::string Dot() const;  // the graph with costs; the critical path in red, batches in boxes

  // Dependencies as pairs of nodes, for Dot.
  std::vector<Graph::Edge> edges;
};

class CostModel {
 public:
  virtual ~CostModel() = default;

  // `run`: the times of the nodes in one run (RunOptions::times); if given, that run is explained instead of what the
  // policy measured.
  virtual Explanation Explain(const Plan& plan, uint64_t shape = 0, std::span<const NodeTime> run = {}) const = 0;
  // The costs of all shape classes, by node.
  virtual std::vector<NodeCost> Costs() const = 0;
  // Writes a text file with a line for each key and shape class; it is written whole or not at all.
  virtual void Save(const std::string& path) const = 0;
  // Reads such a file. A shape class whose nodes are all found in it needs no window: its next steps are compared at
  // once.
  virtual void Load(const std::string& path) = 0;
  // Forgets all measurements. The window opens again, counted from now.
  virtual void Remeasure() = 0;

  // --- for the engine: how a run is to go, and what came of it

  struct Step {
    Plan plan = {};       // the plan to run instead; empty: the plan itself
    uint64_t number = 0;  // for End; 0: do not call End
    bool timed = false;   // End needs the times of the nodes
    bool narrow = false;  // each node is to use one thread
  };
  struct Report {
    enum class Outcome : uint8_t { kNotBegun, kFailed, kEnded };  // kNotBegun: refused, or there was no room
    Outcome outcome = Outcome::kNotBegun;
    int64_t nanos = 0;  // from when the run's Vars were granted until its last node ended
    std::span<const NodeTime> times = {};
  };
  virtual Step Begin(const Plan& plan, CostWindow window, uint64_t shape) = 0;
  virtual void End(uint64_t number, const Report& report) noexcept = 0;
  // Called around a fork, for all models: BeforeFork takes their locks. In the child, the runs that were being measured
  // never end.
  static void BeforeFork();
  static void AfterFork(bool in_child);

  // Defined in src/costmodel, of which the engine knows only this header. Keeps nothing of the plan.
  static std::shared_ptr<CostModel> New(const Plan& plan, int workers);
};

inline Explanation Explain(const Plan& plan, uint64_t shape = 0, std::span<const NodeTime> run = {}) {
  return plan.cost_model()->Explain(plan, shape, run);
}

}  // namespace engine
