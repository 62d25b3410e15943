// SmartStep: a step cut in two, so that what does not depend on the model may run ahead of the rest. It decides; SmartStage
// (smart_stage.h), or a front end, brings the threads.
//
//   profile   the first steps run whole, and each node is timed
//   cut       the legal cut whose slower side is fastest (src/stage/partition.h); none: the step stays whole
//   guard     the next steps run whole and staged by turns; the slower way is dropped
//
// A step's graph has inputs that its sources give, item by item, and inputs that each step is given. Staged nodes run by
// levels on the thread that calls RunLevel, the rest as a run of its own; values that both sides need are handed over, and
// outputs of the step that are staged go through the rest unchanged.
//
// Threads:   RunLevel on any number of threads, for items in the order of their numbers if the level is `serial`; the
//            other calls one at a time, and none of them before the RunLevels of an item have returned.
// Ownership: the engine must outlive it. A StepItem is its holder's.
// Order:     effects of the steps are those of the whole steps in order: a staged node shares no Var with the rest that
//            either changes. Who else changes a Var that staged nodes read, changes it for steps that were read ahead.
// Errors:    UsageError for a graph or options that cannot be honoured. A staged node that fails fails its step as it
//            would have without a stage, and the next steps go on; see `closed_exception_types` below.
// Source:    DeepRec's SmartStage; reasons, costs and the guard are added.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/device/array.h"
#include "engine/plan.h"
#include "engine/stage_options.h"

namespace engine {

struct SmartStageOptions {
  // As for a stage by hand. closed_ and ignored_exception_types apply to sources. If they are changed they apply to staged
  // nodes too; then all that may be staged is, so that they mean the same in each step.
  StageOptions stage = {};
  const Graph* graph = nullptr;  // the seed's: the step's own graph, or none
  std::optional<bool> do_smart_stage =
      {};  // false: every step runs whole; none: as PolicyOptions::smart_stage says now
  // Nodes placed on a GPU stay in the step, and what they take from the host is copied: each HostArray that the host makes
  // is a DeviceArray there, however steps run. Copies of what is staged are staged too, as one from pinned memory an item.
  bool stage_subgraph_on_cpu = false;
  std::shared_ptr<const BoundaryArrays> arrays = {};  // of a front end (array.h); none: HostArray
  std::vector<uint32_t> targets = {};                 // nodes that belong to the step (mark_target_node)
  std::vector<uint32_t> collectives = {};             // nodes that every process runs in the same order
  // Vars that only input work uses: a random state, a counter, a vocabulary. Nodes that change other Vars stay in the step,
  // because who looks at a Var between two steps must find what these steps left there.
  std::vector<Var> input_state = {};
  int max_levels = 1;     // stages one behind the other, each with threads of its own
  int profile_steps = 8;  // steps that are timed before the cut
  int guard_steps = 16;   // steps that are compared, each way and twice; 0: staged without a guard
};

// What the sources give to one step, on its way.
struct StepItem {
  std::vector<Value> values = {};
  std::exception_ptr error = {};  // of a staged node
  uint64_t number = 0;            // in the source, from 0
  size_t bytes() const;
};

// The values of the next item, in the order in which a step takes them; false at the end. One thread calls it at a time, in
// order.
using StepPull = std::function<bool(std::vector<Value>* values)>;

// A step that a front end has recorded by its first item.
struct RecordedStep {
  Graph graph = {};
  std::vector<ValueId> sourced = {};   // its inputs that the items give, in the order of their values
  std::vector<uint32_t> targets = {};  // see SmartStageOptions
};

// What was decided, and why.
struct SmartStageReport {
  struct Node {
    std::string name;
    std::string reason;  // why it is not staged; empty: it is
  };
  struct Boundary {
    std::string name;
    uint64_t bytes;
  };
  std::vector<Node> nodes = {};
  std::vector<Boundary> boundary = {};
  size_t staged = 0;  // nodes
  size_t levels = 0;
  // A step, in seconds. Predicted from the profile; 0 before it.
  double stage_seconds = 0, rest_seconds = 0, staged_seconds = 0, whole_seconds = 0;
  // Measured by the guard; 0 before it.
  double measured_staged_seconds = 0, measured_whole_seconds = 0;
  bool decided = false;  // nothing changes any more
  bool on = false;       // the next step is staged
  std::string text = {};
};

class SmartStep {
 public:
  // `sourced`: the inputs of `step` that its sources give, in the order of StepItem::values. `options.stage`: as a
  // StagingArea has checked it.
  SmartStep(Engine& eng, Graph step, std::vector<ValueId> sourced, SmartStageOptions options);
  ~SmartStep();
  SmartStep(const SmartStep&) = delete;

  enum class Mode : uint8_t { kProfile, kWhole, kHalves, kStaged };
  // How the next step is to be run: Profile; StartWhole; RunLevel for each level and StartRest; the same, with the levels
  // read ahead.
  Mode mode() const;
  // A step is asked for, and, as mode() said after the profile, `run` was started. Its end is noted for the guard, by an op
  // behind it; nobody waits for it.
  void Asked();
  void Started(const Run& run);
  bool comparing() const;  // otherwise these do nothing

  // `given`: the inputs that no source gives, as the graph has them. If a call is refused, the item and they are kept.
  // `may_wait`: false gives an empty Run, and keeps them, instead of waiting (Plan::TryStart).
  Run StartWhole(StepItem& item, std::span<Value> given, const RunOptions& options, Site site, bool may_wait = true);
  Run StartRest(StepItem& item, std::span<Value> given, const RunOptions& options, Site site, bool may_wait = true);
  // As StartWhole, and waits. `source_seconds`: what it took to read the item.
  Run Profile(StepItem& item, std::span<Value> given, const RunOptions& options, double source_seconds, Site site);

  size_t levels() const;
  bool serial(size_t level) const;  // changes Vars
  // Throws what a staged node threw if the filters of the options are changed and ask for it.
  void RunLevel(size_t level, StepItem& item) const;

  const SmartStageOptions& options() const;
  SmartStageReport Report() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace engine
